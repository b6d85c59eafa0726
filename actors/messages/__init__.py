"""The vocabulary: every message that an actor sends, grouped by wire.

Messages are records without tensors, callables or handles (streams and addresses excepted), and they
are never changed: `dataclasses.replace` makes another. What is made in every step or for every request is
written as `Submit` is: a dataclass with slots and an `__init__` of its own, which compilation makes a
struct. A NamedTuple, or a dataclass that is frozen or has a generated `__init__`, is made by interpreted
code even then, at four to twenty times the cost; for what is made seldom a frozen dataclass will do.

What takes time or crosses a fate boundary is a message; everything else is a call. A message that is asked
names the type of its answer in `answered_by`, which is never called (`actors/kernel/reply.py`).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from sundog.actors.core.batch import Admission, Batch, Blocked, Chunk, Finish, StepResult
from sundog.actors.core.blocks.kv_events import KvEvents
from sundog.actors.core.params.logprobs import PromptLogprobs, TokenLogprobs
from sundog.actors.core.params.sampling import Sampling
from sundog.actors.core.queue.policy import RankValue
from sundog.actors.core.request import Submit
from sundog.actors.messages.client import PLAIN_READING, Accepted, Cancel, ChatMessage, Generate, Reading
from sundog.actors.messages.engine import (
    Abort,
    Capacity,
    CeaseFetch,
    CheckHealth,
    Done,
    EngineDown,
    EngineNews,
    EngineRefs,
    EngineUp,
    FetchKv,
    Freeze,
    HandOver,
    Health,
    Interrupt,
    KvFetched,
    Load,
    PolicyFailed,
    Pull,
    Refused,
    ReplicaStatus,
    Reserved,
    ResetPrefixCache,
    Routed,
    RouterFailed,
    TakenIn,
    ToEngine,
    Undelivered,
    Withdraw,
)


@dataclass(slots=True)
class StepOutput:
    """Scheduler tells AsyncLLM, the Recorder and other listeners what a batch brought.

    `replica` is the scheduler's number. `tokens` pairs request and new token, None where tokens are only
    counted: then each chunk of `batch` that samples and each decoding request got one token a step. `blocked`
    says what the next request in the queue lacked; the (first) step's plan left the two `…_planned` numbers,
    and took `num_taken_blocks`. At the end of the last step, before `num_freed_blocks` were given back,
    `num_free_blocks_held` were free, with those that steps planned ahead have taken by then.
    `ranks` are those that the policy gave to requests which began to wait, were next, or were admitted.
    `logprobs`, `prompt_logprobs` and `vectors` are the StepResult's.
    `accepted` pairs each request whose drafts were verified with the number of accepted ones, each of which
    is a token beside the one that it got; in `tokens` those of one request stand in order. `surplus` pairs
    requests with the drafts that were accepted behind the ends of their answers.
    `kv_events` are recorded if a router asks for them, and come with steps that do more than decode on.
    """

    replica: int
    batch: Batch
    start_s: float
    end_times_s: Sequence[float]
    tokens: tuple[tuple[str, int], ...] | None
    finished: tuple[Finish, ...]
    num_running: int
    num_waiting: int
    num_free_blocks: int
    blocked: Blocked | None = None
    num_free_blocks_planned: int | None = None
    num_waiting_planned: int = 0
    logprobs: tuple[tuple[str, TokenLogprobs], ...] = ()
    prompt_logprobs: tuple[PromptLogprobs, ...] = ()
    accepted: tuple[tuple[str, int], ...] = ()
    ranks: tuple[tuple[str, RankValue], ...] = ()
    vectors: tuple[tuple[str, bytes], ...] = ()
    kv_events: KvEvents | None = None
    num_taken_blocks: int = 0
    num_free_blocks_held: int | None = None
    num_freed_blocks: int = 0
    surplus: tuple[tuple[str, int], ...] = ()

    @property
    def step(self) -> int:
        return self.batch.step

    @property
    def says_nothing(self) -> bool:
        """Return True if the step changed nothing that any listener acts on."""
        batch = self.batch
        is_heard = self.finished or self.ranks or self.kv_events or batch.num_tokens
        return not (is_heard or batch.finished or batch.preempted)


__all__ = [
    "PLAIN_READING",
    "Abort",
    "Accepted",
    "Admission",
    "Batch",
    "Blocked",
    "Cancel",
    "Capacity",
    "CeaseFetch",
    "ChatMessage",
    "CheckHealth",
    "Chunk",
    "Done",
    "Drain",
    "EngineDown",
    "EngineNews",
    "EngineRefs",
    "EngineUp",
    "FetchKv",
    "Finish",
    "Freeze",
    "Generate",
    "HandOver",
    "Health",
    "Heard",
    "Interrupt",
    "KvFetched",
    "Load",
    "PolicyFailed",
    "PromptLogprobs",
    "PromptRead",
    "Pull",
    "ReadPrompt",
    "Reading",
    "Refused",
    "Released",
    "ReplicaStatus",
    "Reserved",
    "ResetPrefixCache",
    "Routed",
    "RouterFailed",
    "Sampling",
    "Siblings",
    "StepOutput",
    "StepResult",
    "Submit",
    "TakenIn",
    "ToEngine",
    "TokenLogprobs",
    "Undelivered",
    "Unserved",
    "Withdraw",
]


# --- AsyncLLM to PromptReader ---------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ReadPrompt:
    """AsyncLLM asks a PromptReader to tokenise a long prompt; `number` tells apart requests of one id."""

    generate: Generate
    request_id: str
    number: int
    arrival_s: float

    def answered_by(self, answer: "PromptRead") -> "ReadPrompt":
        """Names its answer, for a type checker."""
        return self


@dataclass(frozen=True, slots=True)
class PromptRead:
    """A PromptReader's answer: the requests that a prompt became, one a choice, or a refusal."""

    request_id: str
    number: int
    submits: tuple[Submit, ...] | Refused


# --- AsyncLLM to Router: Submit (core/request.py), Abort and ---------------------------------------


@dataclass(slots=True)
class Released:
    """AsyncLLM tells the Router that requests are over for their engine; the Router counts them."""

    request_ids: tuple[str, ...]


@dataclass(slots=True)
class Siblings:
    """AsyncLLM tells the Router to send the choices of one prompt to one replica, to share its blocks."""

    submits: tuple[Submit, ...]


# --- anyone to AsyncLLM, and it to the Router ------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Drain:
    """Anyone asks AsyncLLM, and it the Router, to send a replica nothing new, or requests again.

    The answer to the first comes when the last of its requests has ended, to the second at once. A drain that
    is undone before it is done is refused.
    """

    replica: int
    is_draining: bool = True

    def answered_by(self, answer: "Done | Refused") -> "Drain":
        """Names its answer, for a type checker."""
        return self


# --- AsyncLLM to its listeners: Submit, EngineUp, EngineDown and --------------------------------------


@dataclass(frozen=True, slots=True)
class Unserved:
    """AsyncLLM tells its listeners that requests are over that no engine has, or will be given.

    `reason` is abort where their clients have left, error where no engine will be up any more.
    """

    request_ids: tuple[str, ...]
    reason: Literal["abort", "error"]


# --- Scheduler to its listeners: StepOutput (step_output.py) ---------------------------------------

Heard = Submit | Routed | StepOutput | EngineUp | EngineDown | Unserved | PolicyFailed
"""The messages that a listener is told."""
