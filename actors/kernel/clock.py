"""Time for actors: they know the current time, a wait with an order, and work that takes real time.

Time is a property of the run, not of the code. A clock that keeps its own order of events (the
virtual clock) is an `OrderedClock`; any other clock is a plain Trio clock, where
order within an instant means nothing.
"""

import enum
import logging
from collections.abc import Callable
from heapq import heappop, heappush
from typing import TypeVar, TypeVarTuple

import trio
from mypy_extensions import mypyc_attr

log = logging.getLogger("sundog.actors")

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class Event(enum.IntEnum):
    """The order of events within one instant.

    Arrivals come first, so that a step which begins at their instant sees them; a step that ends
    frees its blocks before another begins; timeouts come last: what completes just in time counts as
    complete.
    """

    ARRIVAL = 0
    STEP_END = 1
    STEP_BEGIN = 2
    TIMEOUT = 3


class Timer:
    """A call that is due at an instant, unless it is stopped before; a subclass says which."""

    __slots__ = ("is_stopped", "scope")

    def __init__(self) -> None:
        self.is_stopped = False
        self.scope: trio.CancelScope | None = None
        """The sleep of the task that waits for the instant, on the wall clock."""

    def stop(self) -> None:
        """Call nothing when the instant comes, and end the task that waits for it."""
        self.is_stopped = True
        if self.scope is not None:
            self.scope.cancel()

    def call(self) -> None:
        """Do what is due: the instant has come."""
        raise NotImplementedError

    def ring(self) -> None:
        """Call, unless stopped, where no task is above it to crash in: an error is logged."""
        if not self.is_stopped:
            try:
                self.call()
            except Exception:
                log.warning("%r that was due failed", self, exc_info=True)


class CallTimer(Timer):
    """A call that is due at an instant."""

    __slots__ = ("_callback",)

    def __init__(self, callback: Callable[[], None]) -> None:
        super().__init__()
        self._callback = callback

    def call(self) -> None:
        self._callback()

    def __repr__(self) -> str:
        return f"the call {self._callback!r}"


Entry = tuple[float, int, str, int, Timer]
"""(time, event, key, sequence, timer): ordered by the first four, the last of which is unique."""


class Agenda:
    """The time, and what is due when; a class of its own, for it is asked at every message."""

    __slots__ = ("entries", "num_entered", "soon", "time_s")

    def __init__(self) -> None:
        self.time_s = 0.0
        self.entries: list[Entry] = []
        """A heap of the entries that are due."""
        self.soon: Entry | None = None
        """An entry that is due now, beside the heap: nearly always the next of all."""
        self.num_entered = 0

    def enter(self, time_s: float, event: Event, key: str, timer: Timer) -> None:
        """Have a timer called at an instant, when nothing is runnable; the past is now."""
        self.num_entered += 1
        if time_s > self.time_s:
            heappush(self.entries, (time_s, event, key, self.num_entered, timer))
        elif self.soon is None:
            self.soon = (self.time_s, event, key, self.num_entered, timer)
        else:
            heappush(self.entries, (self.time_s, event, key, self.num_entered, timer))

    def due(self, deadline_s: float) -> Timer | None:
        """The next timer that is due by then, at whose instant it is from now on."""
        entries, soon = self.entries, self.soon
        if soon is not None and (not entries or soon < entries[0]):
            if soon[0] > deadline_s:
                return None
            self.soon = None
            return soon[4]
        if not entries or entries[0][0] > deadline_s:
            return None
        time_s, _, _, _, timer = heappop(entries)
        if not timer.is_stopped:
            self.time_s = time_s
        return timer


@mypyc_attr(allow_interpreted_subclasses=True)
class OrderedClock:
    """A Trio clock that keeps an order within each instant and stands still while code runs.

    Not an abstract class: `isinstance` is asked at every event and must be cheap.
    """

    agenda: Agenda

    async def wait_until(self, time_s: float, event: Event, key: str) -> None:
        """Wait for an instant; the past is now."""
        raise NotImplementedError


class RunClock:
    """The clock of the run that is under way: found once by what asks it at every step.

    Finding it through Trio's context costs more than all that is asked of it.
    """

    __slots__ = ("_agenda", "_current_time")

    def __init__(self) -> None:
        clock = trio.lowlevel.current_clock()
        self._current_time: Callable[[], float] = clock.current_time
        self._agenda = clock.agenda if isinstance(clock, OrderedClock) else None

    def now_s(self) -> float:
        """Seconds on the run's clock."""
        return self._current_time() if self._agenda is None else self._agenda.time_s

    def enter(self, time_s: float, event: Event, key: str, timer: Timer) -> None:
        """Have a timer called at `time_s`, as `call_at` says."""
        if self._agenda is not None:
            self._agenda.enter(time_s, event, key, timer)
        elif time_s <= self.now_s():
            trio.lowlevel.current_trio_token().run_sync_soon(timer.ring)
        else:
            trio.lowlevel.spawn_system_task(_ring_at, time_s, timer)


def now_s() -> float:
    """Seconds on the run's clock."""
    return trio.current_time()


async def sleep_until(time_s: float, event: Event = Event.TIMEOUT, key: str = "") -> None:
    """Wait until `time_s`; equal instants wake in the order of `event`, then `key`."""
    clock = _ordered_clock()
    if clock is None:
        await trio.sleep_until(time_s)
    else:
        await clock.wait_until(time_s, event, key)


def call_at(time_s: float, event: Event, key: str, callback: Callable[[], None]) -> Timer:
    """Call back at `time_s`, ordered like `sleep_until`; the past is now, but never at once.

    What is runnable runs first. A `callback` that raises is logged on the wall clock, where no task is above
    it; on a virtual clock it ends the run.
    """
    timer = CallTimer(callback)
    RunClock().enter(time_s, event, key, timer)
    return timer


async def _ring_at(time_s: float, timer: Timer) -> None:
    if timer.is_stopped:
        return
    with trio.CancelScope() as timer.scope:
        await trio.sleep_until(time_s)
    timer.ring()


def take_turn() -> str | None:
    """Take the next place in the order of the run's clock, for `wait_turn`; None if it keeps no order."""
    clock = _ordered_clock()
    if clock is None:
        return None
    clock.agenda.num_entered += 1
    return f"{clock.agenda.num_entered:015}"


async def wait_turn(turn: str | None) -> None:
    """Go on, within this instant, in the order in which turns were taken.

    Trio shuffles the tasks that one event wakes. A task that has a turn goes on alone, when those before it
    have come to rest; on a clock without an order it goes on at once.
    """
    clock = _ordered_clock()
    if turn is not None and clock is not None:
        with trio.CancelScope(shield=True):
            await clock.wait_until(clock.agenda.time_s, Event.ARRIVAL, turn)


async def run_blocking(work: Callable[[*Ts], T], *args: *Ts, abandon_on_cancel: bool = False) -> T:
    """Run blocking `work`: in a thread on the wall clock, in place on a virtual one.

    On a virtual clock the work takes no time, so that equal runs stay equal. A cancelled caller waits for the
    work to end, unless the work may be abandoned.
    """
    if uses_threads():
        return await trio.to_thread.run_sync(work, *args, abandon_on_cancel=abandon_on_cancel)
    return work(*args)


def uses_threads() -> bool:
    """Return True if blocking work runs in threads: not on a virtual clock."""
    return _ordered_clock() is None


def _ordered_clock() -> OrderedClock | None:
    clock = trio.lowlevel.current_clock()
    return clock if isinstance(clock, OrderedClock) else None
