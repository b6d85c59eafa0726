"""The ranks of a replica beside rank 0: processes that begin with it, are watched by it, and end with it.

Law: when one of them fails, dies or stalls, all are killed, and it is named. A rank that waits for the dead
one in a collective is thereby let go, or is killed itself: nobody waits for ever.
"""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import trio

from actors.config import ConfigError
from actors.engine.reports import ActorReport
from actors.kernel.actor import Actor, ActorDied, Ref
from actors.kernel.clock import now_s
from actors.messages import Batch, Interrupt, Load
from runtime.wire.frames import WireError
from runtime.wire.link import Link
from runtime.worker.life import PULSE_S, end_by_force, killed_loading
from runtime.worker.messages import WORKER_MESSAGES, CoreEnded, CoreFailed, Pulse
from runtime.worker.place import Begun, Place

LOOK_S = PULSE_S / 2
START_S = 60.0
"""A rank may be silent for so long while it loads: what loads a model may hold its interpreter."""
TELL_S = 1.0
"""How long a core that has crashed waits to learn whether a rank was the cause."""
LEAVE_S = 2.0
"""How long a rank may take to end when its Runner has been hung up on."""


OnLost = Callable[[Exception], None]
Told = Pulse | CoreEnded | CoreFailed


class RankLost(Exception):
    """A rank failed, died or stalled; the message names it, the notes say where or what it was doing."""


class RankDoor(Actor[Told]):
    """What a rank tells rank 0 of itself, remembered."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.actors: tuple[ActorReport, ...] = ()
        self.heard_s = now_s()
        self.num_silent = 0
        """How often the watchdog has looked since."""
        self.end: CoreEnded | CoreFailed | None = None

    def handle(self, message: Told) -> None:
        match message:
            case Pulse():
                self.actors, self.heard_s, self.num_silent = message.actors, now_s(), 0
            case CoreEnded() | CoreFailed():
                self.end = message
            case _:
                self.unknown(message)


class Ranks:
    """Ranks 1 to `count` - 1 of a replica, which begin at `place`. A rank alone has none beside it.

    One that is silent for `stall_s` is taken for stalled.
    """

    def __init__(
        self, replica: int, count: int = 1, place: Place | None = None, stall_s: float = START_S
    ) -> None:
        assert place is not None or count == 1, "ranks begin somewhere"
        self._replica, self._count, self._place, self._stall_s = replica, count, place, stall_s
        self._doors: list[RankDoor] = []
        self._begun: list[Begun] = []
        self._num_linked = 0
        self._ending = False
        self.is_up = False
        """Whether all have loaded."""
        self.lost: Exception | None = None
        """Which of them ended the replica, if one has."""

    def reports(self) -> tuple[ActorReport, ...]:
        """What their actors were doing when they last gave a sign of life."""
        return tuple(each for door in self._doors for each in door.actors)

    @asynccontextmanager
    async def running(self, on_lost: OnLost) -> AsyncIterator[list[Ref[Batch | Interrupt | Load]]]:
        """The addresses of their Runners, while they run. `on_lost` is told of the one that is lost, at once.

        Inside, what waits for an answer of a rank is cancelled when one is lost; RankLost is raised then.
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

    async def _begin(
        self, number: int, nursery: trio.Nursery, on_lost: OnLost
    ) -> Ref[Batch | Interrupt | Load]:
        """A rank's Runner, of a process that has begun."""
        assert self._place is not None
        try:
            begun = await self._place.begin(number)
        except WireError as error:
            raise RankLost(f"rank {number} could not be reached: {error}") from error
        door = RankDoor(f"door-{self._replica}.{number}")
        self._begun.append(begun)
        self._doors.append(door)
        link = Link(begun.connected, WORKER_MESSAGES, begun.name)
        link.export(door)
        hold = door.ref("ranks")
        await nursery.start(door.live)
        nursery.start_soon(self._carry, link, begun, door, hold, on_lost)
        try:
            runner: Ref[Batch | Interrupt | Load] = await link.open(
                f"runner-{self._replica}.{number}", f"executor-{self._replica}"
            )
        except ActorDied as error:
            raise RankLost(f"{begun.name} cannot be reached: {error}") from error
        return runner

    async def _carry(
        self, link: Link, begun: Begun, door: RankDoor, hold: Ref[Told], on_lost: OnLost
    ) -> None:
        """Carry messages until the link ends; raises RankLost if it should not have."""
        self._num_linked += 1
        await link.run()
        self._num_linked -= 1
        hold.close()
        if self._ending or isinstance(door.end, CoreEnded):
            return
        if door.end is None:
            how = await begun.ended()
            killed = None if self.is_up else killed_loading(begun.name, how)
            self._lose(killed or RankLost(f"{begun.name} {how}"), on_lost)
        elif door.end.is_refusal:
            self._lose(ConfigError(door.end.cause), on_lost)
        else:
            error = RankLost(f"{begun.name} failed: {door.end.cause}")
            for note in door.end.notes:
                error.add_note(note.strip())
            self._lose(error, on_lost)

    async def _watch(self, on_lost: OnLost) -> None:
        """Raise RankLost when a rank gives no sign of life."""
        while True:
            await trio.sleep(LOOK_S)
            limit_s = self._stall_s if self.is_up else max(self._stall_s, START_S)
            for begun, door in zip(self._begun, self._doors, strict=True):
                door.num_silent += 1
                if door.num_silent * LOOK_S > limit_s:
                    error = RankLost(f"{begun.name} gave no sign of life for {now_s() - door.heard_s:.1f} s")
                    for each in self.reports():
                        error.add_note(str(each))
                    self._lose(error, on_lost)

    def _lose(self, error: Exception, on_lost: OnLost) -> None:
        """Kill all ranks, and say why: a step of rank 0 that waits for them ends, or this process does."""
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
