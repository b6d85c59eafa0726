"""The door process: HTTP, in front of a graph that is at the other end of a link."""

import os
import socket
import threading
from functools import partial
from typing import Protocol

import trio

from actors.api.in_flight import Desk
from actors.config import ConfigError
from actors.kernel.actor import Actor, Handled, Ref, Reply, answer
from runtime.doors.far import Far, Streams
from runtime.doors.messages import DOOR_MESSAGES, Deltas, Failed, Number, Order, Ready, Stop, ToDoor, ToServer
from runtime.wire.handshake import shake_hands
from runtime.wire.link import Link
from runtime.worker.clock import ServerClock, offset_s

LEAVE_S = 5.0
"""How long a door may take to end when the server is gone."""


class Reception(Actor[ToDoor]):
    """What the server tells this door."""

    def __init__(self, streams: Streams, stop: trio.Event, nursery: trio.Nursery) -> None:
        super().__init__("reception")
        self._streams = streams
        self._stop = stop
        self._nursery = nursery
        self._desk: Desk | None = None
        """This door's own, once it is open."""
        self.far: Far | None = None

    def obey_at(self, desk: Desk) -> None:
        """The door is open."""
        self._desk = desk

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
        """In a task: it may take until the last answer has ended."""
        number, desk = 0, self._desk
        if desk is not None:
            match order.what:
                case "abort":
                    number = await desk.abort(order.answer_ids)
                case "hold":
                    await desk.hold()
                case "release":
                    await desk.release()
                case "wait":
                    await desk.until_empty()
                case "keys" if self.far is not None:
                    await self.far.keys()
                case "count":
                    number = await desk.num_under_way()
        reply.set(Number(number))


class OpenDoor(Protocol):
    """Serves HTTP until told to stop; reports its port. Raises ConfigError if it cannot listen."""

    async def __call__(self, far: Far, *, task_status: trio.TaskStatus[int]) -> None: ...


def run_door(open_door: OpenDoor, number: int, connected: socket.socket) -> None:
    """The life of a door process."""
    trio.run(partial(shake_hands, connected, DOOR_MESSAGES, b"", called=True))
    trio.run(partial(_door, open_door, number, connected), clock=ServerClock(offset_s(connected)))


async def _door(open_door: OpenDoor, number: int, connected: socket.socket) -> None:
    link, streams, stop = Link(connected, DOOR_MESSAGES, "the server"), Streams(), trio.Event()
    async with trio.open_nursery() as nursery:
        reception = Reception(streams, stop, nursery)
        link.export(reception)
        hold = reception.ref("itself")
        await nursery.start(reception.live)
        nursery.start_soon(_until_gone, link, nursery.cancel_scope)
        server: Ref[ToServer] = await link.open(f"doorman-{number}", "door")
        reception.far = far = Far(server, streams, stop, reception.obey_at)
        async with trio.open_nursery() as serving:
            try:
                server.tell(Ready(await serving.start(partial(open_door, far))))
            except ConfigError as error:
                server.tell(Failed(str(error)))
        await link.flush()
        hold.close()
        nursery.cancel_scope.cancel()


async def _until_gone(link: Link, scope: trio.CancelScope) -> None:
    """Carry frames; when the server is gone, so are its clients' answers."""
    await link.run()
    by_force = threading.Timer(LEAVE_S, os._exit, (1,))
    by_force.daemon = True
    by_force.start()
    scope.cancel()
