"""Confidence intervals of means, for values that are correlated with their neighbours.

Requests that arrive together wait together, so that n requests are worth fewer than n independent
ones. Batch means cut the run into blocks of consecutive arrivals; the means of long blocks are
nearly independent (Law, "Simulation Modeling and Analysis", 5th ed., section 9.5.3).
"""

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

NUM_BATCHES = 20
"""Enough for a stable variance, few enough for long blocks (Schmeiser, Operations Research 1982:
between 10 and 30)."""


class Interval(NamedTuple):
    """An estimate and the half-width of its confidence interval; NaN where it cannot be told."""

    mean: float
    half_width: float

    @property
    def low(self) -> float:
        return self.mean - self.half_width

    @property
    def high(self) -> float:
        return self.mean + self.half_width

    @property
    def excludes_zero(self) -> bool:
        """Whether a difference is shown."""
        return self.low > 0 or self.high < 0


def t_quantile(probability: float, degrees: int) -> float:
    """The quantile of Student's t; NaN without a degree of freedom."""
    from scipy.special import stdtrit

    return float(stdtrit(degrees, probability)) if degrees >= 1 else math.nan


def mean_interval(values: Floats, confidence: float = 0.95) -> Interval:
    """The mean of independent values."""
    if len(values) < 2:
        return Interval(float(values.mean()) if len(values) else math.nan, math.nan)
    spread = float(values.std(ddof=1)) / math.sqrt(len(values))
    return Interval(float(values.mean()), t_quantile((1 + confidence) / 2, len(values) - 1) * spread)


def batch_means(values: Floats, num_batches: int = NUM_BATCHES) -> Floats:
    """Means of blocks of consecutive values, as equal in length as can be."""
    count = min(num_batches, len(values))
    return np.array([block.mean() for block in np.array_split(values, count)]) if count else values


def run_interval(values: Floats, confidence: float = 0.95) -> Interval:
    """The mean of one run's values in order of time, by batch means."""
    found = mean_interval(batch_means(values), confidence)
    return Interval(float(values.mean()) if len(values) else math.nan, found.half_width)


def difference(first: Floats, second: Floats, confidence: float = 0.95) -> Interval:
    """The mean of `second` less that of `first`, of two runs without a request in common.

    Batch means with Welch's degrees of freedom.
    """
    a, b = batch_means(first), batch_means(second)
    if len(a) < 2 or len(b) < 2:
        return Interval(math.nan, math.nan)
    va, vb = float(a.var(ddof=1)) / len(a), float(b.var(ddof=1)) / len(b)
    mean = float(second.mean() - first.mean())
    if va + vb == 0:
        return Interval(mean, 0.0)
    degrees = (va + vb) ** 2 / (va**2 / (len(a) - 1) + vb**2 / (len(b) - 1))
    quantile = t_quantile((1 + confidence) / 2, max(int(degrees), 1))
    return Interval(mean, quantile * math.sqrt(va + vb))


def quantile_difference(
    first: Floats, second: Floats, probability: float, *, seed: int = 0, confidence: float = 0.95
) -> Interval:
    """The difference of a quantile between two runs of the same requests, row by row.

    Bootstrap over blocks of consecutive requests, the same for both (Künsch, Annals of Statistics
    1989); the interval is made symmetric about the difference.
    """
    count = len(first)
    if count < 2 * NUM_BATCHES:
        return Interval(math.nan, math.nan)
    blocks = np.array_split(np.arange(count), NUM_BATCHES)
    rng = np.random.default_rng(seed)
    resampled = np.empty(400)
    for i in range(len(resampled)):
        rows = np.concatenate([blocks[j] for j in rng.integers(0, NUM_BATCHES, NUM_BATCHES)])
        a, b = np.quantile(first[rows], probability), np.quantile(second[rows], probability)
        resampled[i] = b - a
    mean = float(np.quantile(second, probability) - np.quantile(first, probability))
    half_width = float(np.quantile(np.abs(resampled - mean), confidence))
    return Interval(mean, half_width)
