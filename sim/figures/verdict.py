"""Verdicts on a run: the objectives it meets, over every request that arrived.

Law: a request without an answer (given up, refused, cancelled, failed, not ended) has missed every objective.
In a percentile it counts as infinite, and so does a mean that includes it. Percentiles of finished requests
alone would favour the run that gives up the requests which wait longest.
"""

import math
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sundog.sim.figures.named import Objective
from sundog.sim.record.rows import Floats, RequestTimes, Rows


class Verdict(NamedTuple):
    """Objective and the measured value that it limits, in seconds; infinite if too many requests have no
    answer.

    NaN if no request has such a value, which counts as a miss. `num_unanswered` requests are counted as
    infinite.
    """

    objective: Objective
    value_s: float
    num_unanswered: int

    @property
    def is_held(self) -> bool:
        """Whether the objective is met: its value is within the limit."""
        return self.value_s <= self.objective.below_s

    @property
    def known_s(self) -> float | None:
        """Value if it is finite; otherwise None."""
        return self.value_s if math.isfinite(self.value_s) else None


def verdicts(objectives: Iterable[Objective], rows: Rows, times: RequestTimes) -> list[Verdict]:
    """Return the verdict of each objective."""
    owner = np.array(rows.tenant, dtype=object)
    found = []
    for each in objectives:
        own = np.ones(len(rows.is_done), dtype=bool)
        if each.metric.tenant is not None:
            own = owner == each.metric.tenant
        values, missing = judged(getattr(times, each.metric.figure), own, rows.is_done)
        found.append(Verdict(each, with_infinite(values, missing, each.metric.percent), missing))
    return found


def judged(values: Floats, own: NDArray[np.bool_], is_done: NDArray[np.bool_]) -> tuple[Floats, int]:
    """Return the values of those finished requests that count (`own`), and the number of unanswered ones
    among them.
    """
    known = values[own & is_done]
    return known[~np.isnan(known)], int((own & ~is_done).sum())


def with_infinite(values: Floats, num_infinite: int, percent: float | None) -> float:
    """Return a percentile (or the mean, if None) of the values and `num_infinite` infinite ones; NaN
    without values.
    """
    count = len(values) + num_infinite
    if not count:
        return math.nan
    if percent is None:
        return math.inf if num_infinite else float(values.mean())
    known = finite_percentiles(values, num_infinite, np.array([percent]))
    return float(known[0]) if len(known) else math.inf


def finite_percentiles(values: Floats, num_infinite: int, percents: Floats) -> Floats:
    """Return ascending percentiles of the values and `num_infinite` infinite ones, up to the last finite
    one.
    """
    count = len(values) + num_infinite
    # numpy interpolates between two ranks: the upper one counts if it has any weight.
    is_finite = np.ceil(percents / 100 * (count - 1)) < len(values)
    if not is_finite.any():
        return np.array([])
    above = np.full(num_infinite, values.max())  # of no weight, and numpy cannot multiply infinity by 0
    found: Floats = np.percentile(np.append(values, above), percents[is_finite])
    return found


def all_held(found: Iterable[Verdict]) -> bool:
    """Return whether a run meets every objective."""
    return all(each.is_held for each in found)
