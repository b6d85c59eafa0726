"""Replications of every setting over the same seeds, until each is known precisely enough, and their ranking.

Common random numbers: seed s gives every setting the very same requests, so that differences of settings are
not differences of luck (Law, "Simulation Modeling and Analysis", 5th ed., section 11.2). The stopping rule is
the sequential procedure of section 9.4.1: replicate until the half-width is at most p / (1 + p) of the mean,
for a relative error of at most p.

A setting with the same run for every seed is one observation, however often it is repeated: it has no
interval. A setting that cannot run has a reason, and the others go on.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any, NamedTuple

import numpy as np

from sundog.sim.figures.intervals import Interval, drawn_interval, mean_interval

Settings = dict[str, Any]
Job = tuple[Settings, int]
"""Settings of a cell and a seed."""
Measures = dict[str, float]


class FailedRun(NamedTuple):
    """Run that failed: the reason in one line, and the traceback if it is a bug of Sundog."""

    reason: str
    traceback: str | None = None


def label(settings: Settings) -> str:
    """Return a setting as a label for people."""
    return ", ".join(f"{name}={value}" for name, value in settings.items()) or "as given"


RunAll = Callable[[Sequence[Job]], Iterable[Measures | FailedRun]]
"""Function that runs jobs, and returns their figures in the same order."""


@dataclass(frozen=True, slots=True)
class Rule:
    """Rule for replications: the least and largest number, and the precision of `metric`.

    With `precision` None the first `num_first` are all. With `is_one_recording` seeds sample from one trace.
    """

    metric: str
    num_first: int = 5
    num_most: int = 30
    precision: float | None = None
    confidence: float = 0.95
    is_one_recording: bool = False


@dataclass(slots=True)
class Cell:
    """Results of a setting by seed: `runs[s]` is that of seed s.

    With `is_fixed` every seed gives the same run; with `is_one_recording` the runs are samples from one
    trace, which only show how much recordings vary. `failed` is the reason if there are none.
    """

    settings: Settings
    runs: list[Measures] = field(default_factory=list)
    is_fixed: bool = False
    is_one_recording: bool = False
    failed: FailedRun | None = None

    def values(self, metric: str) -> "np.ndarray[Any, np.dtype[np.float64]]":
        """Return a figure of every run; NaN for a run without it, such as that of an absent tenant."""
        return np.array([run.get(metric, math.nan) for run in self.runs])

    def interval(self, metric: str, confidence: float = 0.95) -> Interval:
        """Return the metric's interval over replications, with an unknown width (NaN) if all are the same
        run.
        """
        if self.is_fixed:
            return Interval(float(self.values(metric).mean()), math.nan)
        return self._interval(self.values(metric), confidence)

    def change(self, other: "Cell", metric: str, confidence: float = 0.95) -> Interval:
        """Return the interval of the metric's difference to `other`, paired by seed."""
        changes = self.values(metric) - other.values(metric)
        if self.is_fixed and other.is_fixed:
            return Interval(float(changes.mean()), math.nan)
        return self._interval(changes, confidence)

    def _interval(self, values: "np.ndarray[Any, np.dtype[np.float64]]", confidence: float) -> Interval:
        return (drawn_interval if self.is_one_recording else mean_interval)(values, confidence)


def grid(axes: dict[str, Sequence[Any]]) -> list[Settings]:
    """Return every combination, the last axis fastest."""
    return [dict(zip(axes, values, strict=True)) for values in product(*axes.values())]


def sweep(
    cells: Sequence[Settings],
    rule: Rule,
    run_all: RunAll,
    is_fixed: Callable[[Settings], bool] = lambda settings: False,
) -> list[Cell]:
    """Run every cell with seeds 0, 1, …: all cells have as many, so that they can be paired.

    If every cell is fixed, one seed suffices. `is_fixed` is called again after runs: a cell with random
    inputs (predictions that its policy never reads) may turn out to be fixed.
    """
    one = rule.is_one_recording
    found = [Cell(settings, is_fixed=is_fixed(settings), is_one_recording=one) for settings in cells]
    once = all(cell.is_fixed for cell in found)
    _replicate(found, range(1 if once else rule.num_first), run_all)
    _note_fixed(found, is_fixed)
    while (going := _running(found)) and not once:
        num_runs = len(going[0].runs)
        if num_runs >= rule.num_most or all(_is_precise(cell, rule) for cell in going):
            break
        _replicate(going, range(num_runs, num_runs + 1), run_all)
        _note_fixed(found, is_fixed)
    return found


def _note_fixed(cells: Sequence[Cell], is_fixed: Callable[[Settings], bool]) -> None:
    for cell in cells:
        cell.is_fixed = is_fixed(cell.settings)


def _running(cells: Sequence[Cell]) -> list[Cell]:
    return [cell for cell in cells if cell.failed is None]


def _replicate(cells: Sequence[Cell], seeds: range, run_all: RunAll) -> None:
    jobs = [(cell, seed) for seed in seeds for cell in cells]
    results = run_all([(cell.settings, seed) for cell, seed in jobs])
    for (cell, _), outcome in zip(jobs, results, strict=True):
        if isinstance(outcome, FailedRun):
            cell.failed = cell.failed or outcome
        else:
            cell.runs.append(outcome)


def _is_precise(cell: Cell, rule: Rule) -> bool:
    if rule.precision is None or cell.is_fixed:
        return True
    mean, half_width = cell.interval(rule.metric, rule.confidence)
    if math.isnan(mean):
        return True  # Nothing to be precise about.
    allowed = rule.precision / (1 + rule.precision) * abs(mean)
    return half_width <= allowed
