"""An engine core in a process of its own, as the server sees it: up, watched, and over when it is over.

The process may end at any moment, or stop without ending. Either is a crash of its engine (`docs/fates.md`).
"""

from collections.abc import Callable, Sequence

import trio

from actors.config import ConfigError
from actors.engine.backend import Listener
from actors.engine.reports import ActorReport
from actors.kernel.actor import Actor, ActorDied, Ref, Tap
from actors.kernel.clock import now_s
from actors.messages import EngineRefs, PolicyFailed, StepOutput
from runtime.wire.frames import WireError
from runtime.wire.link import Link
from runtime.worker.forks import ForkServerDied
from runtime.worker.life import PULSE_S, killed_loading
from runtime.worker.logs import log_again
from runtime.worker.messages import WORKER_MESSAGES, CoreEnded, CoreFailed, Heard, Logged, Pulse, Start
from runtime.worker.place import Begun, Place

LOOK_S = PULSE_S / 2
START_S = 60.0
"""A process may be silent for so long while it starts: what loads a model may hold its interpreter."""
STEP_S = 300.0
"""An actor that handles one message for so long is stalled; the same as vLLM's limit for a step."""
LOAD_S = 600.0
"""A process may take so long until it is ready; the same as vLLM's limit."""


class EngineCrashed(Exception):
    """The core in an engine process crashed; its notes say where."""


class EngineProcessDied(Exception):
    """An engine process ended, and did not say why."""


class EngineStalled(Exception):
    """An engine process, or an actor of it, does not go on; its notes say what each was doing."""


class Door(Actor[Heard]):
    """What an engine process tells: steps go to the listeners, the rest is remembered."""

    def __init__(self, replica: int, listeners: Sequence[Ref[StepOutput | PolicyFailed]]) -> None:
        super().__init__(f"door-{replica}")
        self._listeners = listeners
        self.actors: tuple[ActorReport, ...] = ()
        """What the actors there were doing when it last gave a sign of life."""
        self.heard_s = now_s()
        self.num_silent = 0
        """How often the watchdog has looked since: a server that stands still itself looks at nothing."""
        self.is_up = False
        self.end: CoreEnded | CoreFailed | None = None

    def handle(self, message: Heard) -> None:
        match message:
            case StepOutput() | PolicyFailed():
                for listener in self._listeners:
                    listener.tell(message)
            case Pulse():
                self.actors, self.heard_s, self.num_silent = message.actors, now_s(), 0
            case Logged():
                log_again(message)
            case CoreEnded() | CoreFailed():
                self.end = message
            case _:
                self.unknown(message)


class EngineProcess:
    """A replica's core in a process of its own (`RemoteCore`).

    A process that is silent for `stall_s` is taken for stalled, and ended; so is one that is not ready, with
    all its ranks, `load_s` after it has begun.
    """

    def __init__(
        self, replica: int, place: Place, stall_s: float, load_s: float = LOAD_S, tap: Tap | None = None
    ) -> None:
        self._replica = replica
        self._place = place
        self._stall_s, self._load_s = stall_s, load_s
        self._tap = tap
        self._door: Door | None = None

    def reports(self) -> Sequence[ActorReport]:
        """What its actors, and those of its ranks, were doing when it last gave a sign of life."""
        return () if self._door is None else self._door.actors

    async def run_core(self, listeners: Sequence[Listener], on_up: Callable[[EngineRefs], None]) -> None:
        """Run the process to its end. Raises what ended it, unless all had hung up on the core."""
        try:
            begun = await self._place.begin(self._replica)
        except WireError as error:
            raise EngineProcessDied(f"the engine process could not be reached: {error}") from error
        except ForkServerDied as error:
            raise ConfigError(f"no engine process can begin: {error}") from error
        name = f"scheduler-{self._replica}"
        door = self._door = Door(self._replica, [each.ref(name, counted=False) for each in listeners])
        try:
            why = await self._run_link(begun, door, on_up)
        finally:
            with trio.CancelScope(shield=True):
                if door.end is None:
                    begun.kill()
                how = await begun.ended()
        match door.end:
            case None:
                killed = None if door.is_up else killed_loading(begun.name, how)
                raise killed or EngineProcessDied(f"{begun.name} {how}; {why}")
            case CoreFailed():
                raise _error(door.end)

    async def _run_link(self, begun: Begun, door: Door, on_up: Callable[[EngineRefs], None]) -> str:
        """Carry messages until the link ends, and say why it did; raises EngineStalled."""
        link = Link(begun.connected, WORKER_MESSAGES, begun.name)
        link.export(door)
        hold = door.ref("engine-process")
        async with trio.open_nursery() as nursery:
            await nursery.start(door.live)
            nursery.start_soon(self._start, link, door, on_up)
            nursery.start_soon(self._watch, door, begun.name)
            await link.run()
            hold.close()
            nursery.cancel_scope.cancel()
        return f"the link ended as {link.why_ended}"

    async def _start(self, link: Link, door: Door, on_up: Callable[[EngineRefs], None]) -> None:
        """Wait until the core is up, and hand out its addresses."""
        replica, tap = self._replica, self._tap
        try:
            host: Ref[Start] = await link.open(f"host-{replica}", "engine-process")
            capacity = await host.ask(Start())
            scheduler = await link.open(f"scheduler-{replica}", "router", tap=tap)
            manager = await link.open(f"kv-cache-manager-{replica}", "router", tap=tap)
        except ActorDied as error:
            return link.end(f"its core cannot be reached: {error}")
        host.close()
        door.is_up = True
        on_up(EngineRefs(scheduler, manager, capacity))

    async def _watch(self, door: Door, name: str) -> None:
        """Raise EngineStalled when the process, or an actor of it, does not go on.

        Raises ConfigError if it does not get ready.
        """
        num_looks = 0
        while True:
            await trio.sleep(LOOK_S)
            num_looks += 1
            door.num_silent += 1
            self._place.tend()
            if door.num_silent * LOOK_S > (self._stall_s if door.is_up else max(self._stall_s, START_S)):
                raise _stalled(f"gave no sign of life for {now_s() - door.heard_s:.1f} s", door)
            if not door.is_up and num_looks * LOOK_S > self._load_s:
                raise _not_ready(name, self._load_s, door)
            for each in door.actors:
                if door.is_up and each.doing is not None and each.for_s > STEP_S:
                    raise _stalled(f"does not go on: {each}", door)


def _not_ready(name: str, load_s: float, door: Door) -> ConfigError:
    doing = "; ".join(str(each) for each in door.actors) or "it opened the model"
    return ConfigError(
        f"{name} was not ready within {load_s:g} s, and is ended: give it longer by --load-timeout. Its last"
        f" words: {doing}"
    )


def _stalled(what: str, door: Door) -> EngineStalled:
    error = EngineStalled(f"the engine process {what}")
    for each in door.actors:
        error.add_note(str(each))
    return error


def _error(failed: CoreFailed) -> Exception:
    error = ConfigError(failed.cause) if failed.is_refusal else EngineCrashed(failed.cause)
    for note in failed.notes:
        error.add_note(note.strip())
    return error
