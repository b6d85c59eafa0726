"""Durations as whole ticks of 2**-30 s, so that sums on a float64 clock are exact.

A float64 holds every multiple of 2**-30 below 2**23 s (97 days) exactly. With a step's start
and its duration both whole ticks, its end is exact, and any grouping of steps into runs gives the
same bytes. Rounding a duration moves it by less than half a nanosecond.
"""

import numpy as np
from numpy.typing import NDArray

TICKS_PER_S = 2**30

Ticks = NDArray[np.int64]


def to_ticks(seconds: float) -> int:
    """A duration in ticks, rounded half to even, at least one."""
    return max(round(seconds * TICKS_PER_S), 1)


def to_tick_array(seconds: NDArray[np.float64]) -> Ticks:
    """`to_ticks` of every element."""
    return np.maximum(np.rint(seconds * TICKS_PER_S).astype(np.int64), 1)


def instant(time_s: float) -> int:
    """An instant in ticks, rounded half to even."""
    return round(time_s * TICKS_PER_S)


def to_s(ticks: int) -> float:
    """Ticks in seconds: exact below 2**23 s."""
    return ticks / TICKS_PER_S
