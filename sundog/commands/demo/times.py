"""The demo's times: measured in several rounds beside simulated, and why they differ where they do.

What rounds of the same questions differ by is the noise of this machine, now; a simulated time outside of
all rounds gets a reason, by the part of it that is off most. Shapes: R rounds, Q questions.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import repeat

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from sim.figures.metrics import request_times
from sim.record.recorder import Recorder
from sundog.commands.demo.client import Answer

Milliseconds = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class RoundTimes:
    """Milliseconds [R, Q] of the timed rounds: from arrival to the first step, in it, and per later token."""

    queue_RQ: Milliseconds
    prefill_RQ: Milliseconds
    tpot_RQ: Milliseconds

    @classmethod
    def of(cls, recorders: Iterable[Recorder], names_RQ: Sequence[Sequence[str]]) -> "RoundTimes":
        """The times of the requests of these names, those of each round in its recorder."""
        parts: list[Milliseconds] = []
        for recorder, names_Q in zip(recorders, names_RQ, strict=True):
            rows = {name: row for row, name in enumerate(recorder.columns.request_id)}
            at_Q, times = [rows[name] for name in names_Q], request_times(recorder)
            parts.append(1e3 * np.array([times.queueing_s, times.prefill_s, times.tpot_s])[:, at_Q])
        return cls(*np.stack(parts, axis=1))

    @property
    def first_RQ(self) -> Milliseconds:
        """From arrival to first token."""
        first_RQ: Milliseconds = self.queue_RQ + self.prefill_RQ
        return first_RQ


@dataclass(frozen=True, slots=True)
class TimesBeside:
    """Times measured at the engine and simulated, and first tokens as the client saw them."""

    questions: Sequence[str]
    measured: RoundTimes
    simulated: RoundTimes
    client_RQ: Milliseconds

    @classmethod
    def of(
        cls,
        rounds: Sequence[Sequence[Answer]],
        names_RQ: Sequence[Sequence[str]],
        measured: Recorder,
        simulated: Sequence[Recorder],
    ) -> "TimesBeside":
        """The times of all rounds but the first, which was watched; each round was simulated by itself."""
        client_RQ = 1e3 * np.array([[answer.ttft_s for answer in answers] for answers in rounds[1:]])
        there = RoundTimes.of(repeat(measured, len(client_RQ)), names_RQ[1:])
        here = RoundTimes.of(simulated[1:], names_RQ[1:])
        return cls([answer.question for answer in rounds[0]], there, here, client_RQ)

    def show(self, console: Console) -> None:
        """Print both tables, what rounds differ by, and why simulated times are off where they are."""
        measured, simulated = self.measured, self.simulated
        host_RQ = self.client_RQ - measured.first_RQ
        columns = [_mid(each) for each in (self.client_RQ, host_RQ, measured.queue_RQ, measured.prefill_RQ)]
        table = _table("first tokens, ms", "client", "host", "queue", "prefill", "queue + prefill")
        for number, question in enumerate(self.questions):
            table.add_row(
                question,
                *(f"{column[number]:.1f}" for column in columns),
                *_beside(measured.first_RQ[:, number], simulated.first_RQ[:, number]),
            )
        console.print(table)
        table = _table("later tokens, ms", "measured")
        for number, question in enumerate(self.questions):
            table.add_row(question, *_beside(measured.tpot_RQ[:, number], simulated.tpot_RQ[:, number]))
        console.print(table)
        num_rounds = len(self.client_RQ)
        console.print(
            f"Medians of {num_rounds} rounds of the same questions, with the least and the most. Between"
            f" rounds the same first token differs by {_spread(measured.first_RQ):.0%} and later ones by"
            f" {_spread(measured.tpot_RQ):.0%} (the most above the least, median of the questions): that is"
            " the noise of this machine now. The host is HTTP, text to tokens and the client, which are not"
            " simulated."
        )
        num_off, num_times = sum(map(len, self._off())), 2 * len(self.questions)
        console.print(
            f"{num_times - num_off} of {num_times} simulated times are within what the rounds were."
        )
        for reason in self.reasons():
            console.print(f"* {reason}")

    def _off(self) -> tuple[list[int], list[int]]:
        """The questions whose first token, and whose later tokens, no round had as simulated."""
        pairs = (
            (self.measured.first_RQ, self.simulated.first_RQ),
            (self.measured.tpot_RQ, self.simulated.tpot_RQ),
        )
        first, later = (
            [n for n in range(len(self.questions)) if _is_off(there[:, n], here[:, n])]
            for there, here in pairs
        )
        return first, later

    def reasons(self) -> Iterator[str]:
        """Say of the times that are off which part of them is, and by how much."""
        there, here = self.measured, self.simulated
        first, later = self._off()
        ratio = float(np.median(there.tpot_RQ) / np.median(here.tpot_RQ))
        if later:
            yield (
                f"Later tokens: steps with these questions took {ratio:.2f} times as long as simulated, which"
                " is as long as steps with the other questions, between the rounds, took on average."
            )
        queue_Q, prefill_Q = (
            np.abs(_mid(ours) - _mid(theirs))
            for ours, theirs in ((there.queue_RQ, here.queue_RQ), (there.prefill_RQ, here.prefill_RQ))
        )
        for number in first:
            name = self.questions[number]
            if queue_Q[number] < prefill_Q[number]:
                took, says = _mid(there.prefill_RQ)[number], _mid(here.prefill_RQ)[number]
                yield f"{name} Prefill: its step took {took:.1f} ms, and the simulation says {says:.1f}."
            else:
                took, says = _mid(there.queue_RQ)[number], _mid(here.queue_RQ)[number]
                yield (
                    f"{name} Queue: steps before it ended after {took:.1f} ms, and {says:.1f} in the"
                    f" simulation (see later tokens: {ratio:.2f} times as long)."
                )


def _table(title: str, *names: str) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(title, no_wrap=True, max_width=20)
    for name in (*names, "simulated"):
        table.add_column(name, justify="right")
    return table


def _mid(times_RQ: Milliseconds) -> Milliseconds:
    mid_Q: Milliseconds = np.median(times_RQ, axis=0)
    return mid_Q


def _spread(times_RQ: Milliseconds) -> float:
    return float(np.median(times_RQ.max(axis=0) / times_RQ.min(axis=0) - 1))


def _is_off(measured_R: Milliseconds, simulated_R: Milliseconds) -> bool:
    """True if no round's measured time is as short, or none as long, as what is simulated."""
    return not measured_R.min() <= np.median(simulated_R) <= measured_R.max()


def _beside(measured_R: Milliseconds, simulated_R: Milliseconds) -> tuple[str, str]:
    mark = "*" if _is_off(measured_R, simulated_R) else " "
    range_ = f"{np.median(measured_R):.1f} ({measured_R.min():.1f}–{measured_R.max():.1f})"
    return range_, f"{np.median(simulated_R):.1f}{mark}"
