"""The virtual clock: time stands still while anything runs, then jumps to the next event.

Trio asks a clock how long it may sleep exactly when nothing is runnable. That is the moment to
move on: to the earliest event of our own heap, of which one task is woken, or to Trio's earliest
deadline. Events of one instant wake one after another, in the order of (event, key, sequence),
each only when everything its predecessor caused has come to rest.

Law: the same program gives the same order of events in every run, however Trio shuffles.
"""

import heapq
import math
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, TypeVar, TypeVarTuple

import trio

from actors.clock import Event

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class Deadlock(RuntimeError):
    """Nothing can ever happen again, and somebody still waits."""


class Wait:
    """One task in the heap; `task` is None when it no longer waits."""

    __slots__ = ("event", "key", "sequence", "task", "time_s")

    def __init__(self, time_s: float, event: int, key: str, sequence: int) -> None:
        self.time_s = time_s
        self.event = event
        self.key = key
        self.sequence = sequence
        self.task: trio.lowlevel.Task | None = trio.lowlevel.current_task()

    def __lt__(self, other: "Wait") -> bool:
        if self.time_s != other.time_s:
            return self.time_s < other.time_s
        return (self.event, self.key, self.sequence) < (other.event, other.key, other.sequence)


class VirtualClock(trio.abc.Clock):
    """A Trio clock that starts at 0 and never waits for the wall."""

    def __init__(self) -> None:
        self._now_s = 0.0
        self._waits: list[Wait] = []
        self._sequence = 0
        self._watchdog: trio.lowlevel.Task | None = None
        self.num_holds = 0
        """Real work under way outside Trio: while any is, time does not move."""

    def start_clock(self) -> None:
        """Part of `trio.abc.Clock`: nothing to start."""

    def current_time(self) -> float:
        return self._now_s

    def deadline_to_sleep_time(self, deadline: float) -> float:
        """Called by Trio when nothing is runnable: move on, and say that there is no need to sleep.

        Infinity, the sleep of a clock that nothing can move, is answered only while work outside
        is under way, or when nobody watches.
        """
        if self.num_holds:
            return math.inf
        waits = self._waits
        while waits and waits[0].task is None:
            heapq.heappop(waits)
        if waits and waits[0].time_s <= deadline:
            wait = heapq.heappop(waits)
            self._now_s = wait.time_s
            assert wait.task is not None
            trio.lowlevel.reschedule(wait.task)
            wait.task = None
        elif deadline < math.inf:
            self._now_s = max(self._now_s, deadline)
        elif self._watchdog is not None:
            trio.lowlevel.reschedule(self._watchdog)
            self._watchdog = None
        else:
            return math.inf
        return 0.0

    async def wait_until(self, time_s: float, event: Event, key: str) -> None:
        """Wait for an instant; the past is now."""
        self._sequence += 1
        wait = Wait(max(time_s, self._now_s), int(event), key, self._sequence)
        heapq.heappush(self._waits, wait)

        def abort(_raise_cancel: object) -> trio.lowlevel.Abort:
            wait.task = None
            return trio.lowlevel.Abort.SUCCEEDED

        await trio.lowlevel.wait_task_rescheduled(abort)

    async def watch(self) -> None:
        """Raise Deadlock, naming who waits, if ever nothing can happen again."""
        self._watchdog = trio.lowlevel.current_task()

        def abort(_raise_cancel: object) -> trio.lowlevel.Abort:
            self._watchdog = None
            return trio.lowlevel.Abort.SUCCEEDED

        await trio.lowlevel.wait_task_rescheduled(abort)
        names = ", ".join(sorted(_waiting_tasks())) or "nobody"
        raise Deadlock(f"at {self._now_s:.6f} s nothing can happen any more; waiting: {names}")


def run_virtual(main: Callable[[*Ts], Awaitable[T]], *args: *Ts) -> T:
    """Run `main` on a virtual clock of its own, from time 0; returns what it returns.

    Raises Deadlock instead of hanging; errors come in exception groups, as from any nursery.
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
    """Every task of the run but the one that asks, with the function it stands in."""
    root = trio.lowlevel.current_root_task()
    stack = [root] if root is not None else []
    here = trio.lowlevel.current_task()
    while stack:
        task = stack.pop()
        stack += [child for nursery in task.child_nurseries for child in nursery.child_tasks]
        if task is not here and not task.child_nurseries:
            yield f"{task.name} in {_innermost(task)}"


def _innermost(task: trio.lowlevel.Task) -> str:
    """The function of ours that a parked task waits in."""
    coroutine: Any = task.coro
    name = "?"
    while coroutine is not None:
        frame = getattr(coroutine, "cr_frame", None)
        if frame is not None and not frame.f_globals.get("__name__", "").startswith("trio"):
            name = frame.f_code.co_qualname
        coroutine = getattr(coroutine, "cr_await", None)
    return name
