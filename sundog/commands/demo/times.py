"""Times of the demo: measured in several repetitions, and simulated.

The variation between repetitions of the same questions is this machine's current noise. Shapes: R
repetitions, Q questions.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import repeat

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from sundog.sim.figures.metrics import request_times
from sundog.sim.record.recorder import Recorder

Milliseconds = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class RoundTimes:
    """Milliseconds [R, Q] of the timed repetitions: TTFT, and time per later token."""

    ttft_RQ: Milliseconds
    tpot_RQ: Milliseconds

    @classmethod
    def of(cls, recorders: Iterable[Recorder], names_RQ: Sequence[Sequence[str]]) -> "RoundTimes":
        """Return the times of the named requests, those of each repetition from its recorder."""
        parts: list[Milliseconds] = []
        for recorder, names_Q in zip(recorders, names_RQ, strict=True):
            rows = {name: row for row, name in enumerate(recorder.columns.request_id)}
            at_Q, times = [rows[name] for name in names_Q], request_times(recorder)
            parts.append(1e3 * np.array([times.ttft_s, times.tpot_s])[:, at_Q])
        return cls(*np.stack(parts, axis=1))


@dataclass(frozen=True, slots=True)
class TimesBeside:
    """Measured times at the engine beside simulated ones."""

    questions: Sequence[str]
    measured: RoundTimes
    simulated: RoundTimes

    @classmethod
    def of(
        cls,
        questions: Sequence[str],
        names_RQ: Sequence[Sequence[str]],
        measured: Recorder,
        simulated: Sequence[Recorder],
    ) -> "TimesBeside":
        """Return the times of all repetitions but the first, which was shown while it ran; each is simulated
        separately.
        """
        there = RoundTimes.of(repeat(measured, len(names_RQ) - 1), names_RQ[1:])
        return cls(questions, there, RoundTimes.of(simulated[1:], names_RQ[1:]))

    def show(self, console: Console) -> None:
        """Print the times of each question, and the variation between repetitions."""
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
        table.add_column("milliseconds", no_wrap=True, max_width=20)
        for name in ("first token", "simulated", "later tokens", "simulated"):
            table.add_column(name, justify="right")
        pairs = (
            (self.measured.ttft_RQ, self.simulated.ttft_RQ),
            (self.measured.tpot_RQ, self.simulated.tpot_RQ),
        )
        off: list[float] = []
        for number, question in enumerate(self.questions):
            cells: list[str] = []
            for there, here in pairs:
                measured_R, simulated = there[:, number], float(np.median(here[:, number]))
                is_off = not measured_R.min() <= simulated <= measured_R.max()
                if is_off:
                    off.append(simulated / float(np.median(measured_R)) - 1)
                cells.append(f"{np.median(measured_R):.1f} ({measured_R.min():.1f}–{measured_R.max():.1f})")
                cells.append(f"{simulated:.1f}{'*' if is_off else ' '}")
            table.add_row(question, *cells)
        console.print(table)
        first, later = (_spread(there) for there, _ in pairs)
        num_times = 2 * len(self.questions)
        console.print(
            f"Medians of {len(self.measured.ttft_RQ)} repetitions of the same questions, with the least and"
            f" the most. The time of the same first token varied by {first:.0%}, of later ones by {later:.0%}"
            " (most over least, median of the questions): that is the noise of this machine now."
            " Neither column includes HTTP, tokenizing or the client."
        )
        within = f"Of {num_times} predictions {num_times - len(off)} lie within the machine's noise"
        console.print(f"{within}{_others(off)}.")


def _others(off: Sequence[float]) -> str:
    """Return how far off the predictions outside the noise are: `; the others are 6% low to 9% high`."""
    if not off:
        return ""
    least, most = (f"{abs(each):.0%} {'low' if each < 0 else 'high'}" for each in (min(off), max(off)))
    return f"; the other is {least}" if len(off) == 1 else f"; the others are {least} to {most}"


def _spread(times_RQ: Milliseconds) -> float:
    return float(np.median(times_RQ.max(axis=0) / times_RQ.min(axis=0) - 1))
