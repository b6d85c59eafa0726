"""Ranks of a replica besides rank 0: processes that start with it, are watched by it, and end with it.

Law: when one of them fails, dies or stalls, all are killed, and the error names it. A rank that waits for the
dead one in a collective thereby gets an error or is killed, so that no wait is endless.
"""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import trio

from sundog.actors.engine.reports import ActorReport
from sundog.actors.kernel.actor import ActorDied, Ref
from sundog.actors.messages import ToRunner
from sundog.runtime.wire.frames import WireError
from sundog.runtime.wire.link import Link
from sundog.runtime.worker.life import end_by_force, killed_loading
from sundog.runtime.worker.messages import WORKER_MESSAGES, CoreEnded, ToMonitor
from sundog.runtime.worker.supervision import (
    LOOK_S,
    START_S,
    Launcher,
    ProcessMonitor,
    RunningProcess,
    error_of,
    with_notes,
)

TELL_S = 1.0
"""Seconds that a crashed core waits to learn whether a rank was the cause."""
LEAVE_S = 2.0
"""Seconds for a rank to end after its Runner has been hung up on."""


OnLost = Callable[[Exception], None]


class RankLost(Exception):
    """Raised if a rank failed, died or stalled. The message names it; the notes give its traceback or last
    activity.
    """


class Ranks:
    """Ranks 1 to `count` - 1 of a replica, started by `launcher`; none for a single rank.

    A rank that is silent for `stall_s` counts as stalled.
    """

    def __init__(
        self, replica: int, count: int = 1, launcher: Launcher | None = None, stall_s: float = START_S
    ) -> None:
        assert launcher is not None or count == 1, "ranks begin somewhere"
        self._replica, self._count, self._launcher, self._stall_s = replica, count, launcher, stall_s
        self._monitors: list[ProcessMonitor] = []
        self._begun: list[RunningProcess] = []
        self._num_linked = 0
        self._ending = False
        self.is_up = False
        """Whether all have loaded."""
        self.lost: Exception | None = None
        """Error of the rank that ended the replica, if any."""

    def reports(self) -> tuple[ActorReport, ...]:
        """Return the last reports of the ranks' actors."""
        return tuple(each for monitor in self._monitors for each in monitor.actors)

    @asynccontextmanager
    async def running(self, on_lost: OnLost) -> AsyncIterator[list[Ref[ToRunner]]]:
        """Yield the addresses of the ranks' Runners while they run; `on_lost` is called at once if a rank is
        lost.

        Within the block, waits for a rank's answer are cancelled when a rank is lost, and RankLost is raised.
        """
        async with trio.open_nursery() as nursery:
            try:
                runners = [await self._begin(number, nursery, on_lost) for number in range(1, self._count)]
                if runners:
                    nursery.start_soon(self._watch, on_lost)
                yield runners
                self._ending = True
                with trio.move_on_after(LEAVE_S):
                    await self._until(lambda: not self._num_linked)
            except Exception:
                with trio.move_on_after(TELL_S, shield=True):
                    await self._until(lambda: self.lost is not None or not self._begun)
                raise
            finally:
                self._ending = True
                self._kill()
                nursery.cancel_scope.cancel()
                with trio.CancelScope(shield=True):
                    for each in self._begun:
                        await each.ended()

    async def _begin(self, number: int, nursery: trio.Nursery, on_lost: OnLost) -> Ref[ToRunner]:
        assert self._launcher is not None
        try:
            begun = await self._launcher.begin(number)
        except WireError as error:
            raise RankLost(f"rank {number} could not be reached: {error}") from error
        monitor = ProcessMonitor(f"monitor-{self._replica}.{number}")
        self._begun.append(begun)
        self._monitors.append(monitor)
        link = Link(begun.connected, WORKER_MESSAGES, begun.name)
        link.export(monitor)
        hold = monitor.ref("ranks")
        await nursery.start(monitor.live)
        nursery.start_soon(self._carry, link, begun, monitor, hold, on_lost)
        try:
            runner: Ref[ToRunner] = await link.open(
                f"runner-{self._replica}.{number}", f"executor-{self._replica}"
            )
        except ActorDied as error:
            raise RankLost(f"{begun.name} cannot be reached: {error}") from error
        return runner

    async def _carry(
        self,
        link: Link,
        begun: RunningProcess,
        monitor: ProcessMonitor,
        hold: Ref[ToMonitor],
        on_lost: OnLost,
    ) -> None:
        self._num_linked += 1
        await link.run()
        self._num_linked -= 1
        hold.close()
        if self._ending or isinstance(monitor.end, CoreEnded):
            return
        if monitor.end is None:
            how = await begun.ended()
            killed = None if self.is_up else killed_loading(begun.name, how)
            self._lose(killed or RankLost(f"{begun.name} {how}"), on_lost)
        else:
            crashed = error_of(monitor.end, lambda cause: RankLost(f"{begun.name} failed: {cause}"))
            self._lose(crashed, on_lost)

    async def _watch(self, on_lost: OnLost) -> None:
        while True:
            await trio.sleep(LOOK_S)
            for begun, monitor in zip(self._begun, self._monitors, strict=True):
                if silence := monitor.silence(self._stall_s, is_up=self.is_up):
                    self._lose(with_notes(RankLost(f"{begun.name} {silence}"), self.reports()), on_lost)

    def _lose(self, error: Exception, on_lost: OnLost) -> None:
        """Kill all ranks and report why; the step of rank 0 that waits for them then fails, or its process is
        killed.
        """
        if self.lost is None:
            self.lost = error
            on_lost(error)
            self._kill()
            end_by_force()
            raise error

    def _kill(self) -> None:
        for each in self._begun:
            each.kill()

    async def _until(self, holds: Callable[[], bool]) -> None:
        while not holds():  # noqa: ASYNC110  # once in the life of a replica
            await trio.sleep(0.005)
