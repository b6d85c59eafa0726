"""Made-up workloads from a seed: Poisson arrivals, lengths from a distribution.

Every random quantity draws from a stream of its own name, so that changing one (another length
distribution, say) leaves the others as they were: two runs can meet the same arrivals.
"""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from actors.core.config import ConfigError
from sim.trace.record import TraceRequest, default_id

Floats = NDArray[np.float64]
Counts = NDArray[np.int64]


def stream(seed: int, name: str) -> np.random.Generator:
    """The random stream called `name` of a run with this seed."""
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=tuple(name.encode())))


class Lengths(Protocol):
    """A distribution of token counts."""

    def draw(self, rng: np.random.Generator, count: int) -> Counts:
        """`count` lengths of at least 1 token."""
        ...


@dataclass(frozen=True, slots=True)
class LogNormal:
    """Lengths with this mean and median before rounding and clipping to `smallest`..`largest`.

    sigma^2 = 2 ln(mean / median), mu = ln(median): the moments of the log-normal distribution.
    """

    mean: float
    median: float
    largest: int
    smallest: int = 1

    def __post_init__(self) -> None:
        if not 0 < self.median <= self.mean:
            raise ConfigError(
                f"a log-normal's median ({self.median:g}) must be above 0 and at most its mean"
                f" ({self.mean:g})"
            )
        _check_span(self.smallest, self.largest)

    def draw(self, rng: np.random.Generator, count: int) -> Counts:
        sigma = np.sqrt(2 * np.log(self.mean / self.median))
        values = rng.lognormal(np.log(self.median), sigma, count)
        return np.clip(np.rint(values), self.smallest, self.largest).astype(np.int64)


@dataclass(frozen=True, slots=True)
class Uniform:
    """Every length from `smallest` to `largest`, both included, is equally likely."""

    smallest: int
    largest: int

    def __post_init__(self) -> None:
        _check_span(self.smallest, self.largest)

    def draw(self, rng: np.random.Generator, count: int) -> Counts:
        return rng.integers(self.smallest, self.largest + 1, count, dtype=np.int64)


def _check_span(smallest: int, largest: int) -> None:
    if not 1 <= smallest <= largest:
        raise ConfigError(f"lengths from {smallest} to {largest}: need 1 <= smallest <= largest")


@dataclass(frozen=True, slots=True)
class Poisson:
    """Poisson arrivals at `rate_per_s` for `duration_s`, prompts and outputs of given lengths."""

    rate_per_s: float
    duration_s: float
    prompt: Lengths
    output: Lengths

    def __post_init__(self) -> None:
        for name in ("rate_per_s", "duration_s"):
            if not 0 < getattr(self, name) < np.inf:
                raise ConfigError(f"{name} is {getattr(self, name)}: it must be above 0")

    def requests(self, seed: int) -> list[TraceRequest]:
        """The requests of this workload for a seed, arrivals in whole microseconds."""
        rng = stream(seed, "arrivals")
        expected = self.rate_per_s * self.duration_s
        # Enough gaps that the last one lies beyond the end, but for one seed in 10^22.
        num_gaps = int(expected + 10 * np.sqrt(expected) + 10)
        arrivals = np.cumsum(rng.exponential(1 / self.rate_per_s, num_gaps)).round(6)
        arrivals = arrivals[arrivals < self.duration_s]
        prompts = self.prompt.draw(stream(seed, "prompt lengths"), len(arrivals))
        outputs = self.output.draw(stream(seed, "output lengths"), len(arrivals))
        rows = zip(arrivals.tolist(), prompts.tolist(), outputs.tolist(), strict=True)
        return [TraceRequest(default_id(i), *row) for i, row in enumerate(rows)]


CHAT = Poisson(
    rate_per_s=2.0,
    duration_s=300.0,
    prompt=LogNormal(mean=1155, median=1020, largest=4096),
    output=LogNormal(mean=211, median=129, largest=2048),
)
"""Chat like that of Azure's conversation trace of 2023: its mean lengths (1155 and 211 tokens), and
the medians 1020 and 129 that Splitwise (Patel et al., ISCA 2024, section III) states for it."""
CHAT_PROVENANCE = (
    "sim.workload.CHAT: Poisson arrivals, 2 requests/s for 5 minutes; log-normal lengths with the"
    " published means and medians of the Azure 2023 conversation trace, clipped to 4096 and 2048"
)


if __name__ == "__main__":
    from sim.trace.write import write_trace

    PATH = "traces/chat-poisson-2rps-5min.jsonl.gz"
    print(PATH, write_trace(PATH, CHAT.requests(0), provenance=CHAT_PROVENANCE, seed=0))
