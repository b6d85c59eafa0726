"""A rank's process: one Runner behind a link to the process of rank 0, whose Executor drives it.

It ends when the Executor hangs up, when its Runner crashes, and when rank 0 is gone.
"""

import socket
from collections.abc import Callable, Coroutine
from functools import partial

import trio

from actors.engine.backend import Backend
from actors.engine.crash import root_cause
from actors.engine.engine_core import CLOSE_S
from actors.engine.executor import Runner
from actors.engine.reports import report
from actors.kernel.actor import Ref, Reply
from actors.kernel.clock import run_blocking
from actors.messages import Batch, Capacity, Interrupt, Load, StepResult
from runtime.wire.handshake import shake_hands
from runtime.wire.link import Link
from runtime.worker.clock import ServerClock, offset_s
from runtime.worker.life import PULSE_S, until_gone
from runtime.worker.messages import WORKER_MESSAGES, CoreEnded, Heard, Pulse, failed


class Late:
    """A backend that is made when it is asked to load; `on_load` is called before."""

    def __init__(self, make: Callable[[], Backend], on_load: Callable[[], None]) -> None:
        self._make, self._on_load = make, on_load
        self._made: Backend | None = None

    async def load(self) -> Capacity:
        self._on_load()
        self._made = await run_blocking(self._make)
        return await self._made.load()

    def execute(self, batch: Batch) -> Coroutine[object, object, StepResult] | Reply[StepResult]:
        if self._made is None:
            raise RuntimeError("execute before load")
        return self._made.execute(batch)

    async def close(self) -> None:
        if self._made is not None:
            await self._made.close()


def run_rank(
    new_backend: Callable[[int], Backend], replica: int, number: int, connected: socket.socket
) -> None:
    """The life of a rank's process: rank 0 shakes hands, sets its clock, and opens its Runner."""
    trio.run(partial(shake_hands, connected, WORKER_MESSAGES, b"", called=True))
    clock = ServerClock(offset_s(connected))
    trio.run(partial(_rank, new_backend, replica, number, connected), clock=clock)


async def _rank(
    new_backend: Callable[[int], Backend], replica: int, number: int, connected: socket.socket
) -> None:
    link, name = Link(connected, WORKER_MESSAGES, "rank 0"), f"runner-{replica}.{number}"
    held: list[Ref[Batch | Interrupt | Load]] = []
    backend = Late(partial(new_backend, replica), lambda: held.pop().close())
    runner = Runner(name, backend)
    held.append(runner.ref("itself"))  # until the Executor, which then has an address, asks it to load
    link.export(runner)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(until_gone, link, nursery.cancel_scope)
        door: Ref[Heard] = await link.open(f"door-{replica}.{number}", name, counted=False)
        nursery.start_soon(_beat, door, runner)
        try:
            try:
                await runner.live()
            finally:
                with trio.move_on_after(CLOSE_S, shield=True):
                    await backend.close()
            door.tell(CoreEnded())
        except Exception as error:  # noqa: BLE001  # whatever it is, rank 0 says it
            door.tell(failed(root_cause(error)))
        await link.flush()
        nursery.cancel_scope.cancel()


async def _beat(door: Ref[Heard], runner: Runner) -> None:
    while True:
        door.tell(Pulse(report([runner])))
        await trio.sleep(PULSE_S)
