"""The engine process: an engine core behind a link.

It ends when the core does, and when the server is gone. Its clock is the server's, so that times mean the
same on both sides.
"""

import os
import socket
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Never

import trio

from actors.actor import Actor, Handled, Ref, answer
from actors.config import ConfigError, EngineConfig
from actors.core.policies import Fcfs
from actors.engine.backend import Backend
from actors.engine.crash import block, root_cause, summary
from actors.engine.engine_core import run_engine_core
from actors.engine.reports import report
from actors.messages import Capacity, EngineRefs
from runtime.wire.handshake import shake_hands
from runtime.wire.link import Link
from runtime.worker.messages import WORKER_MESSAGES, CoreEnded, CoreFailed, Heard, Pulse, Start

PULSE_S = 0.5
LEAVE_S = 5.0
"""How long a step may go on when the server is gone; then the process ends by force."""


class ServerClock(trio.abc.Clock):
    """The clock of the server's run, which is `offset_s` ahead of the machine's."""

    def __init__(self, offset_s: float) -> None:
        self._offset_s = offset_s

    def start_clock(self) -> None:
        """It runs already."""

    def current_time(self) -> float:
        return self._offset_s + time.perf_counter()

    def deadline_to_sleep_time(self, deadline: float) -> float:
        return deadline - self.current_time()


def server_offset_s() -> float:
    """What a ServerClock needs; the machine's clock counts alike in all of its processes."""
    return trio.current_time() - time.perf_counter()


class Host(Actor[Start]):
    """Answers when the core is up, and holds it until the server has its addresses and hangs up here."""

    def __init__(self, replica: int) -> None:
        super().__init__(f"host-{replica}")
        self._hold = self.ref("itself")
        """Until it is asked."""
        self._engine: EngineRefs | None = None
        self._is_up = trio.Event()

    def up(self, engine: EngineRefs) -> None:
        """The core is up."""
        self._engine = engine
        self._is_up.set()

    def handle(self, message: Start) -> Handled:
        self._hold.close()
        return answer(message, self._start())

    async def closed(self) -> None:
        if self._engine is not None:
            self._engine.close()

    async def _start(self) -> Capacity:
        await self._is_up.wait()
        assert self._engine is not None
        return self._engine.capacity


class Reached:
    """The server's end as a listener of the core."""

    def __init__(self, door: Ref[Heard]) -> None:
        self._door = door

    def ref(self, sender: str, *, counted: bool = True) -> Ref[Heard]:
        return self._door


def run_host(
    config: EngineConfig, new_backend: Callable[[int], Backend], replica: int, connected: socket.socket
) -> None:
    """The life of an engine process; the first 32 bytes that come are the offset of its clock, in digits."""
    with connected.makefile("rb", buffering=0) as stream:
        offset_s = float(stream.read(32) or 0)
    trio.run(partial(_host, config, new_backend, replica, connected), clock=ServerClock(offset_s))


async def _host(
    config: EngineConfig, new_backend: Callable[[int], Backend], replica: int, connected: socket.socket
) -> None:
    await shake_hands(connected, WORKER_MESSAGES, b"", called=True)
    link, host = Link(connected, WORKER_MESSAGES, "the server"), Host(replica)
    link.export(host)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_until_gone, link, nursery.cancel_scope)
        door: Ref[Heard] = await link.open(f"door-{replica}", f"host-{replica}", counted=False)
        await nursery.start(host.live)
        actors: list[Actor[Never]] = []
        nursery.start_soon(_beat, door, actors)

        def on_actors(started: Sequence[Actor[Never]]) -> None:
            actors.extend(started)
            for actor in started:
                link.export(actor)
            door.tell(Pulse(report(actors)))

        try:
            backend = await trio.to_thread.run_sync(new_backend, replica)
            await run_engine_core(
                replica, config, [Reached(door)], Fcfs(), None, [backend], host.up, on_actors
            )
            door.tell(CoreEnded())
        except Exception as error:  # noqa: BLE001  # whatever it is, the server says it
            door.tell(_failed(root_cause(error)))
        await link.flush()
        nursery.cancel_scope.cancel()


async def _until_gone(link: Link, scope: trio.CancelScope) -> None:
    """Carry frames; when the server is gone, end what goes on here."""
    await link.run()
    by_force = threading.Timer(LEAVE_S, os._exit, (1,))
    by_force.daemon = True
    by_force.start()
    scope.cancel()


async def _beat(door: Ref[Heard], actors: Sequence[Actor[Never]]) -> None:
    while True:
        door.tell(Pulse(report(actors)))
        await trio.sleep(PULSE_S)


def _failed(error: BaseException) -> CoreFailed:
    if isinstance(error, ConfigError):
        return CoreFailed(str(error), (), is_refusal=True)
    return CoreFailed(summary(error), tuple(block(error).splitlines()), is_refusal=False)
