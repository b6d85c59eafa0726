"""Server's side of an engine core in a process of its own: start, watch, and end.

The process may end at any moment, or hang. Either is a crash of its engine (`docs/fates.md`).
"""

import logging
from collections.abc import Callable, Sequence

import trio

from sundog.actors.config import ConfigError
from sundog.actors.engine.backend import Listener
from sundog.actors.engine.reports import ActorReport
from sundog.actors.kernel.actor import ActorDied, Ref, Tap
from sundog.actors.messages import EngineRefs
from sundog.runtime.kv_transfer.mover import KvMover
from sundog.runtime.wire.frames import WireError
from sundog.runtime.wire.link import Link
from sundog.runtime.worker.forks import ForkServerDied
from sundog.runtime.worker.life import killed_loading
from sundog.runtime.worker.messages import WORKER_MESSAGES, CoreFailed, Start
from sundog.runtime.worker.supervision import (
    LOOK_S,
    Launcher,
    ProcessMonitor,
    RunningProcess,
    error_of,
    with_notes,
)

log = logging.getLogger("sundog.loading")

STEP_S = 300.0
"""Seconds after which an actor that handles one message is stalled; vLLM's limit for a step."""
AGAIN_S = 1.0
"""Seconds before another process is started in place of one without a handshake."""
LOAD_S = 600.0
"""Seconds for a process to become ready; vLLM's limit."""


class EngineCrashed(Exception):
    """Raised if the core in an engine process crashed; the notes have the place."""


class EngineProcessDied(Exception):
    """Raised if an engine process ended without giving a reason."""


class EngineStalled(Exception):
    """Raised if an engine process, or one of its actors, does not respond; the notes say what each was
    doing.
    """


class EngineProcess:
    """Core of a replica in a process of its own (`RemoteCore`).

    A process that is silent for `stall_s` counts as stalled, and is ended; so is one that is not ready, with
    all its ranks, `load_s` after its start. Between pools a `mover` reaches the blocks of its cache.
    """

    def __init__(
        self,
        replica: int,
        launcher: Launcher,
        stall_s: float,
        load_s: float = LOAD_S,
        tap: Tap | None = None,
        mover: KvMover | None = None,
    ) -> None:
        self._replica = replica
        self._launcher = launcher
        self._stall_s, self._load_s = stall_s, load_s
        self._tap, self._mover = tap, mover
        self._monitor: ProcessMonitor | None = None
        self._is_up = self._has_been_up = False

    def reports(self) -> Sequence[ActorReport]:
        """Return the last reports of its actors, and of those of its ranks."""
        return () if self._monitor is None else self._monitor.actors

    async def run_core(self, listeners: Sequence[Listener], on_up: Callable[[EngineRefs], None]) -> None:
        """Run the process to its end. Raises the cause, unless it ended because nobody uses the core any
        more.
        """
        begun = await self._begun()
        name = f"scheduler-{self._replica}"
        self._is_up = False
        refs = [each.ref(name, counted=False) for each in listeners]
        monitor = self._monitor = ProcessMonitor(f"monitor-{self._replica}", refs)
        try:
            why = await self._run_link(begun, monitor, on_up)
        finally:
            with trio.CancelScope(shield=True):
                if monitor.end is None:
                    begun.kill()
                how = await begun.ended()
        match monitor.end:
            case None:
                killed = None if self._is_up else killed_loading(begun.name, how)
                raise killed or EngineProcessDied(f"{begun.name} {how}; {why}")
            case CoreFailed():
                raise error_of(monitor.end, EngineCrashed)

    async def _begun(self) -> RunningProcess:
        """Start a process, and another if the handshake is not completed in time, as on a busy machine.

        Raises ConfigError after `load_s`, or if no process can start. If the engine has been up before,
        raises EngineProcessDied, after which the supervisor tries again.
        """
        begin_s = trio.current_time()
        while True:
            try:
                return await self._launcher.begin(self._replica)
            except ForkServerDied as error:
                raise ConfigError(f"no engine process can begin: {error}") from error
            except WireError as error:
                if self._has_been_up:
                    raise EngineProcessDied(f"the engine process could not be reached: {error}") from error
                if trio.current_time() - begin_s > self._load_s:
                    limit = f"within {self._load_s:g} s: give it longer by --load-timeout"
                    raise ConfigError(f"no engine process could be reached {limit} ({error})") from None
                log.warning("an engine process could not be reached (%s): another begins", error)
            await trio.sleep(AGAIN_S)

    async def _run_link(
        self, begun: RunningProcess, monitor: ProcessMonitor, on_up: Callable[[EngineRefs], None]
    ) -> str:
        link = Link(begun.connected, WORKER_MESSAGES, begun.name)
        link.export(monitor)
        hold = monitor.ref("engine-process")
        async with trio.open_nursery() as nursery:
            await nursery.start(monitor.live)
            nursery.start_soon(self._start, link, monitor, on_up)
            nursery.start_soon(self._watch, monitor, begun.name)
            await link.run()
            hold.close()
            nursery.cancel_scope.cancel()
        return f"the link ended as {link.why_ended}"

    async def _start(self, link: Link, monitor: ProcessMonitor, on_up: Callable[[EngineRefs], None]) -> None:
        replica, tap = self._replica, self._tap
        try:
            host: Ref[Start] = await link.open(f"host-{replica}", "engine-process")
            capacity = await host.ask(Start())
            scheduler = await link.open(f"scheduler-{replica}", "router", tap=tap)
            manager = await link.open(f"kv-cache-manager-{replica}", "router", tap=tap)
            if self._mover is not None:
                port = await link.open(f"kv-port-{replica}", self._mover.name, counted=False)
                self._mover.connect(replica, port)
        except ActorDied as error:
            return link.end(f"its core cannot be reached: {error}")
        host.close()
        self._is_up = self._has_been_up = True
        on_up(EngineRefs(scheduler, manager, capacity, monitor.running))

    async def _watch(self, monitor: ProcessMonitor, name: str) -> None:
        """Raise EngineStalled if the process, or an actor in it, hangs.

        Raises ConfigError if the process does not become ready.
        """
        num_looks = 0
        while True:
            await trio.sleep(LOOK_S)
            num_looks += 1
            self._launcher.tend()
            if silence := monitor.silence(self._stall_s, is_up=self._is_up):
                raise with_notes(EngineStalled(f"the engine process {silence}"), monitor.actors)
            if not self._is_up and num_looks * LOOK_S > self._load_s:
                raise _not_ready(name, self._load_s, monitor)
            for each in monitor.actors:
                if self._is_up and each.doing is not None and each.for_s > STEP_S:
                    error = EngineStalled(f"the engine process does not go on: {each}")
                    raise with_notes(error, monitor.actors)


def _not_ready(name: str, load_s: float, monitor: ProcessMonitor) -> ConfigError:
    doing = "; ".join(str(each) for each in monitor.actors) or "it opened the model"
    return ConfigError(
        f"{name} was not ready within {load_s:g} s, and is ended: give it longer by --load-timeout. Its last"
        f" words: {doing}"
    )
