"""The settings of a sweep from best to worst, and how surely each is behind the best."""

import math
from collections.abc import Sequence
from typing import NamedTuple

from sim.figures.statistics.intervals import Interval, all_at_once
from sim.figures.sweep.measure import HIGHER_IS_BETTER
from sim.figures.sweep.sweep import Cell


class Place(NamedTuple):
    """A setting; `behind` is its metric less that of the best, None for the best itself.

    `is_tied`: no difference to the best is shown, at this confidence for all settings together.
    """

    cell: Cell
    behind: Interval | None
    is_tied: bool


def ranked(cells: Sequence[Cell], metric: str, confidence: float) -> list[Place]:
    """The settings that ran and have the metric, the best first."""
    sign = -1.0 if metric.rpartition(".")[2] in HIGHER_IS_BETTER else 1.0
    known = [cell for cell in cells if cell.failed is None and not math.isnan(_mean(cell, metric))]
    each = all_at_once(confidence, len(known))
    order = sorted(known, key=lambda cell: sign * _mean(cell, metric))
    found = []
    for cell in order:
        behind = None if cell is order[0] else cell.change(order[0], metric, each)
        found.append(Place(cell, behind, behind is not None and _is_tied(behind)))
    return found


def _mean(cell: Cell, metric: str) -> float:
    return float(cell.values(metric).mean())


def _is_tied(behind: Interval) -> bool:
    if math.isnan(behind.half_width):
        return behind.mean == 0
    return not behind.excludes_zero
