"""The last few hundred first tokens, gaps and ended requests: what percentiles of now are of."""

from collections import deque
from collections.abc import Iterable

from actors.metrics.measured import Measured

PERCENTS = (50, 95, 99)


class Recent:
    """What happened last; `gaps` pairs a time between two tokens with how many requests had it in a step."""

    __slots__ = ("ended", "gaps", "ttft_s")

    def __init__(self) -> None:
        self.ttft_s: deque[float] = deque(maxlen=500)
        self.gaps: deque[tuple[float, int]] = deque(maxlen=1000)
        self.ended: deque[tuple[Measured, str, float]] = deque(maxlen=300)

    def remaining_tokens(self, num_tokens: int, most: int) -> int:
        """How many tokens a request that has `num_tokens` may yet bring, by those that ended; 1 to `most`.

        With the share of them that ended by their length, it goes on to `most`. Otherwise it stops as the
        others did: at the mean of what longer answers had beyond that point, or after as many again.
        """
        stopped = [request.num_tokens for request, reason, _ in self.ended if reason == "stop"]
        num_limited = sum(reason == "length" for _, reason, _ in self.ended)
        longer = [count - num_tokens for count in stopped if count > num_tokens]
        stops_after = sum(longer) / len(longer) if longer else max(num_tokens, 16)
        limited = num_limited / max(num_limited + len(stopped), 1)
        return max(1, round(limited * most + (1 - limited) * min(stops_after, most)))


def percentiles(values: Iterable[tuple[float, int]]) -> tuple[float, ...]:
    """The 50th, 95th and 99th percentile of values that each occurred so often; nothing of none."""
    ordered = sorted(values)
    total = sum(times for _, times in ordered)
    found: list[float] = []
    passed = 0
    for value, times in ordered:
        passed += times
        while len(found) < len(PERCENTS) and passed * 100 >= PERCENTS[len(found)] * total:
            found.append(value)
    return tuple(found)
