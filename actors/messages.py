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

from actors.client_messages import PLAIN_READING, Accepted, Cancel, ChatMessage, Generate, Reading
from actors.core.batch import Admission, Batch, Blocked, Chunk, Finish, StepResult
from actors.core.logprobs import PromptLogprobs, TokenLogprobs
from actors.core.request import Submit
from actors.core.sampling import Sampling
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
    Routed,
    RouterFailed,
    Undelivered,
)
from actors.step_output import StepOutput

__all__ = [
    "PLAIN_READING",
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
    "Reading",
    "Refused",
    "Released",
    "ResetPrefixCache",
    "Routed",
    "RouterFailed",
    "Sampling",
    "Siblings",
    "StepOutput",
    "StepResult",
    "Submit",
    "TokenLogprobs",
    "Undelivered",
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


@dataclass(init=False, slots=True)
class Released:
    """AsyncLLM tells the Router that requests are over for their engine; the Router counts them."""

    request_ids: tuple[str, ...]

    def __init__(self, request_ids: tuple[str, ...]) -> None:
        self.request_ids = request_ids


@dataclass(init=False, slots=True)
class Siblings:
    """AsyncLLM tells the Router to send the choices of one prompt to one replica, to share its blocks."""

    submits: tuple[Submit, ...]

    def __init__(self, submits: tuple[Submit, ...]) -> None:
        self.submits = submits


# --- Scheduler to its listeners: StepOutput (step_output.py) ---------------------------------------

Heard = Submit | Routed | StepOutput | EngineUp | EngineDown | PolicyFailed
"""What a listener is told."""
