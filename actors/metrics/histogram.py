"""A histogram that is cheap to add to: counts between fixed bounds.

`prometheus_client` writes these down at each scrape; its own histogram takes a lock and 1.4 us an
observation, too much for what is observed at every token.
"""

from bisect import bisect_left
from collections.abc import Sequence


class Histogram:
    """How many values were at most each of `bounds`, which ascend; and their sum."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(self.bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        """Count a value that occurred so often."""
        self.counts[bisect_left(self.bounds, value)] += times
        self.sum += value * times

    @property
    def count(self) -> int:
        """How many values there were."""
        return sum(self.counts)

    def cumulative(self) -> list[tuple[str, float]]:
        """Prometheus' buckets: each bound, as text, with the number of values up to it."""
        total, buckets = 0, []
        for bound, count in zip((*map(float, self.bounds), float("inf")), self.counts, strict=True):
            total += count
            buckets.append(("+Inf" if bound == float("inf") else str(bound), float(total)))
        return buckets


def one_two_five(largest: int) -> tuple[int, ...]:
    """1, 2, 5, 10, 20, 50 and so on, up to `largest`: vLLM's bounds for numbers of tokens."""
    bounds: list[int] = []
    power = 1
    while power <= largest:
        bounds += [step * power for step in (1, 2, 5) if step * power <= largest]
        power *= 10
    return tuple(bounds)
