"""Replications of every setting over the same seeds, until each is known precisely enough.

Common random numbers: seed s gives every setting the very same requests, so that the difference of
two settings is that of the settings and not of their luck (Law, "Simulation Modeling and Analysis",
5th ed., section 11.2). The stopping rule is the sequential procedure of section 9.4.1: replicate
until the half-width is at most p / (1 + p) of the mean, for a relative error of at most p.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any

import numpy as np

from sim.figures.statistics.intervals import Interval, mean_interval
from sim.figures.sweep.measure import Measures

Settings = dict[str, Any]
Job = tuple[Settings, int]
RunAll = Callable[[Sequence[Job]], Iterable[Measures]]
"""Runs jobs, each a cell's settings and a seed, and gives their figures in the same order."""


@dataclass(frozen=True, slots=True)
class Rule:
    """How many replications: at least, at most, and when `metric` is known well enough.

    With `precision` None the first `num_first` are all.
    """

    metric: str
    num_first: int = 5
    num_most: int = 30
    precision: float | None = None
    confidence: float = 0.95


@dataclass(slots=True)
class Cell:
    """One setting, and what each seed gave: `runs[s]` is of seed s."""

    settings: Settings
    runs: list[Measures] = field(default_factory=list)

    def values(self, metric: str) -> "np.ndarray[Any, np.dtype[np.float64]]":
        return np.array([run[metric] for run in self.runs])

    def interval(self, metric: str, confidence: float = 0.95) -> Interval:
        """The metric over replications; independent, as seeds are."""
        return mean_interval(self.values(metric), confidence)

    def change(self, other: "Cell", metric: str, confidence: float = 0.95) -> Interval:
        """This less `other`, seed by seed."""
        return mean_interval(self.values(metric) - other.values(metric), confidence)


def grid(axes: dict[str, Sequence[Any]]) -> list[Settings]:
    """Every combination, the last axis fastest."""
    return [dict(zip(axes, values, strict=True)) for values in product(*axes.values())]


def sweep(cells: Sequence[Settings], rule: Rule, run_all: RunAll) -> list[Cell]:
    """Run every cell with seeds 0, 1, …: all cells have as many, so that they can be paired."""
    found = [Cell(settings) for settings in cells]
    _replicate(found, range(rule.num_first), run_all)
    while len(found[0].runs) < rule.num_most and not all(_is_precise(cell, rule) for cell in found):
        _replicate(found, range(len(found[0].runs), len(found[0].runs) + 1), run_all)
    return found


def _replicate(cells: Sequence[Cell], seeds: range, run_all: RunAll) -> None:
    jobs = [(cell, seed) for seed in seeds for cell in cells]
    results = run_all([(cell.settings, seed) for cell, seed in jobs])
    for (cell, _), measures in zip(jobs, results, strict=True):
        cell.runs.append(measures)


def _is_precise(cell: Cell, rule: Rule) -> bool:
    if rule.precision is None:
        return True
    mean, half_width = cell.interval(rule.metric, rule.confidence)
    if math.isnan(mean):
        return True  # Nothing to be precise about.
    allowed = rule.precision / (1 + rule.precision) * abs(mean)
    return half_width <= allowed
