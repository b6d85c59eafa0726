"""Mean and exact percentiles of values that come in parts, some of them repeated.

Law: the result depends on the values alone, not on their split into parts nor their order: sums are exact
before they are rounded once, and percentiles are numpy's default, linear between order statistics. Memory is
that of a part, and of `AT_ONCE` values.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from sundog.actors.core.records import dataclass

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Part = tuple[Floats, Ints | None]
"""Values of at least 0, and how often each occurs: None means once."""
PERCENTILES = (50.0, 90.0, 99.0)
AT_ONCE = 2**21
"""Values sorted in memory; more are selected bit by bit, in four more passes."""
LEADING = 44
"""Number of last bits that are ignored at first: values that agree in all others differ by less than one in
256.
"""
SLICES = 4
"""Slices in which bits of numbers are added; those that need more are added one by one."""


@dataclass(frozen=True, slots=True)
class Distribution:
    """Mean and percentiles of `count` values."""

    count: int
    mean: float
    p50: float
    p90: float
    p99: float


def distribution(values: Floats) -> Distribution | None:
    """Return mean and percentiles; None without values."""
    return distribution_of(lambda: iter([(values, None)]))


def distribution_of(parts: Callable[[], Iterator[Part]]) -> Distribution | None:
    """Return mean and percentiles of all parts, which are read more than once; None without values."""
    count = size = 0
    kept: list[Part] = []
    for part in map(_occurring, parts()):
        values, counts = part
        size += len(values)
        count += len(values) if counts is None else int(counts.sum())
        if size <= AT_ONCE:
            kept.append(part)
    if not count:
        return None
    if size <= AT_ONCE:
        parts = partial(iter, kept)
    places = [percent / 100 * (count - 1) for percent in PERCENTILES]
    ranks = sorted({rank for p in places for rank in (int(p), min(int(p) + 1, count - 1))})
    found = _sorted(kept, ranks) if size <= AT_ONCE else _selected(parts, ranks)
    at = dict(zip(ranks, found, strict=True))
    p50, p90, p99 = (_between(at, p, count) for p in places)
    mean = math.fsum(chain.from_iterable(map(_addends, parts()))) / count
    return Distribution(count, mean, p50=p50, p90=p90, p99=p99)


def _between(at: dict[int, float], place: float, count: int) -> float:
    low, high = at[int(place)], at[min(int(place) + 1, count - 1)]
    return low + (high - low) * (place - int(place))


def _occurring(part: Part) -> Part:
    values, counts = part
    if counts is None or (occurs := counts > 0).all():
        return part
    return values[occurs], counts[occurs]


def _addends(part: Part) -> list[float]:
    """Return a few numbers whose exact sum is that of all values.

    The leading bits of all are added, then the next ones: so few at a time that no sum of them is rounded.
    """
    values, counts = _occurring(part)
    rest = values if counts is None else values * counts
    width = 53 - len(rest).bit_length()
    sums: list[float] = []
    for _ in range(SLICES):
        largest = float(rest.max(initial=0.0))
        if not 1e-200 < largest < 1e200:
            break
        unit = math.ldexp(1.0, math.frexp(largest)[1] - width)
        high = np.floor(rest / unit) * unit
        sums.append(float(high.sum()))
        rest = rest - high
    return [*sums, *rest[rest != 0].tolist()]


def _sorted(parts: Sequence[Part], ranks: Sequence[int]) -> list[float]:
    values = np.concatenate([values for values, _ in parts])
    if all(counts is None for _, counts in parts):
        each_once: list[float] = np.sort(values)[[*ranks]].tolist()
        return each_once
    return _among(values, np.concatenate([_counts(part) for part in parts]), ranks)


def _among(values: Floats, counts: Ints, ranks: Sequence[int]) -> list[float]:
    """Return the values at these ranks, given how often each occurs; sorts only where leading bits agree."""
    leading = np.abs(values).view(np.int64) >> LEADING
    leading -= leading.min()
    tally = np.bincount(leading, counts)
    places = np.searchsorted(np.cumsum(tally), ranks, side="right")
    near = np.zeros(len(tally), dtype=bool)
    near[places] = True
    passed = np.cumsum(np.where(near, 0.0, tally))[places]
    is_near = near[leading]
    values, counts = values[is_near], counts[is_near]
    order = np.argsort(values)
    ends = np.cumsum(counts[order])
    found: list[float] = values[order][np.searchsorted(ends, ranks - passed, side="right")].tolist()
    return found


def _counts(part: Part) -> Ints:
    values, counts = part
    return np.ones(len(values), dtype=np.int64) if counts is None else counts


def _selected(parts: Callable[[], Iterator[Part]], ranks: Sequence[int]) -> list[float]:
    """Return the values at these ranks, found 16 bits per pass: floats of at least 0 are ordered like their
    bits.
    """
    prefixes, rests = [0] * len(ranks), list(ranks)
    for shift in (48, 32, 16, 0):
        tallies = {prefix: np.zeros(2**16, dtype=np.int64) for prefix in prefixes}
        for part in parts():
            bits, counts = np.abs(part[0]).view(np.int64), _counts(part)
            for prefix, tally in tallies.items():
                alike = slice(None) if shift == 48 else (bits >> (shift + 16)) == prefix
                digits = (bits[alike] >> shift) & 0xFFFF
                tally += np.bincount(digits, counts[alike], 2**16).astype(np.int64)
        for i, prefix in enumerate(prefixes):
            ends = np.cumsum(tallies[prefix])
            digit = int(np.searchsorted(ends, rests[i], side="right"))
            rests[i] -= int(ends[digit - 1]) if digit else 0
            prefixes[i] = prefix << 16 | digit
    found: list[float] = np.array(prefixes, dtype=np.int64).view(np.float64).tolist()
    return found
