"""Messages between AsyncLLM and its clients: the API, and replayed clients.

Import them from `actors/messages/__init__.py`, which states the rules for messages.
"""

from collections.abc import Mapping
from dataclasses import field
from typing import Literal

from sundog.actors.core.params.sampling import DEFAULTS, Adapter, Sampling
from sundog.actors.core.records import dataclass
from sundog.actors.core.request import TraceHeaders
from sundog.actors.kernel.stream import DeltaStream
from sundog.actors.messages.engine import Refused


@dataclass(frozen=True, slots=True)
class ChatMessage:
    """A turn of a conversation, for the tokenizer's chat template.

    `more` has further fields for the template: tool calls, or the call that a result answers.
    """

    role: str
    content: str
    more: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Reading:
    """Options for turning a prompt into tokens, under vLLM's names.

    `add_special_tokens` None adds them to a plain prompt, and not to a conversation, whose template writes
    them. `truncate_prompt_tokens` keeps that many tokens at the end of the prompt, or at its beginning if
    `truncation_side` is right; -1 keeps as many as fit. The other fields apply to conversations;
    `template_arguments` are further variables of the chat template.
    """

    add_special_tokens: bool | None = None
    truncate_prompt_tokens: int | None = None
    truncation_side: Literal["left", "right"] = "left"
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    template_arguments: Mapping[str, object] = field(default_factory=dict)


PLAIN_READING = Reading()


Prompt = str | tuple[int, ...] | tuple[ChatMessage, ...] | int
"""Text, token ids, a conversation, or only a number of tokens if tokens are only counted."""


@dataclass(slots=True)
class Generate:
    """API, or a replayed client, asks AsyncLLM for a completion.

    `block_hashes` are a trace's own identities of the prompt's full blocks. `tenant`, `session`, the three
    targets and `predicted_tokens` are for policies (`Submit` defines them). Each of the `n` choices is a
    request of its own in the engine, with its own id and seed (`front/active_request.py`). `reading` controls
    tokenisation; `trace_headers` are W3C's, of the span that the request belongs to. `client` is the digest
    of its API key, if there are several keys.
    """

    prompt: Prompt
    sampling: Sampling = DEFAULTS
    request_id: str | None = None
    priority: int = 0
    cache_salt: str | None = None
    block_hashes: tuple[object, ...] | None = None
    tenant: str | None = None
    slo_ttft_s: float | None = None
    predicted_tokens: int | None = None
    n: int = 1
    reading: Reading = PLAIN_READING
    slo_tpot_s: float | None = None
    slo_e2e_s: float | None = None
    adapter: Adapter | None = None
    session: str | None = None
    trace_headers: TraceHeaders = ()
    has_remote_kv: bool = False
    client: str | None = None

    def answered_by(self, answer: "Accepted | Refused") -> "Generate":
        return self


@dataclass(slots=True)
class Accepted:
    """AsyncLLM accepted the request: read the stream of each choice to its end, or tell `Cancel`.

    With `may_be_refused` the engine's policy may still refuse the request; the first delta of each stream
    says so. `prompt_token_ids` is the tokenised prompt, None if tokens are only counted.
    """

    request_id: str
    num_prompt_tokens: int
    streams: tuple[DeltaStream, ...]
    may_be_refused: bool = False
    prompt_token_ids: tuple[int, ...] | None = None

    @property
    def stream(self) -> DeltaStream:
        """Stream of the first choice."""
        return self.streams[0]


@dataclass(frozen=True, slots=True)
class Cancel:
    """API tells AsyncLLM that nobody reads this request's answer any more, including all choices."""

    request_id: str
