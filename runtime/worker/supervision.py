"""The supervision of engine processes and ranks: a launcher begins a process, a monitor listens to it.

A process may end at any moment, or stop without ending. It is silent then, and its supervisor kills it.
"""

import logging
import socket
from collections.abc import Callable, Sequence
from typing import Protocol

from sundog.actors.config import ConfigError
from sundog.actors.engine.reports import ActorReport
from sundog.actors.kernel.actor import Actor, Ref
from sundog.actors.kernel.clock import now_s
from sundog.actors.messages import PolicyFailed, StepOutput, TakenIn
from sundog.runtime.worker.life import PULSE_S
from sundog.runtime.worker.messages import CoreEnded, CoreFailed, Logged, Pulse, ToMonitor

LOOK_S = PULSE_S / 2
START_S = 60.0
"""The time that a process may be silent while it loads: what loads a model may hold its interpreter."""


class RunningProcess(Protocol):
    """A process that has begun. Hands are shaken with it, and its clock is the server's."""

    @property
    def name(self) -> str:
        """The name in messages to people: `the engine process 4711`."""
        ...

    @property
    def connected(self) -> socket.socket:
        """The near end of the link; the supervisor that is given the process closes it."""
        ...

    def kill(self) -> None:
        """End it at once, unless it has ended."""
        ...

    async def ended(self) -> str:
        """Wait until it has ended, and say how, in words. It is killed if it takes long."""
        ...


class Launcher(Protocol):
    """Begins processes: by a fork server here, by Ray elsewhere, or by a fork of this process."""

    async def begin(self, replica: int) -> RunningProcess:
        """Begin a process.

        Raises ConfigError if there can be none, and WireError if what has begun is none of ours; nothing is
        left of it then.
        """
        ...

    def tend(self) -> None:
        """Begin again what processes are forked from, if it has ended."""
        ...


class ProcessMonitor(Actor[ToMonitor]):
    """Listens to a process: its steps go to the listeners, the rest is remembered."""

    def __init__(self, name: str, listeners: Sequence[Ref[StepOutput | PolicyFailed]] = ()) -> None:
        super().__init__(name)
        self._listeners = listeners
        self.actors: tuple[ActorReport, ...] = ()
        """The reports of its actors, from its last sign of life."""
        self._running: dict[str, None] = {}
        """The requests that are in its batches, as it said before it executed them."""
        self._heard_s = now_s()
        self._num_silent = 0
        """The looks since: a server that stands still itself looks at nothing."""
        self.end: CoreEnded | CoreFailed | None = None

    def handle(self, message: ToMonitor) -> None:
        match message:
            case StepOutput() | PolicyFailed():
                if isinstance(message, StepOutput):
                    for finish in message.finished:
                        self._running.pop(finish.request_id, None)
                for listener in self._listeners:
                    listener.tell(message)
            case TakenIn():
                for name in message.preempted:
                    self._running.pop(name, None)
                self._running.update(dict.fromkeys(message.request_ids))
            case Pulse():
                self.actors, self._heard_s, self._num_silent = message.actors, now_s(), 0
            case Logged():
                logging.getLogger(message.logger).log(message.level, "%s", message.text)
            case CoreEnded() | CoreFailed():
                self.end = message
            case _:
                self.unknown(message)

    def running(self) -> tuple[str, ...]:
        """Return the requests in its batches: those that it died with, once it has died."""
        return tuple(self._running)

    def silence(self, stall_s: float, *, is_up: bool) -> str | None:
        """Return in words that the process gives no sign of life, once that lasts; called every LOOK_S."""
        self._num_silent += 1
        if self._num_silent * LOOK_S <= (stall_s if is_up else max(stall_s, START_S)):
            return None
        return f"gave no sign of life for {now_s() - self._heard_s:.1f} s"


def error_of(failed: CoreFailed, crashed: Callable[[str], Exception]) -> Exception:
    """Return the error that a process ended with: a refusal, or what `crashed` makes of its cause."""
    error = ConfigError(failed.cause) if failed.is_refusal else crashed(failed.cause)
    return with_notes(error, [note.strip() for note in failed.notes])


def with_notes(error: Exception, notes: Sequence[object]) -> Exception:
    """Return `error` with a note for each of these."""
    for note in notes:
        error.add_note(str(note))
    return error
