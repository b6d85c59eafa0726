"""Distributions of lengths and arrivals for a workload.

Lengths are whole numbers of at least 1: tokens of a prompt or answer, turns, and so on. Arrivals are
ascending times from 0 on, in seconds, below the end of the span.
"""

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import ConfigDict, Field

from sundog.actors.core.config import ConfigError
from sundog.sim.trace.read import read_trace

Counts = NDArray[np.int64]


class Described:
    """Table of a description; unknown keys are refused."""

    __slots__ = ()
    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")


def check_span(smallest: int, largest: int) -> None:
    """Raise ValueError for an empty range."""
    if not 1 <= smallest <= largest:
        raise ConfigError(f"lengths from {smallest} to {largest}: need 1 <= smallest <= largest")


@dataclass(frozen=True, slots=True)
class Fixed(Described):
    """Constant length `tokens`."""

    tokens: int
    kind: Literal["fixed"] = "fixed"

    def __post_init__(self) -> None:
        check_span(self.tokens, self.tokens)

    def draw(self, rng: np.random.Generator, count: int) -> Counts:
        return np.full(count, self.tokens, dtype=np.int64)


@dataclass(frozen=True, slots=True)
class Uniform(Described):
    """Uniform distribution of lengths from `smallest` to `largest`, both included."""

    smallest: int
    largest: int
    kind: Literal["uniform"] = "uniform"

    def __post_init__(self) -> None:
        check_span(self.smallest, self.largest)

    def draw(self, rng: np.random.Generator, count: int) -> Counts:
        return rng.integers(self.smallest, self.largest + 1, count, dtype=np.int64)


@dataclass(frozen=True, slots=True)
class LogNormal(Described):
    """Log-normal lengths with this mean and median before rounding and clipping to `smallest`..`largest`.

    sigma^2 = 2 ln(mean / median), mu = ln(median): the moments of the log-normal distribution.
    """

    mean: float
    median: float
    largest: int
    smallest: int = 1
    kind: Literal["lognormal"] = "lognormal"

    def __post_init__(self) -> None:
        if not 0 < self.median <= self.mean < np.inf:
            raise ConfigError(
                f"a log-normal's median ({self.median:g}) must be above 0 and at most its mean"
                f" ({self.mean:g})"
            )
        check_span(self.smallest, self.largest)

    def draw(self, rng: np.random.Generator, count: int) -> Counts:
        sigma = np.sqrt(2 * np.log(self.mean / self.median))
        values = rng.lognormal(np.log(self.median), sigma, count)
        return np.clip(np.rint(values), self.smallest, self.largest).astype(np.int64)


@dataclass(frozen=True, slots=True)
class Zipf(Described):
    """Length k from `smallest` to `largest` with probability in proportion to k ** -exponent."""

    exponent: float
    largest: int
    smallest: int = 1
    kind: Literal["zipf"] = "zipf"

    def __post_init__(self) -> None:
        if not 0 <= self.exponent < np.inf:
            raise ConfigError(f"a Zipf exponent is {self.exponent:g}: it must be 0 or more")
        check_span(self.smallest, self.largest)

    def draw(self, rng: np.random.Generator, count: int) -> Counts:
        weights = np.arange(self.smallest, self.largest + 1, dtype=np.float64) ** -self.exponent
        shares = np.cumsum(weights / weights.sum())
        places = np.searchsorted(shares, rng.random(count), side="right")
        return np.minimum(places, len(weights) - 1).astype(np.int64) + self.smallest


@dataclass(frozen=True, slots=True)
class Geometric(Described):
    """Geometric lengths from 1 with this `mean`, at most `largest`."""

    mean: float
    largest: int
    kind: Literal["geometric"] = "geometric"

    def __post_init__(self) -> None:
        if not 1 <= self.mean < np.inf:
            raise ConfigError(f"a geometric mean is {self.mean:g}: it must be 1 or more")
        check_span(1, self.largest)

    def draw(self, rng: np.random.Generator, count: int) -> Counts:
        return np.minimum(rng.geometric(1 / self.mean, count), self.largest).astype(np.int64)


@dataclass(frozen=True, slots=True)
class Empirical(Described):
    """Lengths sampled with replacement from a column, prompt or output, of a recorded trace."""

    trace: str
    column: Literal["prompt", "output"]
    scale: float = 1.0
    kind: Literal["empirical"] = "empirical"

    def __post_init__(self) -> None:
        if not 0 < self.scale < np.inf:
            raise ConfigError(f"scale is {self.scale:g}: it must be above 0")

    def draw(self, rng: np.random.Generator, count: int) -> Counts:
        rows = read_trace(self.trace)
        place = 2 if self.column == "prompt" else 3
        known = np.array([row[place] for row in rows], dtype=np.float64)
        drawn = known[rng.integers(0, len(known), count)]
        return np.maximum(np.rint(drawn * self.scale), 1).astype(np.int64)


Lengths = Annotated[Fixed | Uniform | LogNormal | Zipf | Geometric | Empirical, Field(discriminator="kind")]


Floats = NDArray[np.float64]


def check_positive(owner: object, *names: str) -> None:
    """Raise ValueError if any of these fields is not a number above 0."""
    for name in names:
        value = getattr(owner, name)
        if not 0 < value < np.inf:
            raise ConfigError(f"{name} is {value}: it must be above 0")


def _renewal(gaps: np.random.Generator, mean_s: float, cv: float, duration_s: float) -> Floats:
    """Return times with gamma distributed gaps of this coefficient of variation."""
    expected = duration_s / mean_s
    # Enough gaps that the last instant lies beyond the end, but for one seed in 10^22.
    count = int(expected + 10 * max(cv, 1.0) * np.sqrt(expected) + 10 * max(cv, 1.0) ** 2)
    if cv == 1.0:
        return np.cumsum(gaps.exponential(mean_s, count))
    shape = cv**-2
    return np.cumsum(gaps.gamma(shape, mean_s / shape, count))


@dataclass(frozen=True, slots=True)
class Poisson(Described):
    """Poisson process of `rate_per_s` on average."""

    rate_per_s: float
    kind: Literal["poisson"] = "poisson"

    def __post_init__(self) -> None:
        check_positive(self, "rate_per_s")

    def times(self, rng: np.random.Generator, duration_s: float) -> Floats:
        return _renewal(rng, 1 / self.rate_per_s, 1.0, duration_s)


@dataclass(frozen=True, slots=True)
class Gamma(Described):
    """Gaps with coefficient of variation `cv`: 1 is Poisson's, 0 is constant, more is bursty."""

    rate_per_s: float
    cv: float
    kind: Literal["gamma"] = "gamma"

    def __post_init__(self) -> None:
        check_positive(self, "rate_per_s")
        if not 0 <= self.cv <= 100:
            raise ConfigError(f"cv is {self.cv}: it must be from 0 to 100")

    def times(self, rng: np.random.Generator, duration_s: float) -> Floats:
        if self.cv == 0:
            return np.arange(0.0, duration_s, 1 / self.rate_per_s)
        return _renewal(rng, 1 / self.rate_per_s, self.cv, duration_s)


@dataclass(frozen=True, slots=True)
class OnOff(Described):
    """Poisson process alternating between `on_rate_per_s` and `off_rate_per_s`, exponential spans, on
    first.
    """

    on_rate_per_s: float
    mean_on_s: float
    mean_off_s: float
    off_rate_per_s: float = 0.0
    kind: Literal["on-off"] = "on-off"

    def __post_init__(self) -> None:
        check_positive(self, "on_rate_per_s", "mean_on_s", "mean_off_s")
        if not 0 <= self.off_rate_per_s < np.inf:
            raise ConfigError(f"off_rate_per_s is {self.off_rate_per_s}: it must be 0 or more")

    def times(self, rng: np.random.Generator, duration_s: float) -> Floats:
        times, start_s, on = [], 0.0, True
        while start_s < duration_s:
            span_s = float(rng.exponential(self.mean_on_s if on else self.mean_off_s))
            rate = self.on_rate_per_s if on else self.off_rate_per_s
            count = int(rng.poisson(rate * span_s))
            times.append(start_s + np.sort(rng.random(count)) * span_s)
            start_s, on = start_s + span_s, not on
        return np.concatenate(times)


@dataclass(frozen=True, slots=True)
class Diurnal(Described):
    """Poisson process with a sinusoidal rate: lowest at the start, highest half a period later.

    `rate_per_s` on average over a period, `peak_to_trough` times as many at the peak as at the start.
    """

    rate_per_s: float
    peak_to_trough: float = 3.0
    period_s: float = 86400.0
    kind: Literal["diurnal"] = "diurnal"

    def __post_init__(self) -> None:
        check_positive(self, "rate_per_s", "period_s")
        if not 1 <= self.peak_to_trough < np.inf:
            raise ConfigError(f"peak_to_trough is {self.peak_to_trough}: it must be 1 or more")

    def times(self, rng: np.random.Generator, duration_s: float) -> Floats:
        swing = (self.peak_to_trough - 1) / (self.peak_to_trough + 1)
        peak = self.rate_per_s * (1 + swing)
        # Thinning: Lewis and Shedler, Naval Research Logistics 26 (1979).
        times = _renewal(rng, 1 / peak, 1.0, duration_s)
        share = (1 - swing * np.cos(2 * np.pi * times / self.period_s)) / (1 + swing)
        return times[rng.random(len(times)) < share]


@dataclass(frozen=True, slots=True)
class Recorded(Described):
    """Arrivals of a recorded trace at `rate_scale` times the rate."""

    trace: str
    rate_scale: float = 1.0
    kind: Literal["trace"] = "trace"

    def __post_init__(self) -> None:
        check_positive(self, "rate_scale")

    def times(self, rng: np.random.Generator, duration_s: float) -> Floats:
        return np.array([row.arrival_s for row in read_trace(self.trace)]) / self.rate_scale


Arrivals = Annotated[Poisson | Gamma | OnOff | Diurnal | Recorded, Field(discriminator="kind")]
