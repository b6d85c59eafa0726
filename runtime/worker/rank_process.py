"""Process of a rank: forked from that of rank 0, before it runs an event loop or computes anything.

One Runner lives there behind a link to rank 0, whose Executor drives it. The process ends when the Executor
hangs up, when its Runner crashes, and when rank 0 is gone.
"""

import os
import signal
import socket
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

import trio

from sundog.actors.config import EngineConfig
from sundog.actors.engine.backend import Backend
from sundog.actors.engine.crash import root_cause
from sundog.actors.engine.engine_core import CLOSE_S
from sundog.actors.engine.executor import Runner
from sundog.actors.engine.reports import report
from sundog.actors.kernel.actor import Ref, Reply
from sundog.actors.kernel.clock import run_blocking
from sundog.actors.messages import Batch, Capacity, StepResult, ToRunner
from sundog.runtime.ranks.rank import RankPlace, first_of
from sundog.runtime.wire.handshake import shake_hands
from sundog.runtime.wire.link import Link
from sundog.runtime.worker.clock import ServerClock, offset_s, set_clock
from sundog.runtime.worker.life import PULSE_S, forked, how_it_ended, until_gone
from sundog.runtime.worker.messages import WORKER_MESSAGES, CoreEnded, Pulse, ToMonitor, failed
from sundog.runtime.worker.ranks import Ranks

LEAVE_S = 2.0

NewBackend = Callable[[RankPlace], Callable[[int], Backend]]
"""Function that takes a replica's rank and returns the function that makes its backend."""
RunHost = Callable[[EngineConfig, Callable[[int], Backend], int, socket.socket, Ranks], None]
"""Main function of an engine process (`runtime/worker/host.py`)."""


class Late:
    """Backend that is not made before it has to load; `on_load` is called first."""

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
    """Run a rank's process: handshake with rank 0, set the clock, and export its Runner."""
    trio.run(partial(shake_hands, connected, WORKER_MESSAGES, b"", called=True))
    clock = ServerClock(offset_s(connected))
    trio.run(partial(_rank, new_backend, replica, number, connected), clock=clock)


async def _rank(
    new_backend: Callable[[int], Backend], replica: int, number: int, connected: socket.socket
) -> None:
    link, name = Link(connected, WORKER_MESSAGES, "rank 0"), f"runner-{replica}.{number}"
    held: list[Ref[ToRunner]] = []
    backend = Late(partial(new_backend, replica), lambda: held.pop().close())
    runner = Runner(name, backend)
    held.append(runner.ref("itself"))  # until the Executor, which then has an address, asks it to load
    link.export(runner)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(until_gone, link, nursery.cancel_scope)
        monitor: Ref[ToMonitor] = await link.open(f"monitor-{replica}.{number}", name, counted=False)
        nursery.start_soon(_beat, monitor, runner)
        try:
            try:
                await runner.live()
            finally:
                with trio.move_on_after(CLOSE_S, shield=True):
                    await backend.close()
            monitor.tell(CoreEnded())
        except Exception as error:  # noqa: BLE001  # whatever it is, rank 0 says it
            monitor.tell(failed(root_cause(error)))
        await link.flush()
        nursery.cancel_scope.cancel()


async def _beat(monitor: Ref[ToMonitor], runner: Runner) -> None:
    while True:
        monitor.tell(Pulse(report([runner])))
        await trio.sleep(PULSE_S)


@dataclass(slots=True)
class ForkedRank:
    """Process of a rank on this machine (`RunningProcess`); the kernel kills it when the process of rank 0
    dies.
    """

    number: int
    process: int
    connected: socket.socket
    how: str | None = None
    """How the process ended, in words; None if unknown."""

    @property
    def name(self) -> str:
        return f"rank {self.number} (process {self.process})"

    def kill(self) -> None:
        if self.how is None:
            with suppress(ProcessLookupError):
                os.kill(self.process, signal.SIGKILL)

    async def ended(self) -> str:
        with trio.move_on_after(LEAVE_S):
            while not self._has_ended():  # noqa: ASYNC110  # once in the life of a process
                await trio.sleep(0.005)
        if self.how is None:
            self.kill()
            self.how = how_it_ended(os.waitpid(self.process, 0)[1])  # noqa: ASYNC222  # it is dead
        return self.how

    def _has_ended(self) -> bool:
        if self.how is None:
            process, status = os.waitpid(self.process, os.WNOHANG)
            if process:
                self.how = how_it_ended(status)
        return self.how is not None


class RankLauncher:
    """Launcher of a replica's ranks (`Launcher`), which were forked when this was made."""

    def __init__(
        self, new_backend: NewBackend, replica: int, first: RankPlace, not_theirs: socket.socket
    ) -> None:
        self._ranks: list[ForkedRank] = []
        for number in range(1, first.count):
            ours, theirs = socket.socketpair()
            closed = [not_theirs, ours, *(each.connected for each in self._ranks)]
            process = _fork(new_backend(first.other(number)), replica, first, number, theirs, closed)
            theirs.close()
            self._ranks.append(ForkedRank(number, process, ours))

    async def begin(self, number: int) -> ForkedRank:
        """Return the rank of this number, after the handshake and with its clock set."""
        rank = self._ranks[number - 1]
        await shake_hands(rank.connected, WORKER_MESSAGES, b"", called=False)
        await set_clock(rank.connected, is_here=True)
        return rank

    def tend(self) -> None:
        """Do nothing: all ranks have been forked, and none is restarted."""


def run_shared(
    run: RunHost,
    config: EngineConfig,
    new_backend: NewBackend,
    count: int,
    stall_s: float,
    replica: int,
    connected: socket.socket,
) -> None:
    """Run an engine process whose model `count` ranks share: it is rank 0, and forks the others.

    `run` is the main function of rank 0, forked here or elsewhere.
    """
    first = first_of(count)
    launcher = RankLauncher(new_backend, replica, first, connected)
    run(config, new_backend(first), replica, connected, Ranks(replica, count, launcher, stall_s))


def _fork(
    new_backend: Callable[[int], Backend],
    replica: int,
    first: RankPlace,
    number: int,
    connected: socket.socket,
    closed: list[socket.socket],
) -> int:
    def live() -> None:
        for each in closed:
            each.close()
        assert first.listening is not None
        os.close(first.listening)
        run_rank(new_backend, replica, number, connected)

    return forked(f"sundog rank {replica}.{number}", live)
