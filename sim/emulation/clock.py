"""A clock that runs faster or slower than the wall's: a server behind it lives in seconds of its own."""

import time

import trio


class ScaledClock(trio.abc.Clock):
    """The wall clock, `scale` times as fast; it begins at 0.

    Everything that asks Trio for the time lives by it: steps, timeouts, and the metrics of both.
    """

    def __init__(self, scale: float) -> None:
        self._scale = scale
        self._begin_s = time.perf_counter()

    def start_clock(self) -> None:
        """Part of `trio.abc.Clock`: the run begins."""
        self._begin_s = time.perf_counter()

    def current_time(self) -> float:
        """Seconds since the run began, each of them 1 / `scale` of a second on the wall."""
        return (time.perf_counter() - self._begin_s) * self._scale

    def deadline_to_sleep_time(self, deadline: float) -> float:
        """Return the seconds to sleep on the wall."""
        return max(deadline - self.current_time(), 0.0) / self._scale
