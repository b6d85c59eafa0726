"""The main job on one page: a real model answers over HTTP, and its simulation agrees with it.

Serve the embedded model; calibrate a cost model from the steps of some questions, ask it others, and
predict those by simulation; then run both worlds in step, the torch backend on the virtual
clock beside the cost backend, and compare every batch.
"""

import time
from collections.abc import Sequence

import numpy as np
import trio
from rich.console import Console
from rich.table import Table

from actors.messages import StepOutput, Submit
from runtime.serve import RealModel, torch_backends
from sim.cost.calibrated import fit
from sim.figures.metrics import request_times
from sim.record.journal import Past, decisions, observations
from sim.record.recorder import Recorder
from sim.show.console import console_for
from sim.show.timeline import timeline
from sundog.commands.demo.asking import Answer, num_practised, serve_and_ask
from sundog.commands.demo.worlds import CONFIG, Run, computed, simulated


def run_demo(seed: int) -> int:
    """Play the page; 0 if the worlds agreed, 1 if not."""
    console = console_for()
    started = time.monotonic()
    model = RealModel.open(None)
    served, new_backend = Run(), torch_backends(model, CONFIG, seed=seed)
    console.rule("A real model answers, over HTTP")
    answers = trio.run(serve_and_ask, console, model, served, new_backend)
    past = Past.of(served.journal, since=num_practised())
    outputs, submits = served.journal.outputs, served.journal.submits[: num_practised()]
    warmed_up, practised = _ends(outputs, submits[:1]), _ends(outputs, submits)
    console.rule("What its scheduler did")
    steps = [o for o in outputs if o.step > practised]
    console.print(timeline(past.submits, steps, [answer.question for answer in answers]))
    seen = [(o.work, o.seconds) for o in observations(outputs) if warmed_up < o.step <= practised]
    cost = fit(seen)
    predicted = simulated(past, cost)
    console.rule("What the simulation says of the same requests")
    console.print(_latencies(past, served.recorder, predicted.recorder, answers))
    console.print(
        f"The cost of a step was fitted to {len(seen):,} steps of other questions, asked before.", style="dim"
    )
    console.rule("Both worlds, step by step")
    agreed = _compare(console, computed(past, model, cost, seed), predicted, past)
    _where_next(console, time.monotonic() - started)
    return 0 if agreed else 1


def _ends(outputs: Sequence[StepOutput], submits: Sequence[Submit]) -> int:
    """The last step of these requests."""
    names = {submit.request_id for submit in submits}
    return max(output.step for output in outputs if any(f.request_id in names for f in output.finished))


def _latencies(past: Past, measured: Recorder, predicted: Recorder, answers: list[Answer]) -> Table:
    """Measured at the engine and at the client, beside predicted, in milliseconds."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("milliseconds", no_wrap=True, max_width=26)
    for name in ("TTFT", "simulated", "at client", "TPOT", "simulated"):
        table.add_column(name, justify="right")
    rows = {name: row for row, name in enumerate(measured.columns.request_id)}
    there, here = request_times(measured), request_times(predicted)
    totals = []
    for number, (name, answer) in enumerate(zip(past.submits, answers, strict=True)):
        row = rows[name]
        values = (
            there.ttft_s[row],
            here.ttft_s[number],
            answer.first_s - answer.asked_s,
            there.tpot_s[row],
            here.tpot_s[number],
        )
        totals.append(values)
        table.add_row(answer.question, *(f"{value * 1e3:.1f}" for value in values))
    table.add_row("mean", *(f"{value * 1e3:.1f}" for value in np.mean(totals, axis=0)), style="bold")
    return table


def _compare(console: Console, real: Run, predicted: Run, past: Past) -> bool:
    """Say whether both worlds took the same decisions at the same times; returns it."""
    ours, theirs = decisions(real.journal.outputs), decisions(predicted.journal.outputs)
    same_answers = sum(
        past.output_tokens[name] == tokens for name, tokens in Past.of(real.journal).output_tokens.items()
    )
    if ours == theirs:
        num_chunks = sum(len(batch.chunks) for _, batch in ours)
        console.print(
            f"The torch backend on the virtual clock and the cost backend formed the same"
            f" {len(ours)} batches ({num_chunks} prefill chunks, {len(past.submits)} requests)"
            " at the same instants.",
            style="bold green",
        )
    else:
        index = next(
            (i for i, pair in enumerate(zip(ours, theirs, strict=False)) if pair[0] != pair[1]),
            min(len(ours), len(theirs)),
        )
        console.print(f"The worlds differ from batch {index} on:", style="bold red")
        console.print(ours[index : index + 1], theirs[index : index + 1])
    console.print(f"{same_answers} of {len(past.submits)} answers came out token for token as over HTTP.")
    return ours == theirs


def _where_next(console: Console, seconds: float) -> None:
    console.rule("Where to go next")
    console.print(
        "sundog serve                    talk to this model at 127.0.0.1:8000/v1\n"
        "sundog validate --self          predicted beside measured under load, two minutes\n"
        "sundog emulate --gpu h100    the same server at the pace of an absent GPU\n"
        "sundog replay TRACE --gpu h100  hours of traffic in seconds; see traces/\n"
        "sundog explain DIR --request ID why a request of a recorded run waited\n"
        "README.md                       how a request walks through the graph",
        markup=False,
    )
    console.print(f"This page took {seconds:.0f} s.", style="dim")
