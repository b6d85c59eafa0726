"""The messages between AsyncLLM and those in front of it, the API and replayed clients.

Others import them from `actors/messages.py`, whose rules they keep.
"""

from dataclasses import dataclass

from actors.core.sampling import DEFAULTS, Sampling
from actors.engine_messages import Refused
from actors.stream import DeltaStream


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
    `slo_ttft_s` and `predicted_tokens` are for policies (`Submit` defines them). `n` choices are
    asked for: each is a request of the engine's, with an id and a seed of its own (`front/fan_out.py`).
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
    n: int

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
        n: int = 1,
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
        self.n = n

    def answered_by(self, answer: "Accepted | Refused") -> "Generate":
        """Names its answer, for a type checker."""
        return self


@dataclass(init=False, slots=True)
class Accepted:
    """AsyncLLM took the request: read the stream of each choice to its end, or tell `Cancel`.

    One that `may_be_refused` has an engine whose policy may yet turn it away: the first delta of each stream
    tells.
    """

    request_id: str
    num_prompt_tokens: int
    streams: tuple[DeltaStream, ...]
    may_be_refused: bool

    def __init__(
        self,
        request_id: str,
        num_prompt_tokens: int,
        streams: tuple[DeltaStream, ...],
        may_be_refused: bool = False,
    ) -> None:
        self.request_id = request_id
        self.num_prompt_tokens = num_prompt_tokens
        self.streams = streams
        self.may_be_refused = may_be_refused

    @property
    def stream(self) -> DeltaStream:
        """The stream of the only choice, or of the first."""
        return self.streams[0]


@dataclass(frozen=True, slots=True)
class Cancel:
    """API tells AsyncLLM that this request's answer is read no more, with all its choices."""

    request_id: str
