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
