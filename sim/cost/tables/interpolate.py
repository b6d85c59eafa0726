"""The distilled tables of each GPU as arrays, and what lies between their measured sizes.

Between sizes are straight lines in log space, or rising curves; `Coverage` notes how far outside one was.
"""

import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from functools import cache
from importlib.resources import as_file, files
from typing import Any

import numpy as np
from numpy.typing import NDArray

FOLDER = files("sundog.sim.cost.tables") / "data"


def has_tables(gpu: str) -> bool:
    """True if there are tables of the GPU of this name (as `sundog.sim.hardware` calls its file)."""
    return (FOLDER / f"{gpu}.npz").is_file()


@cache
def load(gpu: str) -> dict[str, Any]:
    """The arrays of one GPU's file."""
    with as_file(FOLDER / f"{gpu}.npz") as path, np.load(path) as data:
        return {name: data[name] for name in data.files}


Floats = NDArray[np.float64]
Points = NDArray[np.int64]


def log_interp(x: float, xs: Sequence[float], ys: Sequence[float]) -> float:
    """`ys` at `x`, straight lines between logarithms, beyond the ends as well; all above 0."""
    if len(xs) == 1:
        return ys[0]
    i = min(max(bisect_left(xs, x) - 1, 0), len(xs) - 2)
    share = math.log(x / xs[i]) / math.log(xs[i + 1] / xs[i])
    between: float = ys[i] * (ys[i + 1] / ys[i]) ** share
    return between


def distinct(values: Points) -> tuple[Points, Points]:
    """The distinct values in order, and where each of `values` is among them.

    As `np.unique` gives, which loads numpy's masked arrays and with them 10 ms of every command.
    """
    known = np.array(sorted(set(values.tolist())), dtype=np.int64)
    return known, np.searchsorted(known, values)


def nearest(value: float, known: Sequence[int]) -> int:
    """The known size nearest in ratio."""
    return min(known, key=lambda size: (abs(math.log(size / max(value, 1e-9))), size))


def around(value: int, known: Sequence[int]) -> tuple[int, int, float]:
    """The two known sizes to interpolate between, and the share of the second.

    Outside the known sizes it is the last of them alone: how a kernel goes on from there is for
    physics to say, not for the slope of two noisy points.
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
    """The highest curve that never falls and nowhere exceeds `values`.

    Fewer tokens never take longer than more, for a library may pad them; yet measured kernels do,
    by up to a tenth, where it chose another tile. Such a choice belongs to the shape that was
    measured and not to its neighbours, for which the table stands.
    """
    curve: Floats = np.minimum.accumulate(values[::-1])[::-1].copy()
    return curve


class Lines:
    """Straight lines between points, the last of them without end; for one place or for many.

    Both ways take the same steps in float64, each rounded, and so give the same bits.
    """

    __slots__ = ("_arrays", "_slopes", "_xs", "_ys")

    def __init__(self, xs: Floats, ys: Floats) -> None:
        slopes = np.diff(ys) / np.diff(xs)
        self._arrays = xs[:-1], ys[:-1], slopes
        self._xs: list[float] = xs[:-1].tolist()
        self._ys: list[float] = ys[:-1].tolist()
        self._slopes: list[float] = slopes.tolist()

    def at(self, x: float) -> float:
        i = self._segment(x)
        return (x - self._xs[i]) * self._slopes[i] + self._ys[i]

    def at_few(self, places: list[float]) -> list[float]:
        """`at` of each of a few places; they must not fall."""
        xs, ys, slopes = self._xs, self._ys, self._slopes
        following, last = self._segment(places[0]), len(xs) - 1
        values: list[float] = []
        begin, slope, value, end = 0.0, 0.0, 0.0, places[0]
        for x in places:
            while end <= x:  # to the line that x lies on
                begin, slope, value = xs[following], slopes[following], ys[following]
                following += 1
                end = xs[following] if following <= last else math.inf
            values.append((x - begin) * slope + value)
        return values

    def at_each(self, places: Floats) -> Floats:
        """`at` of every place; they must not fall."""
        first, last = self._segment(float(places[0])), self._segment(float(places[-1]))
        values: Floats
        if first == last:
            values = (places - self._xs[first]) * self._slopes[first] + self._ys[first]
        else:
            xs, ys, slopes = self._arrays
            i = np.maximum(np.searchsorted(xs, places, side="right") - 1, 0)
            values = (places - xs[i]) * slopes[i] + ys[i]
        return values

    def _segment(self, x: float) -> int:
        return max(bisect_right(self._xs, x) - 1, 0)
