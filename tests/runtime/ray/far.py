"""Test actor in a process of Ray, reached over TCP with a secret, for the laws of the kernel.

`OverRay` is a place (`tests/actors/places.py`). The test's own clerk is a mirror of the one there:
it has what that one says it handled, and passes on what the test does to it.
"""

import os
import secrets
import socket
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import ray
import trio

from sundog.actors.kernel.actor import Actor, ActorDied, Ref, Reply, answer
from sundog.actors.kernel.clock import Event
from sundog.runtime.ray.promises import answered
from sundog.runtime.wire.link import Link
from sundog.runtime.wire.sockets import accepted, connected, listen
from tests.actors.clerk import Clerk, Note, leaves

LOOPBACK = "127.0.0.1"


class Did(NamedTuple):
    """The clerk tells its mirror which note it handles, inside how many others."""

    note: Note
    depth: int


class Ended(NamedTuple):
    """The clerk tells its mirror that it has ended, and what it crashed with."""

    cause: str | None
    notes: tuple[str, ...]


class Do(NamedTuple):
    """The mirror asks the clerk's desk for something; answered once it is done."""

    what: str
    number: int = 0
    note: Note | None = None

    def answered_by(self, answer: int) -> "Do":
        """Names its answer, for a type checker."""
        return self


MESSAGES = (Note, int, Did, Ended, Do)


# --- there -----------------------------------------------------------------------------------------


class FarClerk(Clerk):
    """Says what it handles, if anybody wants to know."""

    mirror: Ref[Did | Ended] | None = None

    def handle(self, message: Note) -> Any:
        if self.mirror is not None:
            with suppress(ActorDied):
                self.mirror.tell(Did(message, self.depth + 1))
        return super().handle(message)


class Desk(Actor[Do]):
    """Does to the clerk what a test does to one beside it."""

    def __init__(self, clerk: FarClerk, hold: Ref[Any], scope: trio.CancelScope) -> None:
        super().__init__("desk")
        self._clerk, self._hold, self._scope = clerk, hold, scope

    def handle(self, message: Do) -> Any:
        clerk = self._clerk
        match message.what:
            case "let go":
                self._hold.close()
            case "go on":
                clerk.may_go_on.set()
            case "schedule" if message.note is not None:
                clerk.schedule(trio.current_time(), Event.TIMEOUT, message.note)
            case "cancel":
                self._scope.cancel()
        return answer(message, message.number)


class Host:
    """The actor of Ray: a process for clerks."""

    def process(self) -> int:
        """Its id."""
        return os.getpid()

    def live(self, name: str, capacity: int | None, port: int, secret: bytes, is_mirrored: bool) -> list[int]:
        """The life of a clerk; the numbers of what it handled."""
        return trio.run(partial(_live, name, capacity, port, secret, is_mirrored))


async def _live(name: str, capacity: int | None, port: int, secret: bytes, is_mirrored: bool) -> list[int]:
    link = Link(await connected((LOOPBACK, port), MESSAGES, secret), MESSAGES, "the test")
    clerk = FarClerk(name, capacity=capacity)
    clerk.itself = clerk.ref("itself", counted=False)
    hold, scope = clerk.ref("place"), trio.CancelScope()
    link.export(clerk)
    async with trio.open_nursery() as nursery:
        if is_mirrored:
            link.export(desk := Desk(clerk, hold, scope))
            desk_hold = desk.ref("itself")
            await nursery.start(desk.live)
        nursery.start_soon(_carry, link, hold)
        ended = Ended(None, ())
        if is_mirrored:
            clerk.mirror = await link.open("mirror", name, counted=False)
        try:
            with scope:
                await clerk.live()
        except Exception as error:  # noqa: BLE001  # the mirror raises it
            (bug,) = leaves(error)
            ended = Ended(type(bug).__name__, tuple(bug.__notes__))
        if clerk.mirror is not None:
            with suppress(ActorDied):
                clerk.mirror.tell(ended)
            await link.flush()
            desk_hold.close()
            with trio.move_on_after(10):
                while link.why_ended is None:  # until the test hangs up
                    await trio.sleep(0.01)
        nursery.cancel_scope.cancel()
    return [note.number for note in clerk.handled]


async def _carry(link: Link, hold: Ref[Any]) -> None:
    """Until the connection is cut; then nobody holds the clerk."""
    await link.run()
    hold.close()


# --- here ------------------------------------------------------------------------------------------


class GoesOn:
    """The event for which a clerk there waits."""

    def __init__(self, desk: Ref[Do]) -> None:
        self._desk = desk

    def set(self) -> None:
        self._desk.tell(Do("go on"))


class Mirror(Actor[Did | Ended]):
    """Hears of the clerk there, and does the same to the test's own."""

    def __init__(self, clerk: Clerk) -> None:
        super().__init__("mirror")
        self._clerk = clerk
        self.end: Ended | None = None
        self.has_ended = trio.Event()

    def handle(self, message: Did | Ended) -> None:
        match message:
            case Did(note, depth):
                self._clerk.handled.append(note)
                self._clerk.most_deep = max(self._clerk.most_deep, depth)
                if note.does == "later":
                    self._clerk.later.append(Reply())
            case Ended():
                self.end = message
                self.has_ended.set()


@dataclass
class OverRay:
    """The actor lives in a process of Ray (`Place`)."""

    host: Any
    """The actor of Ray."""
    tick_s: float = 0.4
    _desks: list[Ref[Do]] = field(default_factory=list)
    _links: dict[str, Link] = field(default_factory=dict)

    async def start(
        self, nursery: trio.Nursery, actor: Actor[Any], sender: str = "test", *, counted: bool = True
    ) -> Ref[Any]:
        assert isinstance(actor, Clerk)
        mirror = Mirror(actor)
        desk = await nursery.start(self._reach, actor, mirror)
        ref = await self.address(actor, sender, counted=counted)
        await desk.ask(Do("let go"))
        nursery.start_soon(_life, mirror, desk, name=actor.name)
        return ref

    async def address(self, actor: Actor[Any], sender: str, *, counted: bool = True) -> Ref[Any]:
        return await self._links[actor.name].open(actor.name, sender, counted=counted)

    async def settle(self) -> None:
        """What a desk has answered comes after all that was said before, in both directions."""
        for desk in self._desks:
            with suppress(ActorDied):
                await desk.ask(Do("nothing"))

    async def _reach(self, clerk: Clerk, mirror: Mirror, *, task_status: trio.TaskStatus[Ref[Do]]) -> None:
        """The link to a clerk there, until that has ended, whoever is cancelled here."""
        with trio.CancelScope(shield=True):
            async with trio.open_nursery() as nursery:
                link, promise = await met(self.host, clerk.name, clerk.mailbox.capacity, is_mirrored=True)
                self._links[clerk.name] = link
                link.export(mirror)
                hold = mirror.ref("place")
                await nursery.start(mirror.live)
                nursery.start_soon(_run, link, mirror)
                desk: Ref[Do] = await link.open("desk", "place")
                self._desks.append(desk)
                clerk.may_go_on = GoesOn(desk)  # type: ignore[assignment]
                clerk.schedule = lambda time_s, event, note: desk.tell(Do("schedule", 0, note))  # type: ignore
                task_status.started(desk)
                await mirror.has_ended.wait()
                hold.close()
                link.end("the test is over")
                with suppress(ray.exceptions.RayError):  # the process may have been killed
                    await answered(promise)
                nursery.cancel_scope.cancel()


async def _run(link: Link, mirror: Mirror) -> None:
    await link.run()
    mirror.has_ended.set()


async def _life(mirror: Mirror, desk: Ref[Do]) -> None:
    """The life of the clerk there, as a task beside the test."""
    try:
        await mirror.has_ended.wait()
    except trio.Cancelled:
        desk.tell(Do("cancel"))
        raise
    if mirror.end is not None and mirror.end.cause is not None:
        assert mirror.end.cause == "ZeroDivisionError"
        error = ZeroDivisionError("there")
        for note in mirror.end.notes:
            error.add_note(note)
        raise error


async def met(host: Any, name: str, capacity: int | None, *, is_mirrored: bool) -> tuple[Link, Any]:
    """The link to a new clerk there, and the promise of what it will have handled."""
    connected, promise = await met_socket(host, name, capacity, is_mirrored=is_mirrored)
    return Link(connected, MESSAGES, "the process of Ray"), promise


async def met_socket(
    host: Any, name: str, capacity: int | None, *, is_mirrored: bool
) -> tuple[socket.socket, Any]:
    """The same before a link is made of it."""
    secret = secrets.token_bytes(32)
    with listen((LOOPBACK, 0), secret) as listening:
        promise = host.live.remote(name, capacity, listening.getsockname()[1], secret, is_mirrored)
        with trio.fail_after(120):
            return await accepted(listening, MESSAGES, secret), promise


def new_host() -> Any:
    """A process of Ray that several clerks may live in."""
    return ray.remote(Host).options(num_cpus=0, max_concurrency=8).remote()
