"""The virtual clock: time stands still while a task runs, then jumps to the next event.

Trio asks a clock how long it may sleep exactly when no task is runnable. At that moment the clock advances:
to the earliest event of its own heap, which wakes a task or makes a call, or to Trio's earliest deadline.
Events of one instant happen one after another, in the order of (event, key, sequence), each only when
everything that its predecessor caused has come to rest.

Law: the same program gives the same order of events in every run, however Trio shuffles.
"""

import logging
import math
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, Final, TypeVar, TypeVarTuple

import trio
from mypy_extensions import mypyc_attr

from sundog.actors.kernel.clock import Agenda, CallTimer, Event, OrderedClock

log = logging.getLogger("sundog.clock")

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

EVENTS_AT_ONCE: Final = 10_000


class Deadlock(Exception):
    """Raised if nothing can happen any more, and a task still waits."""


@mypyc_attr(allow_interpreted_subclasses=True)
class VirtualClock(OrderedClock, trio.abc.Clock, trio.abc.Instrument):
    """Trio clock that starts at 0 and never waits for the wall.

    It is also an instrument, to learn whether one of its calls made a task runnable.
    """

    def __init__(self) -> None:
        self.agenda = Agenda()
        self._stirred = False
        self._watchdog: trio.lowlevel.Task | None = None
        self._failure: Exception | None = None
        self.num_holds = 0
        """Number of tasks outside Trio; while there are any, time does not advance."""

    def start_clock(self) -> None:
        """Begin the run. Part of `trio.abc.Clock`."""
        trio.lowlevel.add_instrument(self)

    def current_time(self) -> float:
        return self.agenda.time_s

    def task_scheduled(self, task: trio.lowlevel.Task) -> None:
        """Record that a task became runnable. Part of `trio.abc.Instrument`."""
        self._stirred = True

    def deadline_to_sleep_time(self, deadline: float) -> float:
        """Advance the time, and return that there is no need to sleep. Trio calls it when no task is
        runnable.

        Events are handled until one makes a task runnable, or until Trio should check for signals. Infinity,
        an endless sleep, is returned only while work outside is under way, or if no watchdog runs.
        """
        # Work in a thread or process takes real time: Trio sleeps until it wakes the run.
        if self.num_holds:
            return math.inf
        agenda = self.agenda
        self._stirred = False
        num_left = EVENTS_AT_ONCE  # a loop over a range would make an object of each number
        while num_left:
            num_left -= 1
            timer = agenda.due(deadline)
            if timer is None:
                break
            if timer.is_stopped:
                continue
            try:
                timer.call()
            except Exception as error:  # noqa: BLE001  # the watchdog raises it
                self._fail(error)
            # A call made a task runnable: it must come to rest before the next event of this instant.
            if self._stirred:
                return 0.0
        else:
            # Calls that only make further calls would otherwise keep Ctrl-C from being seen.
            return 0.0
        # `max`: a deadline in the past must not turn the clock back.
        if deadline < math.inf:
            agenda.time_s = max(agenda.time_s, deadline)
        elif self._watchdog is not None:
            # No event, no deadline, and no task can run: the watchdog says who waits.
            trio.lowlevel.reschedule(self._watchdog)
            self._watchdog = None
        else:
            return math.inf
        return 0.0

    def _fail(self, error: Exception) -> None:
        """End the run with the error that a call raised inside Trio, through the watchdog."""
        if self._watchdog is None:
            log.warning(
                "a call due at %.6f s failed, and no watchdog runs", self.agenda.time_s, exc_info=error
            )
            return
        error.add_note(f"in a call due at {self.agenda.time_s:.6f} s")
        self._failure = error
        trio.lowlevel.reschedule(self._watchdog)
        self._watchdog = None

    async def wait_until(self, time_s: float, event: Event, key: str) -> None:
        """Wait for an instant; a past time means now."""
        task = trio.lowlevel.current_task()
        timer = CallTimer(lambda: trio.lowlevel.reschedule(task))
        self.agenda.enter(time_s, event, key, timer)

        def abort(_raise_cancel: object) -> trio.lowlevel.Abort:
            timer.stop()
            return trio.lowlevel.Abort.SUCCEEDED

        await trio.lowlevel.wait_task_rescheduled(abort)

    async def watch(self) -> None:
        """Raise an error of a call; or Deadlock, naming the waiting tasks, if nothing can happen any more."""
        self._watchdog = trio.lowlevel.current_task()

        def abort(_raise_cancel: object) -> trio.lowlevel.Abort:
            self._watchdog = None
            return trio.lowlevel.Abort.SUCCEEDED

        await trio.lowlevel.wait_task_rescheduled(abort)
        if self._failure is not None:
            raise self._failure
        names = ", ".join(sorted(_waiting_tasks())) or "no task"
        raise Deadlock(f"at {self.agenda.time_s:.6f} s nothing can happen any more; waiting: {names}")


def run_virtual(main: Callable[[*Ts], Awaitable[T]], *args: *Ts) -> T:
    """Run `main` on a virtual clock of its own, from time 0, and return its result.

    Errors come in exception groups, as from any nursery.

    Raises:
        Deadlock: Nothing could happen any more, and `main` still waited.
    """
    clock = VirtualClock()

    async def watched() -> T:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(clock.watch, name="the clock's watchdog")
            result = await main(*args)
            nursery.cancel_scope.cancel()
        return result

    return trio.run(watched, clock=clock)


def _waiting_tasks() -> Iterator[str]:
    root = trio.lowlevel.current_root_task()
    stack = [root] if root is not None else []
    here = trio.lowlevel.current_task()
    while stack:
        task = stack.pop()
        stack += [child for nursery in task.child_nurseries for child in nursery.child_tasks]
        if task is not here and not task.child_nurseries:
            yield f"{task.name} in {_innermost(task)}"


def _innermost(task: trio.lowlevel.Task) -> str:
    coroutine: Any = task.coro
    name = "?"
    while coroutine is not None:
        frame = getattr(coroutine, "cr_frame", None)
        if frame is not None and not frame.f_globals.get("__name__", "").startswith("trio"):
            name = frame.f_code.co_qualname
        coroutine = getattr(coroutine, "cr_await", None)
    return name
