"""Supervision of engine processes and ranks: a launcher starts a process, a monitor receives its reports.

A process may end at any moment, or hang. It is silent then, and its supervisor kills it.
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
"""Seconds without a sign of life that a process may take while it loads: loading may block its interpreter.
"""


class RunningProcess(Protocol):
    """Started process, after the handshake and with its clock set to the server's."""

    @property
    def name(self) -> str:
        """Name of the process for people: `the engine process 4711`."""
        ...

    @property
    def connected(self) -> socket.socket:
        """Near end of the link; the supervisor that gets the process closes this socket."""
        ...

    def kill(self) -> None:
        """Kill the process at once, unless it has ended."""
        ...

    async def ended(self) -> str:
        """Wait until the process has ended, and return how, in words. It is killed if that takes long."""
        ...


class Launcher(Protocol):
    """Starts processes: by a fork server here, by Ray elsewhere, or by a fork of this process."""

    async def begin(self, replica: int) -> RunningProcess:
        """Start a process.

        Raises ConfigError if that is impossible, and WireError if the started process is not one of ours;
        nothing is left of it then.
        """
        ...

    def tend(self) -> None:
        """Restart the process that others are forked from, if it has ended."""
        ...


class ProcessMonitor(Actor[ToMonitor]):
    """Receiver of a process's reports: step outputs go to the listeners, the rest is kept."""

    def __init__(self, name: str, listeners: Sequence[Ref[StepOutput | PolicyFailed]] = ()) -> None:
        super().__init__(name)
        self._listeners = listeners
        self.actors: tuple[ActorReport, ...] = ()
        """Reports of its actors, from its last sign of life."""
        self._running: dict[str, None] = {}
        """Requests in its current batches, reported before each is executed."""
        self._heard_s = now_s()
        self._num_silent = 0
        """Number of checks without a sign of life; a server that hangs itself does not check."""
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
        """Return the requests in the process's batches, or those in the batches with which it died."""
        return tuple(self._running)

    def silence(self, stall_s: float, *, is_up: bool) -> str | None:
        """Return a line if the process has given no sign of life for too long; called every LOOK_S."""
        self._num_silent += 1
        if self._num_silent * LOOK_S <= (stall_s if is_up else max(stall_s, START_S)):
            return None
        return f"gave no sign of life for {now_s() - self._heard_s:.1f} s"


def error_of(failed: CoreFailed, crashed: Callable[[str], Exception]) -> Exception:
    """Return the error for a failed process: a refusal, or `crashed` called with the cause."""
    error = ConfigError(failed.cause) if failed.is_refusal else crashed(failed.cause)
    return with_notes(error, [note.strip() for note in failed.notes])


def with_notes(error: Exception, notes: Sequence[object]) -> Exception:
    for note in notes:
        error.add_note(str(note))
    return error
