"""Wire format of a step: the Scheduler's batch and the backend's result, both as differences.

Both ends maintain the decoding set by the same rule, so that a step in which only lengths change needs no
fields. A request whose `Chunk` samples has caught up with its known tokens and joins the decoding set. From
the next step on it computes one token and samples one in every step, unless the batch lists it in `idle` (for
this step only), `preempted` or `finished` (it leaves the set and is forgotten).

With speculative decoding the runner keeps drafts of the next tokens of decoding requests and reports how
many. `drafts` of a batch is how many of them the request computes in addition to its own token. Drafts that
equal the model's choice are accepted. The first that differs is replaced, and both runner and scheduler count
the tokens from there on as not computed.
"""

from collections.abc import Sequence
from typing import Literal, NamedTuple

from sundog.actors.core.params.logprobs import PromptLogprobs, TokenLogprobs
from sundog.actors.core.params.sampling import Adapter, Sampling
from sundog.actors.core.records import dataclass
from sundog.actors.core.request import Submit


@dataclass(slots=True)
class Admission:
    """Request that begins to run in this step, or resumes after a preemption.

    `token_ids` are all known tokens: the prompt, and after a preemption the outputs so far; None if tokens
    are only counted. `num_tokens` is their number, and `num_prompt_tokens` the prompt's part of it. The first
    `num_computed_tokens` are already in `block_ids` (a prefix hit), of which `num_host_tokens` were loaded
    from host memory. `block_ids` is the block table: slot `t` of the request is offset `t % block_size` of
    block `block_ids[t // block_size]`. `adapter` None is the base model.
    """

    request_id: str
    num_tokens: int
    num_prompt_tokens: int
    num_computed_tokens: int
    block_ids: tuple[int, ...]
    token_ids: tuple[int, ...] | None
    sampling: Sampling
    resumed: bool = False
    adapter: Adapter | None = None
    num_host_tokens: int = 0


@dataclass(slots=True)
class Chunk:
    """Known tokens to compute for a request that has not caught up.

    With `samples` the chunk ends at the last known token: a token is sampled from its last position, and the
    request joins the decoding set from the next step on.
    """

    request_id: str
    num_tokens: int
    samples: bool


@dataclass(slots=True)
class Batch:
    """The work of one step, or of the first of up to `max_steps` equal decode steps (a decode run).

    `finished` may list requests that ended while they waited, which the runner does not know. Apply a batch
    in this order: forget `finished` and `preempted`, add `admitted`, append `new_blocks` to block tables,
    then compute `chunks` and one token for each decoding request that is not in `idle`; `num_decodes` is the
    number of the latter. A batch with `max_steps` above 1 has no chunks, and only backends that count tokens
    get it: it does not list the blocks of its later steps. `preempted_for` has, for each of `preempted`, the
    request that needed its blocks (possibly itself), or None after a reset. `drafts` pairs decoding requests
    with the number of drafts to verify, the first that the runner keeps; the runner forgets the drafts of all
    other requests that the batch computes.
    """

    step: int
    admitted: tuple[Admission, ...] = ()
    chunks: tuple[Chunk, ...] = ()
    idle: tuple[str, ...] = ()
    new_blocks: tuple[tuple[str, tuple[int, ...]], ...] = ()
    preempted: tuple[str, ...] = ()
    preempted_for: tuple[str | None, ...] = ()
    finished: tuple[str, ...] = ()
    num_decodes: int = 0
    max_steps: int = 1
    drafts: tuple[tuple[str, int], ...] = ()

    @property
    def num_draft_tokens(self) -> int:
        """Number of drafts to verify."""
        return sum([num_drafts for _, num_drafts in self.drafts]) if self.drafts else 0

    @property
    def num_tokens(self) -> int:
        """Number of tokens that the (first) step computes, including drafts."""
        num_tokens = self.num_decodes
        if self.drafts:
            num_tokens += self.num_draft_tokens
        for chunk in self.chunks:
            num_tokens += chunk.num_tokens
        return num_tokens

    def answered_by(self, answer: "StepResult") -> "Batch":
        return self


@dataclass(slots=True)
class StepResult:
    """The backend's result of a batch.

    `end_times_s` has the end of each step that was done, on the run's clock. `tokens` pairs every sampling
    request with its token, in any order. It is None if tokens are only counted: then each sampling request
    got one token a step, and `ended` lists those whose token in the last step was the end token.

    A request with drafts has a pair for each accepted draft and one for the token behind them, in order. If
    tokens are only counted, `accepted` pairs the request with the number of accepted drafts, and `surplus`
    with those behind the end of its answer. `drafts` pairs decoding requests with the number of drafts that
    the backend now keeps for the next step.

    `failed` pairs each request that cannot continue with the reason, in words for its client. The last step
    computed the request but gave it no token; the others are not affected. The backend keeps it in the
    decoding set until a batch lists it in `finished`, and its tokens until then are dropped. `logprobs` pairs
    requests with the log probabilities of their new token, `prompt_logprobs` has those of prompt tokens that
    were computed, and `vectors` pairs requests with the vector of their prompt, in little-endian float32.
    """

    step: int
    end_times_s: Sequence[float]
    tokens: tuple[tuple[str, int], ...] | None = None
    ended: tuple[str, ...] = ()
    failed: tuple[tuple[str, str], ...] = ()
    logprobs: tuple[tuple[str, TokenLogprobs], ...] = ()
    prompt_logprobs: tuple[PromptLogprobs, ...] = ()
    accepted: tuple[tuple[str, int], ...] = ()
    drafts: tuple[tuple[str, int], ...] = ()
    vectors: tuple[tuple[str, bytes], ...] = ()
    surplus: tuple[tuple[str, int], ...] = ()

    @property
    def num_steps(self) -> int:
        return len(self.end_times_s)


Lack = Literal[
    "token budget",
    "max_num_seqs",
    "KV blocks",
    "preemption",
    "quota",
    "prefill interval",
    "KV load",
    "unknown",
]
"""Reasons not to admit a request.

A step that preempts admits no request ("preemption"). The policy may give the next request a `quota` of 0.
`prefill_schedule_interval` may hold prompts back to protect decodes. "KV load": blocks are being loaded from
host memory. "unknown": the log has no reason.
"""
FinishReason = Literal["stop", "length", "abort", "error", "refused", "repetition", "handed"]
"""Reasons for the end of a request; after `handed` another engine continues it."""


class Blocked(NamedTuple):
    """The head of the queue, and the reason why it was not admitted. All requests behind it wait."""

    request_id: str
    reason: Lack


@dataclass(slots=True)
class Finish:
    """End of a request.

    `stop_reason` is the stop token. `error` is the reason of a failure, or of the policy's refusal, which the
    client may retry after `retry_after_s`. A handed-over request leaves its computed tokens in `block_ids`;
    `moves` is the request to submit to the other engine.
    """

    request_id: str
    reason: FinishReason
    stop_reason: int | str | None = None
    error: str | None = None
    retry_after_s: float | None = None
    moves: Submit | None = None
    block_ids: tuple[int, ...] = ()
