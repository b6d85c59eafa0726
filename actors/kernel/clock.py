"""Time for actors: the current time, ordered waits, and work that takes real time.

Time is a property of the run, not of the code. A clock with its own order of events (the virtual clock) is
an `OrderedClock`. On any other Trio clock the order within an instant is undefined.
"""

import enum
import logging
import math
from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any, Final, TypeVar, TypeVarTuple

import trio
from mypy_extensions import mypyc_attr

log = logging.getLogger("sundog.actors")

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class Event(enum.IntEnum):
    """Order of events within one instant.

    Arrivals come first, so that a step that begins at their instant sees them. A step that ends frees its
    blocks before another begins. Timeouts come last: work that completes just in time counts as complete.
    """

    ARRIVAL = 0
    STEP_END = 1
    STEP_BEGIN = 2
    TIMEOUT = 3


# Python 3.11 looks a member of an enum up four times as long as a name.
ARRIVAL: Final = Event.ARRIVAL
STEP_END: Final = Event.STEP_END
STEP_BEGIN: Final = Event.STEP_BEGIN
# Compiled code finds a final name at once, and an imported function by a look-up in its module.
_push: Final = heappush
_pop: Final = heappop
NOW_S: Final = -math.inf
"""Time in the past, which the clock's calls treat as the current instant."""


class Timer:
    """A call at an instant that can be stopped; subclasses define the call."""

    __slots__ = ("is_stopped", "scope")

    def __init__(self) -> None:
        self.is_stopped = False
        self.scope: trio.CancelScope | None = None
        """Sleep of the task that waits for the instant, in real time."""

    def stop(self) -> None:
        """Cancel the call, and end the task that waits for it."""
        self.is_stopped = True
        if self.scope is not None:
            self.scope.cancel()

    def call(self) -> None:
        """Run the timer's call at the instant."""
        raise NotImplementedError

    def ring(self) -> None:
        """Make the call, unless stopped, without a parent task: an error is logged."""
        if not self.is_stopped:
            try:
                self.call()
            except Exception:
                log.warning("%r that was due failed", self, exc_info=True)


class CallTimer(Timer):
    """Timer that calls a function at an instant."""

    __slots__ = ("_callback",)

    def __init__(self, callback: Callable[[], None]) -> None:
        super().__init__()
        self._callback = callback

    def call(self) -> None:
        self._callback()

    def __repr__(self) -> str:
        return f"the call {self._callback!r}"


Entry = Any
"""(time, event, key, sequence, timer), ordered by the first four; the sequence is unique.

To the compiler it is any object: a tuple of known types would be taken apart and checked whenever it is read.
"""


class RunClock:
    """Handle of the current run's clock, for callers that need it at every step (`run_clock`).

    Finding the clock through Trio's context costs more than reading it.
    """

    __slots__ = ("agenda",)

    def __init__(self) -> None:
        self.agenda: Agenda | None = None
        """Current time and timers of a virtual clock."""

    def now_s(self) -> float:
        """Return the seconds on the run's clock."""
        raise NotImplementedError

    def enter(self, time_s: float, event: Event, key: str, timer: Timer) -> None:
        """Call a timer at `time_s`; equal instants are ordered by `event`, then `key`.

        A past time means this instant, after all runnable tasks. A call that raises ends the run on a virtual
        clock; on the wall clock, where it has no parent task, the error is logged.
        """
        raise NotImplementedError


class Outside:
    """Place for one entry outside the heap; `timer` is None, and `time_s` infinite, if it is free."""

    __slots__ = ("_event", "_key", "_number", "time_s", "timer")

    def __init__(self) -> None:
        self.time_s = math.inf
        self.timer: Timer | None = None
        self._event = ARRIVAL
        self._key = ""
        self._number = 0

    def put(self, time_s: float, event: Event, key: str, number: int, timer: Timer) -> None:
        """Fill the place."""
        self.time_s, self.timer = time_s, timer
        self._event, self._key, self._number = event, key, number

    def take(self) -> Entry:
        """Return the entry as the heap orders it, and free the place."""
        entry = (self.time_s, self._event, self._key, self._number, self.timer)
        self.time_s, self.timer = math.inf, None
        return entry

    def leave(self) -> Timer:
        """Return the timer, and free the place."""
        timer = self.timer
        assert timer is not None, "the place is free"
        self.time_s, self.timer = math.inf, None
        return timer


class Agenda(RunClock):
    """Current time and timers of a virtual clock."""

    __slots__ = ("_coming", "_heap", "_heap_s", "_soon", "num_entered", "time_s")

    def __init__(self) -> None:
        super().__init__()
        self.agenda = self
        self.time_s = 0.0
        self.num_entered = 0
        self._heap: list[Entry] = []
        """Pending entries but for up to two: most are taken before another is entered."""
        self._heap_s = math.inf
        """Time of the heap's first entry; infinite without one."""
        self._soon = Outside()
        """Entry that is due now."""
        self._coming = Outside()
        """Entry that is due later, and was before all others when it was entered."""

    def now_s(self) -> float:
        return self.time_s

    def enter(self, time_s: float, event: Event, key: str, timer: Timer) -> None:
        self.num_entered += 1
        coming = self._coming
        if time_s <= self.time_s:
            if self._soon.timer is None:
                self._soon.put(self.time_s, event, key, self.num_entered, timer)
            else:
                self._push((self.time_s, event, key, self.num_entered, timer))
        elif time_s >= coming.time_s or time_s >= self._heap_s:
            self._push((time_s, event, key, self.num_entered, timer))
        else:
            if coming.timer is not None and not coming.timer.is_stopped:
                self._push(coming.take())
            coming.put(time_s, event, key, self.num_entered, timer)

    def due(self, deadline_s: float) -> Timer | None:
        """Return the next timer due by a time, and advance to its instant; None if there is none."""
        coming, soon = self._coming, self._soon
        if soon.timer is not None:
            if self.time_s > deadline_s:
                return None
            if self.time_s < coming.time_s and self.time_s < self._heap_s:
                return soon.leave()
            self._push(soon.take())  # Others of this instant may come before it, by event or key.
        time_s = coming.time_s
        if time_s < self._heap_s:
            if time_s > deadline_s:
                return None
            timer = coming.leave()
        else:
            if time_s == self._heap_s and coming.timer is not None:
                self._push(coming.take())
            heap, time_s = self._heap, self._heap_s
            if not heap or time_s > deadline_s:
                return None
            timer = _pop(heap)[4]
            self._heap_s = heap[0][0] if heap else math.inf
        # A stopped timer must not move the time: nothing happened at its instant.
        if not timer.is_stopped:
            self.time_s = time_s
        return timer

    def _push(self, entry: Entry) -> None:
        _push(self._heap, entry)
        self._heap_s = self._heap[0][0]


@mypyc_attr(allow_interpreted_subclasses=True)
class OrderedClock:
    """Trio clock that orders events within each instant and stands still while code runs.

    It is no abstract class: `isinstance` is called at every event and must be cheap.
    """

    agenda: Agenda

    async def wait_until(self, time_s: float, event: Event, key: str) -> None:
        """Wait for an instant; a past time means now."""
        raise NotImplementedError


class TrioClock(RunClock):
    """Clock of a run whose order within an instant is undefined, such as the wall clock."""

    __slots__ = ("_current_time",)

    def __init__(self) -> None:
        super().__init__()
        self._current_time: Callable[[], float] = trio.lowlevel.current_clock().current_time

    def now_s(self) -> float:
        return self._current_time()

    def enter(self, time_s: float, event: Event, key: str, timer: Timer) -> None:
        if time_s <= self._current_time():
            # Not at once, but after all runnable tasks, as on a virtual clock.
            trio.lowlevel.current_trio_token().run_sync_soon(timer.ring)
        else:
            trio.lowlevel.spawn_system_task(_ring_at, time_s, timer)


def run_clock() -> RunClock:
    """Return a handle of the current run's clock."""
    clock = _ordered_clock()
    return TrioClock() if clock is None else clock.agenda


def now_s() -> float:
    """Return the seconds on the run's clock."""
    return trio.current_time()


async def sleep_until(time_s: float, event: Event = Event.TIMEOUT, key: str = "") -> None:
    """Wait until `time_s`; equal instants wake in the order of `event`, then `key`."""
    clock = _ordered_clock()
    if clock is None:
        await trio.sleep_until(time_s)
    else:
        await clock.wait_until(time_s, event, key)


async def _ring_at(time_s: float, timer: Timer) -> None:
    if timer.is_stopped:
        return
    with trio.CancelScope() as timer.scope:
        await trio.sleep_until(time_s)
    timer.ring()


def take_turn() -> str | None:
    """Take the next place in the order of the run's clock, for `wait_turn`; None if the clock has no
    order.
    """
    clock = _ordered_clock()
    if clock is None:
        return None
    clock.agenda.num_entered += 1
    return f"{clock.agenda.num_entered:015}"


async def wait_turn(turn: str | None) -> None:
    """Continue within this instant, in the order in which turns were taken.

    Trio shuffles the tasks that one event wakes. A task with a turn continues alone, once those before it
    wait for something else; on a clock without an order it continues at once.
    """
    clock = _ordered_clock()
    if turn is not None and clock is not None:
        with trio.CancelScope(shield=True):
            await clock.wait_until(clock.agenda.time_s, Event.ARRIVAL, turn)


async def run_blocking(work: Callable[[*Ts], T], *args: *Ts, abandon_on_cancel: bool = False) -> T:
    """Run blocking `work`: in a thread on the wall clock, in place on a virtual one.

    On a virtual clock the work takes no time, so that equal runs stay equal. A cancelled caller waits for the
    end of the work, unless the work may be abandoned.
    """
    if uses_threads():
        return await trio.to_thread.run_sync(work, *args, abandon_on_cancel=abandon_on_cancel)
    return work(*args)


def uses_threads() -> bool:
    """Return whether blocking work runs in threads, which it does not on a virtual clock."""
    return _ordered_clock() is None


def _ordered_clock() -> OrderedClock | None:
    clock = trio.lowlevel.current_clock()
    return clock if isinstance(clock, OrderedClock) else None
