"""Schedule as a picture of characters: one line per request, one column per step or few."""

from collections.abc import Mapping, Sequence
from itertools import groupby, pairwise

from rich.text import Text

from sundog.actors.messages import StepOutput, Submit

LABEL, WIDTH = 26, 52
ABSENT, WAITING, DECODE, PREFILL = range(4)
MARKS = {ABSENT: (" ", ""), WAITING: ("·", "yellow"), DECODE: ("─", "green"), PREFILL: ("█", "cyan")}


def timeline(submits: Mapping[str, Submit], outputs: Sequence[StepOutput], labels: Sequence[str]) -> Text:
    """Draw prefill, decode and waiting of each request over the steps in which any of them was there.

    A column for several steps shows the busiest of them. `labels` name the requests.
    """
    states = _states(submits, outputs)
    columns = [column for column in states if any(column.values())]
    text = Text()
    for name, label in zip(submits, labels, strict=True):
        row = [column[name] for column in columns]
        text.append(f"{label:<{LABEL}.{LABEL}} ")
        for state, run in groupby(_squeeze(row, WIDTH)):
            mark, style = MARKS[state]
            text.append(mark * len(list(run)), style=style)
        text.append("\n")
    for state, meaning in ((PREFILL, "prefill"), (DECODE, "decode"), (WAITING, "waiting")):
        mark, style = MARKS[state]
        text.append(f"{' ' * (LABEL + 1) if state == PREFILL else '   '}{mark}", style=style)
        text.append(f" {meaning}")
    text.append(f"   {len(columns)} steps")
    return text


def _states(submits: Mapping[str, Submit], outputs: Sequence[StepOutput]) -> list[dict[str, int]]:
    decoding: set[str] = set()
    ended: set[str] = set()
    states = []
    for output in outputs:
        batch = output.batch
        decoding -= {*batch.finished, *batch.preempted}
        ended |= set(batch.finished)
        state = {
            name: ABSENT if name in ended or submit.arrival_s > output.start_s else WAITING
            for name, submit in submits.items()
        }
        state |= {name: DECODE for name in decoding.difference(batch.idle) if name in state}
        state |= {chunk.request_id: PREFILL for chunk in batch.chunks if chunk.request_id in state}
        decoding |= {chunk.request_id for chunk in batch.chunks if chunk.samples}
        if batch.num_tokens:
            states.append(state)
        ended |= {finish.request_id for finish in output.finished}
    return states


def _squeeze(row: Sequence[int], width: int) -> list[int]:
    if len(row) <= width:
        return list(row)
    edges = [round(index * len(row) / width) for index in range(width + 1)]
    return [max(row[a:b]) for a, b in pairwise(edges)]
