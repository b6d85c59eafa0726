"""Door process: HTTP, in front of a graph at the other end of a link."""

import socket
from functools import partial
from typing import Protocol

import trio

from sundog.actors.api.in_flight import AnswerControl
from sundog.actors.config import ConfigError
from sundog.actors.kernel.actor import Actor, Handled, Ref, Reply, answer
from sundog.runtime.doors.messages import (
    DOOR_MESSAGES,
    CannotListen,
    Deltas,
    Number,
    Order,
    Ready,
    Stop,
    ToDoor,
    ToServer,
)
from sundog.runtime.doors.remote import LinkedServer, Streams
from sundog.runtime.wire.handshake import shake_hands
from sundog.runtime.wire.link import Link
from sundog.runtime.worker.clock import ServerClock, offset_s
from sundog.runtime.worker.life import until_gone


class DoorReceiver(Actor[ToDoor]):
    """Address at which the server reaches this door."""

    def __init__(self, streams: Streams, stop: trio.Event, nursery: trio.Nursery) -> None:
        super().__init__("door-receiver")
        self._streams = streams
        self._stop = stop
        self._nursery = nursery
        self._control: AnswerControl | None = None
        """Control of this door's own answers, once it is open."""
        self.remote: LinkedServer | None = None

    def obey_at(self, control: AnswerControl) -> None:
        """Use `control` for orders from now on: the door is open."""
        self._control = control

    def handle(self, message: ToDoor) -> Handled:
        match message:
            case Deltas():
                for part in message.parts:
                    self._streams.put(part.stream, part.delta)
            case Order():
                reply: Reply[Number] = Reply()
                self._nursery.start_soon(self._obey, message, reply)
                return answer(message, reply)
            case Stop():
                self._stop.set()
            case _:
                self.unknown(message)
        return None

    async def _obey(self, order: Order, reply: Reply[Number]) -> None:
        number, control = 0, self._control
        if control is not None:
            match order.what:
                case "abort":
                    number = await control.abort(order.answer_ids)
                case "hold":
                    await control.hold()
                case "release":
                    await control.release()
                case "wait":
                    await control.until_empty()
                case "keys" if self.remote is not None:
                    await self.remote.keys()
                case "count":
                    number = await control.num_under_way()
        reply.set(Number(number))


class OpenDoor(Protocol):
    """Serves HTTP until stopped; reports its port. Raises ConfigError if it cannot listen."""

    async def __call__(self, remote: LinkedServer, *, task_status: trio.TaskStatus[int]) -> None: ...


def run_door(open_door: OpenDoor, number: int, connected: socket.socket) -> None:
    """Run a door process from its connection to its end."""
    trio.run(partial(shake_hands, connected, DOOR_MESSAGES, b"", called=True))
    trio.run(partial(_door, open_door, number, connected), clock=ServerClock(offset_s(connected)))


async def _door(open_door: OpenDoor, number: int, connected: socket.socket) -> None:
    link, streams, stop = Link(connected, DOOR_MESSAGES, "the server"), Streams(), trio.Event()
    async with trio.open_nursery() as nursery:
        receiver = DoorReceiver(streams, stop, nursery)
        link.export(receiver)
        hold = receiver.ref("itself")
        await nursery.start(receiver.live)
        nursery.start_soon(until_gone, link, nursery.cancel_scope)
        server: Ref[ToServer] = await link.open(f"door-session-{number}", "door")
        receiver.remote = remote = LinkedServer(server, streams, stop, receiver.obey_at)
        async with trio.open_nursery() as serving:
            try:
                server.tell(Ready(await serving.start(partial(open_door, remote))))
            except ConfigError as error:
                server.tell(CannotListen(str(error)))
        await link.flush()
        hold.close()
        nursery.cancel_scope.cancel()
