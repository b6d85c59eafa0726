"""Places where an actor may run, for the laws of the kernel: a test that takes `place` runs in each.

A place has a clock and a way to reach an actor. To add one, write a class with the same methods, and add it
to the fixture's parameters.
"""

import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import trio
import trio.testing

from sundog.actors.kernel.actor import Actor, Ref
from sundog.runtime.wire.link import Link
from sundog.runtime.wire.sockets import accept, connect, listen
from tests.actors.clerk import Note

SECRET = b"a secret of tests"
MESSAGES = (Note, int)
"""What crosses; an answer may be a number."""


class Place(Protocol):
    """Where an actor runs."""

    tick_s: float
    """A time that is long for this clock's actors, and short for whoever waits for the tests."""

    async def start(
        self, nursery: trio.Nursery, actor: Actor[Any], sender: str = "test", *, counted: bool = True
    ) -> Ref[Any]:
        """Start an actor; its address for `sender`."""
        ...

    async def address(self, actor: Actor[Any], sender: str, *, counted: bool = True) -> Ref[Any]:
        """Another address of an actor that was started."""
        ...

    async def settle(self) -> None:
        """Wait until what was sent has arrived."""
        ...


@dataclass(frozen=True)
class InProcess:
    """The actor is a task of the run that sends to it."""

    tick_s: float

    async def start(
        self, nursery: trio.Nursery, actor: Actor[Any], sender: str = "test", *, counted: bool = True
    ) -> Ref[Any]:
        ref = actor.ref(sender, counted=counted)
        await nursery.start(actor.live, name=actor.name)
        return ref

    async def address(self, actor: Actor[Any], sender: str, *, counted: bool = True) -> Ref[Any]:
        return actor.ref(sender, counted=counted)

    async def settle(self) -> None:
        """It has: a message is handled where it is sent."""


@dataclass(frozen=True)
class OverSocket:
    """The actor is reached by a connection, as in another process."""

    kind: str
    tick_s: float = 0.03

    async def start(
        self, nursery: trio.Nursery, actor: Actor[Any], sender: str = "test", *, counted: bool = True
    ) -> Ref[Any]:
        hold = actor.ref("place")
        ref = await nursery.start(self._reach, actor, sender, counted)
        await nursery.start(actor.live, name=actor.name)
        hold.close()
        assert isinstance(ref, Ref)
        return ref

    async def address(self, actor: Actor[Any], sender: str, *, counted: bool = True) -> Ref[Any]:
        return actor.ref(sender, counted=counted)

    async def settle(self) -> None:
        """Until neither end has anything to do, however long the machine takes."""
        await trio.testing.wait_all_tasks_blocked(self.tick_s / 10)

    async def _reach(
        self, actor: Actor[Any], sender: str, counted: bool, *, task_status: trio.TaskStatus[Ref[Any]]
    ) -> None:
        """Both ends of a connection, until the actor's mailbox is closed and its last words are said."""
        with trio.CancelScope(shield=True) as scope:
            async with trio.open_nursery() as nursery, linked(self.kind) as (near, far):
                far.export(actor)
                nursery.start_soon(near.run)
                nursery.start_soon(far.run)
                ref = await near.open(actor.name, sender, counted=counted)
                task_status.started(ref)
                while not actor.mailbox.is_closed:
                    await trio.sleep(self.tick_s / 4)
                await trio.sleep(self.tick_s)
                scope.cancel()


@asynccontextmanager
async def linked(kind: str) -> AsyncIterator[tuple[Link, Link]]:
    """Both ends of a connection of this kind, after the handshake."""
    with tempfile.TemporaryDirectory() as folder:
        address = Path(folder, "socket") if kind == "unix" else ("127.0.0.1", 0)
        with listen(address, SECRET) as listening:
            address = address if kind == "unix" else listening.getsockname()
            ends: dict[str, Link] = {}

            async def be_called() -> None:
                ends["far"] = await accept(listening, MESSAGES, SECRET, "the near end")

            async with trio.open_nursery() as nursery:
                nursery.start_soon(be_called)
                ends["near"] = await connect(address, MESSAGES, SECRET, "the far end")
            try:
                yield ends["near"], ends["far"]
            finally:
                for link in ends.values():
                    link.end("the test is over")


PLACES: dict[str, Place] = {
    "virtual": InProcess(tick_s=1.0),
    "wall": InProcess(tick_s=0.02),
    "unix": OverSocket("unix"),
    "tcp": OverSocket("tcp"),
}
"""Beside them there is a process of Ray, for the laws that do not look inside the actor's own."""
