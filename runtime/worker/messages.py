"""The messages of an engine process and its server to each other, besides those of the graph."""

from dataclasses import dataclass

from sundog.actors.core.config import ConfigError
from sundog.actors.engine.crash import block, summary
from sundog.actors.engine.reports import ActorReport
from sundog.actors.messages import (
    Abort,
    Batch,
    Capacity,
    ChangeAdapters,
    Done,
    Freeze,
    HandOver,
    Interrupt,
    KvFetched,
    Load,
    PolicyFailed,
    Pull,
    Refused,
    Reserved,
    ResetPrefixCache,
    StepOutput,
    StepResult,
    Submit,
    TakenIn,
    Withdraw,
)
from sundog.runtime.kv_transfer.messages import KV_MESSAGES

MESSAGES: tuple[type, ...] = (
    Submit,
    Abort,
    ResetPrefixCache,
    Done,
    Refused,
    StepOutput,
    PolicyFailed,
    Batch,
    StepResult,
    Interrupt,
    Load,
    Capacity,
    Freeze,
    HandOver,
    Pull,
    Reserved,
    KvFetched,
    Withdraw,
    TakenIn,
    ChangeAdapters,
)


@dataclass(frozen=True, slots=True)
class Start:
    """EngineProcess asks the Host to start the core; answered when it is up."""

    def answered_by(self, answer: Capacity) -> "Start":
        """Names its answer, for a type checker."""
        return self


@dataclass(frozen=True, slots=True)
class Pulse:
    """The Host tells the monitor twice a second that its event loop runs, and what its actors are doing."""

    actors: tuple[ActorReport, ...]


@dataclass(frozen=True, slots=True)
class Logged:
    """The Host tells the monitor what was logged where its stderr is not read; `level` is Python's number."""

    logger: str
    level: int
    text: str


@dataclass(frozen=True, slots=True)
class CoreEnded:
    """The Host tells the monitor that the core has ended, as all have hung up."""


@dataclass(frozen=True, slots=True)
class CoreFailed:
    """The Host tells the monitor why the core crashed, or could not start; `notes` say where.

    It `is_refusal` where what was asked for cannot work.
    """

    cause: str
    notes: tuple[str, ...]
    is_refusal: bool


ToMonitor = StepOutput | TakenIn | PolicyFailed | Pulse | Logged | CoreEnded | CoreFailed
"""The messages that a `ProcessMonitor` understands."""

WORKER_MESSAGES: tuple[type, ...] = (*MESSAGES, *KV_MESSAGES, Start, Pulse, Logged, CoreEnded, CoreFailed)


def failed(error: BaseException) -> CoreFailed:
    """Return the message for an error that ends a process."""
    if isinstance(error, ConfigError):
        return CoreFailed(str(error), (), is_refusal=True)
    return CoreFailed(summary(error), tuple(block(error).splitlines()), is_refusal=False)
