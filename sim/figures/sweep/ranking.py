"""Ranking of settings by a metric, candidates for the best, and the load up to which each keeps up."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from sundog.sim.figures.intervals import Interval, to_the_best
from sundog.sim.figures.named import Metric
from sundog.sim.figures.sweep.cells import Cell, Settings


class RankedCell(NamedTuple):
    """Setting with its place; `behind` is its metric minus that of the best, None for the best itself.

    With `is_tied`, chance can explain the difference to the best.
    """

    cell: Cell
    behind: Interval | None
    is_tied: bool


class Ranking(NamedTuple):
    """Settings, the best first, and the candidates for the true best.

    These are multiple comparisons with the best (Edwards and Hsu, Journal of the American Statistical
    Association 78, 1983). Whichever setting is truly the best, only it is compared with each other one, so
    that n - 1 intervals must hold jointly and not those of all pairs. The true best is then among the
    settings that are not shown to be worse than the best observed, and a setting is behind it if it is behind
    all of these. Dunnett's constants would be a little smaller, but they need independent settings of equal
    variance, which common random numbers do not give. Bonferroni's bound needs neither.

    With latencies a = 8, b = 10, c = 12 and d = 20 and differences known to ± 3, a and b are candidates. c is
    worse than a by more than chance explains, but not than b: it is tied. d is worse than both.
    """

    places: list[RankedCell]
    candidates: list[Cell]
    confidence: float
    """Return a metric of a setting minus that of the best observed, and whether it differs from every
    candidate's.

    O(candidates), but most end at the first without a difference.
    """

    def change(self, cell: Cell, metric: str) -> tuple[Interval, bool]:
        """Return a metric of a setting less that of the best observed, and whether it differs from every
        candidate's.

        O(candidates), but most end at the first without a difference.
        """
        others = (each for each in self.candidates if each is not cell)
        sides = (_side(cell.change(each, metric, self.confidence)) for each in others)
        first = next(sides, 0)
        is_apart = first != 0 and all(side == first for side in sides)
        return cell.change(self.places[0].cell, metric, self.confidence), is_apart


def ranked(cells: Sequence[Cell], metric: Metric, confidence: float) -> Ranking:
    """Rank the settings that ran and have the metric. O(settings x candidates)."""
    sign, name = -1.0 if metric.is_higher_better else 1.0, metric.name
    known = [cell for cell in cells if cell.failed is None and not math.isnan(_mean(cell, name))]
    each = to_the_best(confidence, len(known))
    order = sorted(known, key=lambda cell: sign * _mean(cell, name))
    behind = {id(cell): cell.change(order[0], name, each) for cell in order[1:]}
    candidates = [cell for cell in order if cell is order[0] or not _is_apart(behind[id(cell)])]
    places = []
    for cell in order:
        is_tied = cell is not order[0] and any(
            cell is other or not _is_apart(cell.change(other, name, each)) for other in candidates
        )
        places.append(RankedCell(cell, behind.get(id(cell)), is_tied))
    return Ranking(places, candidates, each)


def _mean(cell: Cell, metric: str) -> float:
    return float(cell.values(metric).mean())


def _side(change: Interval) -> int:
    return (change.low > 0) - (change.high < 0)


def _is_apart(change: Interval) -> bool:
    return change.mean != 0 if math.isnan(change.half_width) else change.excludes_zero


class CellBlock(NamedTuple):
    """Settings at one value of an axis; without an axis the value is None and there is one block."""

    value: Any
    cells: list[Cell]


def blocks(cells: Sequence[Cell], axis: str | None) -> list[CellBlock]:
    """Split a grid into a block for each value of the axis, in the given order."""
    if axis is None:
        return [CellBlock(None, list(cells))]
    found: dict[str, CellBlock] = {}
    for cell in cells:
        value = cell.settings[axis]
        found.setdefault(repr(value), CellBlock(value, [])).cells.append(cell)
    return list(found.values())


def without(settings: Settings, axis: str | None) -> Settings:
    """Return the settings without one axis."""
    return {name: value for name, value in settings.items() if name != axis}


class Knee(NamedTuple):
    """Largest load on an axis at which a setting keeps up; None if it never does.

    `is_last`: it is the largest value that was tried.
    """

    settings: Settings
    value: Any
    is_last: bool


def knees(cells: Sequence[Cell], axis: str) -> list[Knee]:
    """Return the knee of each setting along an axis of numbers; empty for other axes."""
    if not all(isinstance(cell.settings[axis], int | float) for cell in cells):
        return []
    lines: dict[str, list[Cell]] = {}
    for cell in cells:
        lines.setdefault(repr(without(cell.settings, axis)), []).append(cell)
    found = []
    for line in lines.values():
        line.sort(key=lambda cell: cell.settings[axis])
        number = next((i for i, cell in enumerate(line) if not keeps_up(cell)), len(line))
        value = line[number - 1].settings[axis] if number else None
        found.append(Knee(without(line[0].settings, axis), value, number == len(line)))
    return found


def keeps_up(cell: Cell) -> bool:
    """Return whether every run settled and met every objective."""
    return cell.failed is None and not any(run["unsettled"] or run["slo_held"] == 0 for run in cell.runs)
