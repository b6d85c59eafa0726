"""The vocabulary: every message that an actor sends, grouped by wire.

Messages are records without tensors, callables or handles (streams and addresses excepted), and nobody
changes one: `dataclasses.replace` makes another. What is made in every step or for every request is
written as `Submit` is: a dataclass with slots and an `__init__` of its own, which compilation makes a
struct. A NamedTuple, or a dataclass that is frozen or has a generated `__init__`, is made by interpreted
code even then, at four to twenty times the cost; for what is made seldom a frozen dataclass will do.

What takes time or crosses a fate boundary is a message; everything else is a call. A message that is asked
names the type of its answer in `answered_by`, which is never called (`actors/reply.py`).
"""

from dataclasses import dataclass

from actors.core.batch import Admission, Batch, Blocked, Chunk, Finish, StepResult
from actors.core.logprobs import PromptLogprobs, TokenLogprobs
from actors.core.request import Submit
from actors.core.sampling import DEFAULTS, Sampling
from actors.engine_messages import (
    Abort,
    Capacity,
    CheckHealth,
    Done,
    EngineDown,
    EngineNews,
    EngineRefs,
    EngineUp,
    Health,
    Interrupt,
    Load,
    PolicyFailed,
    Refused,
    ResetPrefixCache,
    Undelivered,
)
from actors.step_output import StepOutput
from actors.stream import DeltaStream

__all__ = [
    "Abort",
    "Accepted",
    "Admission",
    "Batch",
    "Blocked",
    "Cancel",
    "Capacity",
    "ChatMessage",
    "CheckHealth",
    "Chunk",
    "Done",
    "EngineDown",
    "EngineNews",
    "EngineRefs",
    "EngineUp",
    "Finish",
    "Generate",
    "Health",
    "Heard",
    "Interrupt",
    "Load",
    "PolicyFailed",
    "PromptLogprobs",
    "PromptRead",
    "ReadPrompt",
    "Refused",
    "Released",
    "ResetPrefixCache",
    "Sampling",
    "StepOutput",
    "StepResult",
    "Submit",
    "TokenLogprobs",
    "Undelivered",
]


# --- client and API to AsyncLLM ------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ChatMessage:
    """One turn of a conversation, for the tokenizer's chat template."""

    role: str
    content: str


@dataclass(init=False, slots=True)
class Generate:
    """API (or a replayed client) asks AsyncLLM for one completion.

    `prompt` is text, token ids, chat messages, or a bare number of tokens in a world that only
    counts. `block_hashes` carries a trace's own identities of the prompt's full blocks;
    `slo_ttft_s` and `predicted_tokens` are for policies (`Submit` defines them).
    """

    prompt: str | tuple[int, ...] | tuple[ChatMessage, ...] | int
    sampling: Sampling
    request_id: str | None
    priority: int
    cache_salt: str | None
    block_hashes: tuple[object, ...] | None
    tenant: str | None
    slo_ttft_s: float | None
    predicted_tokens: int | None

    def __init__(
        self,
        prompt: str | tuple[int, ...] | tuple[ChatMessage, ...] | int,
        sampling: Sampling = DEFAULTS,
        request_id: str | None = None,
        priority: int = 0,
        cache_salt: str | None = None,
        block_hashes: tuple[object, ...] | None = None,
        tenant: str | None = None,
        slo_ttft_s: float | None = None,
        predicted_tokens: int | None = None,
    ) -> None:
        self.prompt = prompt
        self.sampling = sampling
        self.request_id = request_id
        self.priority = priority
        self.cache_salt = cache_salt
        self.block_hashes = block_hashes
        self.tenant = tenant
        self.slo_ttft_s = slo_ttft_s
        self.predicted_tokens = predicted_tokens

    def answered_by(self, answer: "Accepted | Refused") -> "Generate":
        """Names its answer, for a type checker."""
        return self


@dataclass(init=False, slots=True)
class Accepted:
    """AsyncLLM took the request: read `stream` to its end, or tell `Cancel`."""

    request_id: str
    num_prompt_tokens: int
    stream: DeltaStream

    def __init__(self, request_id: str, num_prompt_tokens: int, stream: DeltaStream) -> None:
        self.request_id = request_id
        self.num_prompt_tokens = num_prompt_tokens
        self.stream = stream


@dataclass(frozen=True, slots=True)
class Cancel:
    """API tells AsyncLLM that this request's answer is read no more."""

    request_id: str


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
    """A PromptReader's answer: the request that a prompt became, or a refusal."""

    request_id: str
    number: int
    submit: Submit | Refused


# --- AsyncLLM to Router: Submit (core/request.py), Abort and ---------------------------------------


@dataclass(init=False, slots=True)
class Released:
    """AsyncLLM tells the Router that requests are over for their engine; the Router counts them."""

    request_ids: tuple[str, ...]

    def __init__(self, request_ids: tuple[str, ...]) -> None:
        self.request_ids = request_ids


# --- Scheduler to its listeners: StepOutput (step_output.py) ---------------------------------------

Heard = Submit | StepOutput | EngineDown | PolicyFailed
"""What a listener is told."""
