"""Share of a processor that a process uses: a busy client would distort the measurement of its server."""

import time
from dataclasses import dataclass

import trio

WINDOW_S = 5.0
"""Seconds of the window for the busiest part of a load."""


@dataclass(frozen=True, slots=True)
class CpuShare:
    """Processor time of a process divided by elapsed time: overall, and in its busiest window."""

    mean: float
    most: float


class CpuMeter:
    """Meter of this process, from its creation."""

    def __init__(self) -> None:
        self._begin = self._last = _now()
        self._most = 0.0

    async def watch(self) -> None:
        """Sample every few seconds, until cancelled."""
        while True:
            await trio.sleep(WINDOW_S)
            now = _now()
            self._most = max(self._most, _share(self._last, now))
            self._last = now

    def share(self) -> CpuShare:
        """Return the shares so far."""
        mean = _share(self._begin, _now())
        return CpuShare(mean, max(mean, self._most))


def _now() -> tuple[float, float]:
    return time.monotonic(), time.process_time()


def _share(begin: tuple[float, float], end: tuple[float, float]) -> float:
    elapsed_s = end[0] - begin[0]
    return (end[1] - begin[1]) / elapsed_s if elapsed_s > 0 else 0.0
