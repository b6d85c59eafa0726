"""Messages between an engine process and its server, besides those of the graph."""

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
    """Request from EngineProcess to the Host to start the core; answered when it is up."""

    def answered_by(self, answer: Capacity) -> "Start":
        """Return the message with its reply type, for the type checker."""
        return self


@dataclass(frozen=True, slots=True)
class Pulse:
    """Sign of life of the Host's event loop, twice a second, with reports of its actors."""

    actors: tuple[ActorReport, ...]


@dataclass(frozen=True, slots=True)
class Logged:
    """Log record of a Host whose stderr is not read; `level` is Python's number."""

    logger: str
    level: int
    text: str


@dataclass(frozen=True, slots=True)
class CoreEnded:
    """Message: the core has ended, because nobody uses it any more."""


@dataclass(frozen=True, slots=True)
class CoreFailed:
    """The core crashed or could not start, with the reason; `notes` have the place.

    It `is_refusal` if the configuration cannot work.
    """

    cause: str
    notes: tuple[str, ...]
    is_refusal: bool


ToMonitor = StepOutput | TakenIn | PolicyFailed | Pulse | Logged | CoreEnded | CoreFailed
"""Messages that a `ProcessMonitor` handles."""

WORKER_MESSAGES: tuple[type, ...] = (*MESSAGES, *KV_MESSAGES, Start, Pulse, Logged, CoreEnded, CoreFailed)


def failed(error: BaseException) -> CoreFailed:
    """Return the message for an error that ends a process."""
    if isinstance(error, ConfigError):
        return CoreFailed(str(error), (), is_refusal=True)
    return CoreFailed(summary(error), tuple(block(error).splitlines()), is_refusal=False)
