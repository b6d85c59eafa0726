"""Clock that runs faster or slower than real time; the server behind it uses its seconds."""

import time

import trio


class ScaledClock(trio.abc.Clock):
    """Clock that runs `scale` times as fast as real time; it begins at 0.

    Everything that gets the time from Trio uses it: steps, timeouts, and the metrics of both.
    """

    def __init__(self, scale: float) -> None:
        self._scale = scale
        self._begin_s = time.perf_counter()

    def start_clock(self) -> None:
        """Begin the run. Part of `trio.abc.Clock`."""
        self._begin_s = time.perf_counter()

    def current_time(self) -> float:
        """Return the seconds since the run began, each of them 1 / `scale` of a real second."""
        return (time.perf_counter() - self._begin_s) * self._scale

    def deadline_to_sleep_time(self, deadline: float) -> float:
        """Return the real seconds to sleep."""
        return max(deadline - self.current_time(), 0.0) / self._scale
