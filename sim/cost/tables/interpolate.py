"""Distilled tables of each GPU as arrays, and interpolation between measured sizes.

Interpolation is linear in log space, or along rising curves; `Coverage` records how far outside it was used.
"""

import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from functools import cache
from importlib.resources import as_file, files
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

# Compiled code finds a final name at once, and an imported function by a look-up in its module.
_left: Final = bisect_left
_right: Final = bisect_right
FOLDER = files("sundog.sim.cost.tables") / "data"


def has_tables(gpu: str) -> bool:
    """Return whether there are tables of the GPU of this name (as `sundog.sim.hardware` names its file)."""
    return (FOLDER / f"{gpu}.npz").is_file()


@cache
def load(gpu: str) -> dict[str, Any]:
    """Return the arrays of one GPU's file."""
    with as_file(FOLDER / f"{gpu}.npz") as path, np.load(path) as data:
        return {name: data[name] for name in data.files}


Floats = NDArray[np.float64]
Points = NDArray[np.int64]


def log_interp(x: float, xs: list[float], ys: list[float]) -> float:
    """Interpolate `ys` at `x` linearly between logarithms, beyond the ends as well; all above 0."""
    if len(xs) == 1:
        return ys[0]
    i, last = _left(xs, x) - 1, len(xs) - 2
    if i > last:
        i = last
    elif i < 0:
        i = 0
    low, low_y = xs[i], ys[i]
    share = math.log(x / low) / math.log(xs[i + 1] / low)
    return low_y * math.pow(ys[i + 1] / low_y, share)


def distinct(values: Points) -> tuple[Points, Points]:
    """Return the distinct values in order, and the index of each of `values` among them.

    Like `np.unique`, which would load numpy's masked arrays, 10 ms of every command.
    """
    ordered = np.sort(values, axis=None)
    known: Points = ordered[np.concatenate(([True], ordered[1:] != ordered[:-1]))]
    return known, np.searchsorted(known, values)


def nearest(value: float, known: Sequence[int]) -> int:
    """Return the known size nearest in ratio."""
    return min(known, key=lambda size: (abs(math.log(size / max(value, 1e-9))), size))


def around(value: int, known: Sequence[int]) -> tuple[int, int, float]:
    """Return the two known sizes to interpolate between, and the share of the second.

    Outside the known sizes it is the nearest of them alone: extrapolation follows physics, not the slope of
    two noisy points.
    """
    if value <= known[0]:
        return known[0], known[0], 0.0
    if value >= known[-1]:
        return known[-1], known[-1], 0.0
    i = bisect_left(known, value)
    if known[i] == value:
        return value, value, 0.0
    low, high = known[i - 1], known[i]
    return low, high, math.log(value / low) / math.log(high / low)


def rising(values: Floats) -> Floats:
    """Return the highest curve that never falls and nowhere exceeds `values`.

    Fewer tokens never take longer than more, since a library may pad them; yet measured kernels do, by up to
    a tenth, where it chose another tile. Such a choice belongs to the measured shape and not to its
    neighbours, which the table stands for.
    """
    curve: Floats = np.minimum.accumulate(values[::-1])[::-1].copy()
    return curve


class Lines:
    """Linear interpolation between points, extrapolated beyond the last; for one place or for many.

    Both ways take the same steps in float64, each rounded, and so give the same bits.
    """

    __slots__ = ("_arrays", "_latest", "_slopes", "_xs", "_ys")

    def __init__(self, xs: Floats, ys: Floats) -> None:
        slopes = np.diff(ys) / np.diff(xs)
        self._arrays = xs[:-1], ys[:-1], slopes
        self._xs: list[float] = xs[:-1].tolist()
        self._ys: list[float] = ys[:-1].tolist()
        self._slopes: list[float] = slopes.tolist()
        self._latest = 0
        """Segment of the latest place, in which the next one nearly always lies."""

    def at(self, x: float) -> float:
        i = self._segment(x)
        return (x - self._xs[i]) * self._slopes[i] + self._ys[i]

    def at_few(
        self, first: float, each: float, *, count: int, over: float = 1.0, plus: float = 0.0
    ) -> list[float]:
        """Return `plus` the value at each of a few ascending places, as `at` does.

        Place i is (first + i * each) / over. Places are no list, whose numbers would all be objects.
        """
        xs, ys, slopes = self._xs, self._ys, self._slopes
        following, last = self._segment(first / over), len(xs) - 1
        values: list[float] = []
        begin, slope, value, end = 0.0, 0.0, 0.0, first / over
        for i in range(count):
            x = (first + i * each) / over
            while end <= x:  # to the line that x lies on
                begin, slope, value = xs[following], slopes[following], ys[following]
                following += 1
                end = xs[following] if following <= last else math.inf
            values.append(plus + ((x - begin) * slope + value))
        return values

    def at_each(self, places: Floats) -> Floats:
        """Return the values at many ascending places, as `at` does."""
        first, last = self._segment(float(places[0])), self._segment(float(places[-1]))
        values: Floats
        if first == last:
            values = (places - self._xs[first]) * self._slopes[first] + self._ys[first]
        else:
            xs, ys, slopes = self._arrays
            i = np.maximum(xs.searchsorted(places, side="right") - 1, 0)
            values = (places - xs[i]) * slopes[i] + ys[i]
        return values

    def _segment(self, x: float) -> int:
        xs, i = self._xs, self._latest
        if xs[i] <= x and (i + 1 == len(xs) or x < xs[i + 1]):
            return i
        i = max(_right(xs, x) - 1, 0)
        self._latest = i
        return i
