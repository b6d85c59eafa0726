"""All messages between actors, grouped by sender and receiver.

A message is an immutable record without tensors, callables or handles (streams and addresses excepted);
`dataclasses.replace` makes a changed copy. A message that is made in every step or for every request is
written like `Submit`: a dataclass with slots and an `__init__` of its own, which compilation turns into a
struct. Compiled code makes NamedTuples, frozen dataclasses and generated `__init__`s by interpreted code, at
four to twenty times the cost; for rare messages a frozen dataclass is fine.

What takes time or crosses a fate boundary is a message; everything else is a call. A message that is asked
names the type of its reply in `answered_by`, which is never called (`actors/kernel/reply.py`).
"""

from collections.abc import Sequence
from typing import Literal

from sundog.actors.core.batch import Admission, Batch, Blocked, Chunk, Finish, StepResult
from sundog.actors.core.blocks.kv_events import KvEvents
from sundog.actors.core.params.logprobs import PromptLogprobs, TokenLogprobs
from sundog.actors.core.params.sampling import Sampling
from sundog.actors.core.queue.policy import RankValue
from sundog.actors.core.records import dataclass
from sundog.actors.core.request import Submit
from sundog.actors.messages.client import PLAIN_READING, Accepted, Cancel, ChatMessage, Generate, Reading
from sundog.actors.messages.engine import (
    Abort,
    Capacity,
    CeaseFetch,
    ChangeAdapters,
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

ToRunner = Batch | Interrupt | Load | ChangeAdapters
"""Messages to a Runner, and to the Executor of the Runners."""


@dataclass(slots=True)
class StepOutput:
    """Scheduler tells AsyncLLM, the Recorder and other listeners the outcome of a batch.

    `replica` is the number of the Scheduler. `tokens` pairs requests with new tokens. It is None if tokens
    are only counted: then each chunk of `batch` that samples, and each decoding request, got one token a
    step. `blocked` is the reason why the head of the queue was not admitted. The two numbers `..._planned`
    are as of the end of the (first) step's plan, which took `num_taken_blocks`. At the end of the last step
    `num_free_blocks_held` blocks were free, less those that steps planned ahead have taken; then
    `num_freed_blocks` were given back. `ranks` are the policy's ranks of requests that joined the queue, were
    next, or were admitted. `logprobs`, `prompt_logprobs` and `vectors` are those of the StepResult.
    `accepted` pairs each request whose drafts were verified with the number of accepted drafts, each of which
    is a token in addition to the one that it got; in `tokens` the tokens of one request are in order.
    `surplus` pairs requests with the accepted drafts behind the ends of their answers. `kv_events` are
    recorded if a router needs them; steps that only decode have none.
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
        """Whether the step changed nothing that a listener handles."""
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
    "ChangeAdapters",
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
    "ToRunner",
    "TokenLogprobs",
    "Undelivered",
    "Unserved",
    "Withdraw",
]


# --- AsyncLLM to PromptReader ---------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ReadPrompt:
    """AsyncLLM asks a PromptReader to tokenise a long prompt.

    `number` distinguishes requests that have the same id.
    """

    generate: Generate
    request_id: str
    number: int
    arrival_s: float

    def answered_by(self, answer: "PromptRead") -> "ReadPrompt":
        return self


@dataclass(frozen=True, slots=True)
class PromptRead:
    """A PromptReader's reply: the requests made from a prompt, one per choice, or a refusal."""

    request_id: str
    number: int
    submits: tuple[Submit, ...] | Refused


# --- AsyncLLM to Router: Submit (core/request.py), Abort and ---------------------------------------


@dataclass(slots=True)
class Released:
    """AsyncLLM tells the Router that requests no longer run on their engine."""

    request_ids: tuple[str, ...]


@dataclass(slots=True)
class Siblings:
    """AsyncLLM tells the Router to send all choices of one prompt to the same replica, where they share
    blocks.
    """

    submits: tuple[Submit, ...]


# --- anyone to AsyncLLM, and it to the Router ------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Drain:
    """Anyone asks AsyncLLM, and AsyncLLM the Router, to drain a replica or to undo that.

    A replica that drains gets no new requests. The reply to a drain comes when its last request has ended,
    the reply to an undrain at once. A drain that is undone before it is complete is refused.
    """

    replica: int
    is_draining: bool = True

    def answered_by(self, answer: "Done | Refused") -> "Drain":
        return self


# --- AsyncLLM to its listeners: Submit, EngineUp, EngineDown and --------------------------------------


@dataclass(frozen=True, slots=True)
class Unserved:
    """AsyncLLM tells its listeners that requests have ended without an engine.

    `reason` is abort if their clients left, error if no engine will be up again.
    """

    request_ids: tuple[str, ...]
    reason: Literal["abort", "error"]


# --- Scheduler to its listeners: StepOutput (step_output.py) ---------------------------------------

Heard = Submit | Routed | StepOutput | EngineUp | EngineDown | Unserved | PolicyFailed
"""Messages that a listener receives."""
