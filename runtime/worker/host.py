"""Engine process: an engine core behind a link.

It ends when the core does, and when the server is gone. Its clock is the server's, so that times mean the
same on both sides.
"""

import logging
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from typing import Never

import trio

from sundog.actors.config import EngineConfig
from sundog.actors.core.policies import Fcfs
from sundog.actors.engine.backend import Backend
from sundog.actors.engine.crash import root_cause
from sundog.actors.engine.engine_core import run_engine_core
from sundog.actors.engine.reports import report
from sundog.actors.kernel.actor import Actor, ActorDied, Handled, Ref, answer
from sundog.actors.messages import Capacity, EngineRefs
from sundog.runtime.kv_transfer.port import KvPort, MovesKv
from sundog.runtime.wire.handshake import shake_hands
from sundog.runtime.wire.link import Link
from sundog.runtime.worker.clock import ServerClock, offset_s
from sundog.runtime.worker.life import PULSE_S, until_gone
from sundog.runtime.worker.messages import WORKER_MESSAGES, CoreEnded, Logged, Pulse, Start, ToMonitor, failed
from sundog.runtime.worker.ranks import Ranks


class Host(Actor[Start]):
    """Actor that answers once the core is up, and keeps it alive until the server has its addresses."""

    def __init__(self, replica: int) -> None:
        super().__init__(f"host-{replica}")
        self._hold = self.ref("itself")
        """Ref that keeps the core from ending before the server has its addresses."""
        self._engine: EngineRefs | None = None
        self._is_up = trio.Event()

    def up(self, engine: EngineRefs) -> None:
        """Set the core to answer `Start` with, which now runs."""
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

    def __init__(self, monitor: Ref[ToMonitor]) -> None:
        self._monitor = monitor

    def ref(self, sender: str, *, counted: bool = True) -> Ref[ToMonitor]:
        return self._monitor


class LogToServer(logging.Handler):
    """Log handler that sends every record to the monitor, from any thread, in order."""

    def __init__(self, monitor: Ref[ToMonitor]) -> None:
        super().__init__()
        self._monitor = monitor
        self._token = trio.lowlevel.current_trio_token()

    def emit(self, record: logging.LogRecord) -> None:
        said = Logged(record.name, record.levelno, self.format(record))
        with suppress(trio.RunFinishedError):
            self._token.run_sync_soon(self._tell, said)

    def _tell(self, said: Logged) -> None:
        with suppress(ActorDied):  # nobody is there to read it
            self._monitor.tell(said)


@contextmanager
def logs_told(monitor: Ref[ToMonitor]) -> Iterator[None]:
    """Send everything logged in this process to the server."""
    handler = LogToServer(monitor)
    logging.getLogger().addHandler(handler)
    try:
        yield
    finally:
        logging.getLogger().removeHandler(handler)


def run_host(
    config: EngineConfig,
    new_backend: Callable[[int], Backend],
    replica: int,
    connected: socket.socket,
    ranks: Ranks | None = None,
    *,
    tells_logs: bool = False,
) -> None:
    """Run an engine process after the handshake with the server.

    `ranks` are the others of a shared model, of which this process computes rank 0. With `tells_logs` log
    records go to the server, because its stderr is not the server's.
    """
    clock, others = ServerClock(offset_s(connected)), ranks or Ranks(replica)
    trio.run(partial(_host, config, new_backend, replica, connected, others, tells_logs), clock=clock)


def run_fork(
    config: EngineConfig,
    new_backend: Callable[[int], Backend],
    replica: int,
    connected: socket.socket,
    ranks: Ranks | None = None,
) -> None:
    """Run the host in a forked process; no other process can reach its link, which needs no secret."""
    trio.run(partial(shake_hands, connected, WORKER_MESSAGES, b"", called=True))
    run_host(config, new_backend, replica, connected, ranks)


async def _host(
    config: EngineConfig,
    new_backend: Callable[[int], Backend],
    replica: int,
    connected: socket.socket,
    ranks: Ranks,
    tells_logs: bool,
) -> None:
    link, host = Link(connected, WORKER_MESSAGES, "the server"), Host(replica)
    link.export(host)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(until_gone, link, nursery.cancel_scope)
        monitor: Ref[ToMonitor] = await link.open(f"monitor-{replica}", f"host-{replica}", counted=False)
        await nursery.start(host.live)
        actors: list[Actor[Never]] = []
        nursery.start_soon(_beat, monitor, actors, ranks)

        def on_actors(started: Sequence[Actor[Never]]) -> None:
            actors.extend(started)
            for actor in started:
                link.export(actor)
            monitor.tell(Pulse(report(actors)))

        def on_up(engine: EngineRefs) -> None:
            ranks.is_up = True
            host.up(engine)

        try:
            with logs_told(monitor) if tells_logs else nullcontext():
                backend = await trio.to_thread.run_sync(new_backend, replica)
                if config.hands_over:
                    await _open_port(link, replica, backend, nursery)
                async with ranks.running(lambda lost: monitor.tell(failed(lost))) as runners:
                    await run_engine_core(
                        replica,
                        config,
                        [Reached(monitor)],
                        Fcfs(),
                        None,
                        [backend],
                        on_up,
                        on_actors,
                        runners,
                        monitor,
                    )
            monitor.tell(CoreEnded())
        except Exception as error:  # noqa: BLE001  # whatever it is, the server says it
            monitor.tell(failed(ranks.lost or root_cause(error)))
        await link.flush()
        nursery.cancel_scope.cancel()


async def _open_port(link: Link, replica: int, backend: Backend, nursery: trio.Nursery) -> None:
    assert isinstance(backend, MovesKv), "pools are of models that generate text"
    port = KvPort(f"kv-port-{replica}", backend)
    port.ref("itself")
    await nursery.start(port.live)
    link.export(port)


async def _beat(monitor: Ref[ToMonitor], actors: Sequence[Actor[Never]], ranks: Ranks) -> None:
    while True:
        monitor.tell(Pulse((*report(actors), *ranks.reports())))
        await trio.sleep(PULSE_S)
