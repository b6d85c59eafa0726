"""Replications of every setting over the same seeds, until each is known precisely enough, and their ranking.

Common random numbers: seed s gives every setting the very same requests, so that the difference of
two settings is that of the settings and not of their luck (Law, "Simulation Modeling and Analysis",
5th ed., section 11.2). The stopping rule is the sequential procedure of section 9.4.1: replicate
until the half-width is at most p / (1 + p) of the mean, for a relative error of at most p.

A setting whose runs are the same for every seed is one observation, however often it is repeated: it
has no interval. A setting that cannot run says why, and the others go on.
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
"""A cell's settings and a seed."""
Measures = dict[str, float]


class FailedRun(NamedTuple):
    """A run that there is not: why, in one line, and where in the code if that is a bug of ours."""

    reason: str
    traceback: str | None = None


def label(settings: Settings) -> str:
    """The setting as people read it."""
    return ", ".join(f"{name}={value}" for name, value in settings.items()) or "as given"


RunAll = Callable[[Sequence[Job]], Iterable[Measures | FailedRun]]
"""Runs jobs, and gives their figures in the same order."""


@dataclass(frozen=True, slots=True)
class Rule:
    """The rule for replications: at least, at most, and when `metric` is known well enough.

    With `precision` None the first `num_first` are all. With `is_one_recording` seeds draw from one trace.
    """

    metric: str
    num_first: int = 5
    num_most: int = 30
    precision: float | None = None
    confidence: float = 0.95
    is_one_recording: bool = False


@dataclass(slots=True)
class Cell:
    """The results of a setting by seed: `runs[s]` is of seed s.

    With `is_fixed` every seed gives the same run, with `is_one_recording` draws from one trace, which tell of
    other recordings alone how much they vary. `failed` says why there is none.
    """

    settings: Settings
    runs: list[Measures] = field(default_factory=list)
    is_fixed: bool = False
    is_one_recording: bool = False
    failed: FailedRun | None = None

    def values(self, metric: str) -> "np.ndarray[Any, np.dtype[np.float64]]":
        """A figure of every run; NaN in a run that has none, of a tenant that never came."""
        return np.array([run.get(metric, math.nan) for run in self.runs])

    def interval(self, metric: str, confidence: float = 0.95) -> Interval:
        """The metric over replications. NaN wide if all are one run."""
        if self.is_fixed:
            return Interval(float(self.values(metric).mean()), math.nan)
        return self._interval(self.values(metric), confidence)

    def change(self, other: "Cell", metric: str, confidence: float = 0.95) -> Interval:
        """This less `other`, seed by seed."""
        changes = self.values(metric) - other.values(metric)
        if self.is_fixed and other.is_fixed:
            return Interval(float(changes.mean()), math.nan)
        return self._interval(changes, confidence)

    def _interval(self, values: "np.ndarray[Any, np.dtype[np.float64]]", confidence: float) -> Interval:
        return (drawn_interval if self.is_one_recording else mean_interval)(values, confidence)


def grid(axes: dict[str, Sequence[Any]]) -> list[Settings]:
    """Every combination, the last axis fastest."""
    return [dict(zip(axes, values, strict=True)) for values in product(*axes.values())]


def sweep(
    cells: Sequence[Settings],
    rule: Rule,
    run_all: RunAll,
    is_fixed: Callable[[Settings], bool] = lambda settings: False,
) -> list[Cell]:
    """Run every cell with seeds 0, 1, …: all cells have as many, so that they can be paired.

    Where every cell is fixed, one seed is all there is to know. `is_fixed` is asked again after runs: a cell
    that may draw something (predictions that its policy never reads) need not.
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
