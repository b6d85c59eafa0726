"""Time for actors: they know the current time, a wait with an order, and work that takes real time.

Time is a property of the run, not of the code. A clock that keeps its own order of events (the
virtual clock) offers `wait_until`; any other clock is a plain Trio clock, where order within an
instant means nothing.
"""

import enum
from collections.abc import Callable
from typing import Protocol, TypeVar, TypeVarTuple, runtime_checkable

import trio

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class Event(enum.IntEnum):
    """The order of events within one instant.

    Arrivals come first, so that a step which begins at their instant sees them; a step that ends
    frees its blocks before another begins; timeouts come last: what completes just in time has
    completed.
    """

    ARRIVAL = 0
    STEP_END = 1
    STEP_BEGIN = 2
    TIMEOUT = 3


@runtime_checkable
class OrderedClock(Protocol):
    """A clock with an order within each instant, which stands still while code runs."""

    async def wait_until(self, time_s: float, event: Event, key: str) -> None: ...


def now_s() -> float:
    """Seconds on the run's clock."""
    return trio.current_time()


async def sleep_until(time_s: float, event: Event = Event.TIMEOUT, key: str = "") -> None:
    """Wait until `time_s`; equal instants wake in the order of `event`, then `key`."""
    clock = trio.lowlevel.current_clock()
    if isinstance(clock, OrderedClock):
        await clock.wait_until(time_s, event, key)
    else:
        await trio.sleep_until(time_s)


async def run_blocking(work: Callable[[*Ts], T], *args: *Ts) -> T:
    """Run blocking `work`: in a thread on the wall clock, in place on a virtual one.

    On a virtual clock the work takes no time, which keeps a run the same every time.
    """
    if isinstance(trio.lowlevel.current_clock(), OrderedClock):
        return work(*args)
    return await trio.to_thread.run_sync(work, *args)
