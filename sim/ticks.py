"""Durations as whole ticks of 2**-30 s, so that sums on a float64 clock are exact.

A float64 holds every multiple of 2**-30 below 2**23 s (97 days) exactly. With a step's start
and its duration both whole ticks, its end is exact, and any grouping of steps into runs gives the
same bytes. Rounding a duration moves it by less than half a nanosecond.
"""

from array import array
from typing import Final

import numpy as np
from numpy.typing import NDArray

TICKS_PER_S: Final = 1073741824.0
WHOLE: Final = 4503599627370496.0
"""From here on every float64 is a whole number; adding it to a smaller one rounds that to a whole one."""


def rounded(number: float) -> float:
    """The nearest whole number to one from 0 on, halves to even: what `round` gives, without an integer."""
    return number if number >= WHOLE else (number + WHOLE) - WHOLE


def to_ticks(seconds: float) -> float:
    """A duration in ticks, rounded half to even, at least one."""
    return max(rounded(seconds * TICKS_PER_S), 1.0)


def end_times_s(start_tick: float, seconds: NDArray[np.float64]) -> "array[float]":
    """When each of the durations ends, one after another from `start_tick` on.

    Whole ticks all the way, in float64: the very values that `to_ticks` and `to_s` would give. In an array,
    because a run that is cut short needs but the first of them.
    """
    ticks = seconds * TICKS_PER_S
    np.rint(ticks, out=ticks)
    np.maximum(ticks, 1.0, out=ticks)
    ticks.cumsum(out=ticks)
    ticks += start_tick
    ticks /= TICKS_PER_S
    return array("d", ticks.tobytes())


def instant(time_s: float) -> float:
    """An instant in ticks, rounded half to even."""
    return rounded(time_s * TICKS_PER_S)


def to_s(ticks: float) -> float:
    """Ticks in seconds: exact below 2**23 s."""
    return ticks / TICKS_PER_S
