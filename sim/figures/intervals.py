"""Confidence intervals of means of correlated values, and the end of a warm-up.

Requests that arrive together wait together, so that n requests are worth fewer than n independent ones. Batch
means cut the run into blocks of consecutive arrivals; the means of long blocks are nearly independent (Law,
"Simulation Modeling and Analysis", 5th ed., section 9.5.3). In a run too short for that, the blocks count for
fewer, according to their correlation with the next one (Tafazzoli, Steiger and Wilson, "N-Skart", IEEE
Transactions on Automatic Control 56, 2011).

An empty server flatters the first requests of a run: they are its warm-up.
"""

import math
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

NUM_BATCHES = 20
"""Number of batches: enough for a stable variance, few enough for long blocks (Schmeiser, Operations
Research 1982: between 10 and 30).
"""
FEWEST_BEYOND = 5
"""Fewest blocks with values beyond a quantile that determine it."""
MOST_CORRELATION = 0.9
"""Correlation above which blocks count as one independent value, which gives no interval."""
MOST_SKEW = 3.0
"""Largest factor by which the interval of skewed samples is widened: a larger one would hardly cover more."""
TREND = 0.8
"""Share of the blocks' variance that must lie on a straight line; chance seldom makes one."""

MOST_NEWTON_STEPS = 200


class Interval(NamedTuple):
    """Estimate and the half-width of its confidence interval; NaN if unknown."""

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
        """Whether the interval shows a difference."""
        return self.low > 0 or self.high < 0


def t_quantile(probability: float, degrees: int) -> float:
    """Return the quantile of Student's t; NaN without a degree of freedom.

    For whole degrees of freedom the distribution is a finite sum (Abramowitz and Stegun, 26.7.3 and 26.7.4),
    which Newton's method inverts: from the normal quantile, which is nearer to zero, it rises to the root
    without passing it, because the distribution is concave above zero.
    """
    if degrees < 1:
        return math.nan
    if probability < 0.5:
        return -t_quantile(1 - probability, degrees)
    if probability >= 1:
        return math.inf if probability == 1 else math.nan
    log_scale = math.lgamma((degrees + 1) / 2) - math.lgamma(degrees / 2) - math.log(math.pi * degrees) / 2
    found, inside = NormalDist().inv_cdf(probability), 2 * probability - 1
    for _ in range(MOST_NEWTON_STEPS):
        density = math.exp(log_scale - (degrees + 1) / 2 * math.log1p(found**2 / degrees))
        step = (inside - _t_within(found, degrees)) / (2 * density)
        found += step
        if step <= 1e-14 * found:  # Newton doubles the digits in a step; rounding alone makes it fall
            break
    return found


def _t_within(t: float, degrees: int) -> float:
    """Return the probability that Student's t lies between -t and t. O(degrees)."""
    angle = math.atan2(t, math.sqrt(degrees))
    sine, squared = math.sin(angle), degrees / (degrees + t * t)
    is_odd = degrees % 2
    orders = np.arange(1, (degrees - 1 - is_odd) // 2 + 1 if degrees > 1 else 1, dtype=np.float64)
    factors = 2 * orders / (2 * orders + 1) if is_odd else (2 * orders - 1) / (2 * orders)
    total = 1.0 + float(np.cumprod(factors * squared).sum())
    if not is_odd:
        return sine * total
    within = angle + (sine * math.sqrt(squared) * total if degrees > 1 else 0.0)
    return within * 2 / math.pi


def mean_interval(values: Floats, confidence: float = 0.95) -> Interval:
    """Return the interval of the mean of independent values."""
    if len(values) < 2:
        return Interval(float(values.mean()) if len(values) else math.nan, math.nan)
    spread = float(values.std(ddof=1)) / math.sqrt(len(values))
    return Interval(float(values.mean()), t_quantile((1 + confidence) / 2, len(values) - 1) * spread)


def drawn_interval(values: Floats, confidence: float = 0.95) -> Interval:
    """Return the interval of the mean of samples from one recording, in which another recording's mean would
    lie.

    Samples vary as recordings do, so more of them estimate their spread better but do not reduce it: it is
    the interval of one more value (Hahn and Meeker, "Statistical Intervals", 1991, section 4.7). Waiting
    times vary by factors, and a recording without the longest waits yields few of them: if all values have
    one sign the interval reaches as far upwards as that of their logarithms, up to `MOST_SKEW` times as wide.
    """
    mean, half_width = mean_interval(values, confidence)
    wider = math.sqrt(len(values) + 1)
    half_width *= wider
    if len(values) > 1 and (bool((values > 0).all()) or bool((values < 0).all())):
        factor = mean_interval(np.log(np.abs(values)), confidence).half_width * wider
        upwards = abs(mean) * math.expm1(min(factor, 100.0))
        half_width = max(half_width, min(upwards, MOST_SKEW * half_width))
    return Interval(mean, half_width)


def to_the_best(confidence: float, num_settings: int) -> float:
    """Return the confidence of each difference to one setting with which all of them hold jointly."""
    return 1 - (1 - confidence) / max(num_settings - 1, 1)


def batch_means(values: Floats, num_batches: int = NUM_BATCHES) -> Floats:
    """Return the means of blocks of consecutive values, of lengths that differ by at most one."""
    count = min(num_batches, len(values))
    return np.array([block.mean() for block in np.array_split(values, count)]) if count else values


def num_independent(batches: Floats) -> float:
    """Return how many independent values would give the mean the same precision; the actual number if
    uncorrelated.
    """
    count, scatter = len(batches), scatter_of(batches)
    squares = float(scatter @ scatter)
    if squares == 0:
        return float(count)
    found = float(scatter[:-1] @ scatter[1:]) / squares
    # Of few values it comes out too small by this much (Marriott and Pope, Biometrika 41, 1954).
    correlation = found + (1 + 4 * max(found, 0.0)) / count
    correlation = min(max(correlation, 0.0), MOST_CORRELATION)
    return count * (1 - correlation) / (1 + correlation)


def scatter_of(batches: Floats) -> Floats:
    """Return the distances of values from their mean, or from their trend line if that explains most.

    Waits that grow from first to last, as on an overloaded server, are not due to chance.
    """
    centred: Floats = batches - float(batches.mean())
    if has_trend(batches):
        times = _times(batches)
        centred -= float(centred @ times) / float(times @ times) * times
    return centred


def has_trend(batches: Floats) -> bool:
    """Return whether a rising or falling line explains most of the variance."""
    if len(batches) < 3:
        return False
    centred, times = batches - float(batches.mean()), _times(batches)
    return float(centred @ times) ** 2 > TREND * float(centred @ centred) * float(times @ times)


def _times(batches: Floats) -> Floats:
    count = len(batches)
    times: Floats = np.arange(count, dtype=np.float64) - (count - 1) / 2
    return times


def variance_of(batches: Floats) -> float:
    """Return the variance due to chance."""
    scatter = scatter_of(batches)
    return float(scatter @ scatter) / (len(batches) - 1)


def run_interval(values: Floats, confidence: float = 0.95) -> Interval:
    """Return the interval of the mean of one run's values in order of time, by batch means."""
    batches = batch_means(values)
    if len(batches) < 2:
        return mean_interval(values, confidence)
    spread = math.sqrt(variance_of(batches)) * _quantile_of_mean(num_independent(batches), confidence)
    return Interval(float(values.mean()), spread)


def _quantile_of_mean(num_values: float, confidence: float) -> float:
    """Return the half-width of a mean's interval, in standard deviations of the values."""
    return t_quantile((1 + confidence) / 2, max(int(num_values) - 1, 1)) / math.sqrt(num_values)


def difference(first: Floats, second: Floats, confidence: float = 0.95) -> Interval:
    """Return the interval of the mean of `second` less that of `first`, of two runs without common requests.

    Batch means with Welch's degrees of freedom.
    """
    a, b = batch_means(first), batch_means(second)
    if len(a) < 2 or len(b) < 2:
        return Interval(math.nan, math.nan)
    na, nb = num_independent(a), num_independent(b)
    va, vb = variance_of(a) / na, variance_of(b) / nb
    mean = float(second.mean() - first.mean())
    if va + vb == 0:
        return Interval(mean, 0.0)
    degrees = (va + vb) ** 2 / (va**2 / max(na - 1, 1) + vb**2 / max(nb - 1, 1))
    quantile = t_quantile((1 + confidence) / 2, max(int(degrees), 1))
    return Interval(mean, quantile * math.sqrt(va + vb))


def quantile_difference(
    first: Floats, second: Floats, probability: float, *, seed: int = 0, confidence: float = 0.95
) -> Interval:
    """Return the interval of a quantile's difference between two runs of the same requests, row by row.

    Bootstrap over blocks of consecutive requests, the same for both (Künsch, Annals of Statistics 1989); the
    interval is made symmetric about the difference, and widened for correlated blocks. NaN for too few
    requests, or if few blocks reach beyond the quantile.
    """
    count = len(first)
    if count < 2 * NUM_BATCHES:
        return Interval(math.nan, math.nan)
    if np.array_equal(first, second):
        return Interval(0.0, 0.0)
    a, b = float(np.quantile(first, probability)), float(np.quantile(second, probability))
    blocks = np.array_split(np.arange(count), NUM_BATCHES)
    beyond = [
        sum(bool((values[rows] >= at).any()) for rows in blocks) for values, at in ((first, a), (second, b))
    ]
    if min(beyond) < FEWEST_BEYOND:
        return Interval(b - a, math.nan)
    rng = np.random.default_rng(seed)
    resampled = np.empty(400)
    for i in range(len(resampled)):
        rows = np.concatenate([blocks[j] for j in rng.integers(0, NUM_BATCHES, NUM_BATCHES)])
        resampled[i] = np.quantile(second[rows], probability) - np.quantile(first[rows], probability)
    half_width = float(np.quantile(np.abs(resampled - (b - a)), confidence))
    # A quantile moves as the share of values beyond it does.
    worth = num_independent(batch_means((second > b).astype(np.float64) - (first > a)))
    wider = _quantile_of_mean(worth, confidence) / _quantile_of_mean(NUM_BATCHES, confidence)
    return Interval(b - a, half_width * wider)


BATCH = 5
FEWEST = 20
"""Fewest values that a warm-up may leave; fewer would not represent the rest of a run."""


class WarmUp(NamedTuple):
    """Length of a warm-up: the first `num_values` values; `is_settled` is false if the rest still drifts."""

    num_values: int
    is_settled: bool


def find_warm_up(values: Floats) -> WarmUp:
    """Return how many of the first values to leave out, by MSER-5. O(n).

    Over batches of five, the truncation d that minimises the squared standard error of the rest, sum((x -
    mean)^2) / (n - d)^2 (White, Cobb and Spratt, Winter Simulation Conference 2000). A run has not settled if
    that minimum lies in its second half, or if the rest rises or falls along a line; then nothing is left
    out.
    """
    num_values, is_found = _mser(values)
    if not is_found or drifts(values[num_values:]):
        return WarmUp(0, is_settled=False)
    return WarmUp(num_values, is_settled=True)


def drifts(values: Floats) -> bool:
    """Return whether the values rise or fall over time more than chance explains."""
    return len(values) >= FEWEST and has_trend(batch_means(values))


def _mser(values: Floats) -> tuple[int, bool]:
    """Return the length of the warm-up; False instead if it ends in the second half."""
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
