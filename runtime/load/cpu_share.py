"""How much of a core a process has: a client that is busy is what is measured, instead of its server."""

import time
from dataclasses import dataclass

import trio

WINDOW_S = 5.0
"""The seconds over which the busiest part of a load is looked for."""


@dataclass(frozen=True, slots=True)
class CpuShare:
    """The processor time of a process over the time that went by: of all of it, and of its busiest part."""

    mean: float
    most: float


class CpuMeter:
    """Measures this process from when the meter is made."""

    def __init__(self) -> None:
        self._begin = self._last = _now()
        self._most = 0.0

    async def watch(self) -> None:
        """Look every few seconds, until cancelled."""
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
