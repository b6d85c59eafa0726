"""Distributions of whole numbers of at least 1: tokens of a prompt or answer, turns, and so on."""

from typing import Annotated, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import ConfigDict, Field

from actors.core.config import ConfigError
from actors.core.records import dataclass
from sim.trace.read import read_trace

Counts = NDArray[np.int64]
STRICT = ConfigDict(extra="forbid")


def check_span(smallest: int, largest: int) -> None:
    """Refuse a span with nothing in it."""
    if not 1 <= smallest <= largest:
        raise ConfigError(f"lengths from {smallest} to {largest}: need 1 <= smallest <= largest")


@dataclass(frozen=True, slots=True)
class Fixed:
    """Always `tokens`."""

    tokens: int
    kind: Literal["fixed"] = "fixed"
    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    def __post_init__(self) -> None:
        check_span(self.tokens, self.tokens)

    def draw(self, rng: np.random.Generator, count: int) -> Counts:
        return np.full(count, self.tokens, dtype=np.int64)


@dataclass(frozen=True, slots=True)
class Uniform:
    """Every length from `smallest` to `largest`, both included, is equally likely."""

    smallest: int
    largest: int
    kind: Literal["uniform"] = "uniform"
    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    def __post_init__(self) -> None:
        check_span(self.smallest, self.largest)

    def draw(self, rng: np.random.Generator, count: int) -> Counts:
        return rng.integers(self.smallest, self.largest + 1, count, dtype=np.int64)


@dataclass(frozen=True, slots=True)
class LogNormal:
    """Lengths with this mean and median before rounding and clipping to `smallest`..`largest`.

    sigma^2 = 2 ln(mean / median), mu = ln(median): the moments of the log-normal distribution.
    """

    mean: float
    median: float
    largest: int
    smallest: int = 1
    kind: Literal["lognormal"] = "lognormal"
    __pydantic_config__: ClassVar[ConfigDict] = STRICT

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
class Zipf:
    """Length k from `smallest` to `largest` with probability in proportion to k ** -exponent."""

    exponent: float
    largest: int
    smallest: int = 1
    kind: Literal["zipf"] = "zipf"
    __pydantic_config__: ClassVar[ConfigDict] = STRICT

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
class Geometric:
    """1 and up, each more with the same probability; `mean` in all, at most `largest`."""

    mean: float
    largest: int
    kind: Literal["geometric"] = "geometric"
    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    def __post_init__(self) -> None:
        if not 1 <= self.mean < np.inf:
            raise ConfigError(f"a geometric mean is {self.mean:g}: it must be 1 or more")
        check_span(1, self.largest)

    def draw(self, rng: np.random.Generator, count: int) -> Counts:
        return np.minimum(rng.geometric(1 / self.mean, count), self.largest).astype(np.int64)


@dataclass(frozen=True, slots=True)
class Empirical:
    """Drawn with replacement from a column, prompt or output, of a recorded trace."""

    trace: str
    column: Literal["prompt", "output"]
    scale: float = 1.0
    kind: Literal["empirical"] = "empirical"
    __pydantic_config__: ClassVar[ConfigDict] = STRICT

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
