"""The vocabulary: every message any actor sends, grouped by wire.

Messages are frozen records without tensors, callables or handles (streams and addresses excepted). What takes
time or crosses a fate boundary is a message; everything else is a call.
"""

from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from actors.core.batch import Admission, Batch, Blocked, Chunk, Finish, StepResult
from actors.core.request import Submit
from actors.core.sampling import Sampling
from actors.engine_messages import (
    Capacity,
    CheckHealth,
    EngineDown,
    EngineRefs,
    EngineUp,
    Health,
    Interrupt,
    Load,
    Undelivered,
)
from actors.stream import DeltaStream

__all__ = [
    "Abort",
    "Accepted",
    "Admission",
    "Batch",
    "Blocked",
    "CacheStats",
    "Cancel",
    "Capacity",
    "ChatMessage",
    "CheckHealth",
    "Chunk",
    "Done",
    "EngineDown",
    "EngineRefs",
    "EngineUp",
    "Finish",
    "Generate",
    "Health",
    "Inspect",
    "Interrupt",
    "Load",
    "PromptRead",
    "ReadPrompt",
    "Refused",
    "Released",
    "ResetPrefixCache",
    "Sampling",
    "StepOutput",
    "StepResult",
    "Submit",
    "Undelivered",
]


# --- client and API to AsyncLLM ------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ChatMessage:
    """One turn of a conversation, for the tokenizer's chat template."""

    role: str
    content: str


@dataclass(frozen=True, slots=True)
class Generate:
    """API (or a replayed client) asks AsyncLLM for one completion.

    `prompt` is text, token ids, chat messages, or a bare number of tokens in a world that only
    counts. `block_hashes` carries a trace's own identities of the prompt's full blocks;
    `slo_ttft_s` and `predicted_tokens` are for policies (`Submit` says what they mean).
    Reply: `Accepted` or `Refused`.
    """

    prompt: str | tuple[int, ...] | tuple[ChatMessage, ...] | int
    sampling: Sampling = field(default_factory=Sampling)
    request_id: str | None = None
    priority: int = 0
    cache_salt: str | None = None
    block_hashes: tuple[object, ...] | None = None
    tenant: str | None = None
    slo_ttft_s: float | None = None
    predicted_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Accepted:
    """AsyncLLM took the request: read `stream` to its end, or tell `Cancel`."""

    request_id: str
    num_prompt_tokens: int
    stream: DeltaStream


@dataclass(frozen=True, slots=True)
class Refused:
    """The request was not taken and nothing was changed.

    `kind` `invalid` is the caller's mistake (400), `param` names the field and `code` is OpenAI's
    name for the mistake, if it has one; `overloaded` asks to come back after `retry_after_s` (429),
    and so does `unavailable`, where no engine is up (503). With `failed` a bug stood in the way of
    this request alone (500).
    """

    reason: str
    kind: Literal["invalid", "overloaded", "unavailable", "failed"] = "invalid"
    param: str | None = None
    code: str | None = None
    retry_after_s: float | None = None


@dataclass(frozen=True, slots=True)
class Cancel:
    """API tells AsyncLLM that nobody reads this request any more."""

    request_id: str


# --- AsyncLLM to PromptReader ---------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ReadPrompt:
    """AsyncLLM asks a PromptReader to tokenise what is too long to do it in place.

    `number` tells two requests of one id apart. Reply: `PromptRead`.
    """

    generate: Generate
    request_id: str
    number: int
    arrival_s: float


@dataclass(frozen=True, slots=True)
class PromptRead:
    """What became of a prompt."""

    request_id: str
    number: int
    submit: Submit | Refused


# --- AsyncLLM to Router to Scheduler: Submit (core/request.py) and --------------------------------


@dataclass(frozen=True, slots=True)
class Abort:
    """AsyncLLM tells Router, and Router the Scheduler, to end requests; unknown ids are ignored.

    With `reason` "stop" a stop string was seen after detokenisation.
    """

    request_ids: tuple[str, ...]
    reason: Literal["abort", "stop"] = "abort"


@dataclass(frozen=True, slots=True)
class Released:
    """AsyncLLM tells the Router that requests are over for their engine, so that it can count."""

    request_ids: tuple[str, ...]


# --- Scheduler to its listeners ------------------------------------------------------------------


class StepOutput(NamedTuple):
    """Scheduler tells AsyncLLM, the Recorder and other listeners what a batch brought about.

    `replica` is the scheduler's number. `tokens` pairs request and new token, None where tokens
    are only counted: then every chunk of `batch` that samples and every decoding request got one
    token a step. `blocked` says what keeps the next in the queue waiting, when the (first) step's
    plan left `num_free_blocks_planned` blocks and `num_waiting_planned` requests.
    """

    replica: int
    batch: Batch
    start_s: float
    end_times_s: tuple[float, ...]
    tokens: tuple[tuple[str, int], ...] | None
    finished: tuple[Finish, ...]
    num_running: int
    num_waiting: int
    num_free_blocks: int
    blocked: Blocked | None = None
    num_free_blocks_planned: int | None = None
    num_waiting_planned: int = 0

    @property
    def step(self) -> int:
        return self.batch.step


# --- anyone to KVCacheManager --------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Inspect:
    """Anyone asks the KVCacheManager how full it is. Reply: `CacheStats`."""


@dataclass(frozen=True, slots=True)
class CacheStats:
    """The pool at one instant; counts of blocks without the null block, hits in tokens."""

    num_blocks: int
    num_free_blocks: int
    num_cached_blocks: int
    num_queried_tokens: int
    num_hit_tokens: int


@dataclass(frozen=True, slots=True)
class ResetPrefixCache:
    """Anyone asks the KVCacheManager, and it the Scheduler, to forget cached prefixes.

    It happens before the next plan, after whatever came before it. With `reset_running` those that
    run are preempted first, and what is in flight for them is thrown away.
    Reply: `Done`, or `Refused` while requests hold blocks.
    """

    reset_running: bool = False


@dataclass(frozen=True, slots=True)
class Done:
    """What was asked for has been done."""
