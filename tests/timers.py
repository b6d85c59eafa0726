"""Calls at an instant of the run's clock."""

from collections.abc import Callable

from sundog.actors.kernel.clock import CallTimer, Event, Timer, run_clock


def call_at(time_s: float, event: Event, key: str, callback: Callable[[], None]) -> Timer:
    """Call back at `time_s`, as `RunClock.enter` orders it."""
    timer = CallTimer(callback)
    run_clock().enter(time_s, event, key, timer)
    return timer
