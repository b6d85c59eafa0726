"""Where a run's warm-up ends: an empty server flatters the first requests."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sim.figures.statistics.intervals import batch_means, has_trend

Floats = NDArray[np.float64]
BATCH = 5
FEWEST = 20
"""A warm-up leaves at least this many values, because fewer say nothing about the rest of a run."""


class WarmUp(NamedTuple):
    """The first `num_values` values are warm-up; `is_settled` is false where the rest still drifts."""

    num_values: int
    is_settled: bool


def find_warm_up(values: Floats) -> WarmUp:
    """Find how many of the first values to leave out, by MSER-5. O(n).

    Over batches of five, the truncation d that minimises the squared standard error of what is
    left, sum((x - mean)^2) / (n - d)^2 (White, Cobb and Spratt, Winter Simulation Conference 2000).
    A run has not settled if that minimum lies in its second half, or if what is left rises or falls
    along a line; then nothing is left out of it.
    """
    num_values, is_found = _mser(values)
    if not is_found or drifts(values[num_values:]):
        return WarmUp(0, is_settled=False)
    return WarmUp(num_values, is_settled=True)


def drifts(values: Floats) -> bool:
    """True where the values rise or fall from first to last more than chance makes them."""
    return len(values) >= FEWEST and has_trend(batch_means(values))


def _mser(values: Floats) -> tuple[int, bool]:
    """Return the length of the warm-up, and False instead if its end lies in the second half."""
    count = len(values) // BATCH
    most = min(count // 2, count - FEWEST // BATCH)
    if most <= 0:
        return 0, True
    means = values[: count * BATCH].reshape(count, BATCH).mean(axis=1)
    left = np.arange(count, 0, -1, dtype=np.float64)
    # Sums from each place to the end, about the mean of all so that squares do not cancel.
    centred = means - means.mean()
    sums = np.cumsum(centred[::-1])[::-1]
    squares = np.cumsum((centred**2)[::-1])[::-1]
    errors = (squares - sums**2 / left) / left**2
    found = int(np.argmin(errors[: most + 1]))
    return found * BATCH, found < count // 2
