"""A step on the wire: what the Scheduler sends down and what comes back, as diffs.

Both ends keep the decoding set by the same rule, so that a step in which nothing changes needs no words: a
request whose `Chunk` samples has caught up with its tokens, joins the decoding set, and from the next step on
computes exactly one token and samples one in every step, unless the batch names it in `idle` (this step
only), `preempted` or `finished` (it leaves, and is forgotten).

With speculative decoding the runner keeps drafts, guesses of the next tokens of a decoding request, and tells
how many there are; `drafts` of a batch says how many of them the request computes beside its own token. The
drafts that the model would have chosen itself are accepted; the first that it would not have is replaced, and
the runner takes back the computed tokens from there on, as the scheduler does.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from sundog.actors.core.params.logprobs import PromptLogprobs, TokenLogprobs
from sundog.actors.core.params.sampling import Adapter, Sampling
from sundog.actors.core.request import Submit


@dataclass(slots=True)
class Admission:
    """A request that begins to run in this step, or resumes after a preemption.

    `token_ids` are all tokens known now: the prompt, and the outputs so far when it resumes;
    None in a world that only counts. `num_tokens` is their number, the first
    `num_prompt_tokens` of them the prompt's. The first `num_computed_tokens` of them are already
    in `block_ids` (a prefix hit). `block_ids` is the block table, slot `t` of the request living
    in block `block_ids[t // block_size]` at offset `t % block_size`. `adapter` None is the model itself.
    `num_host_tokens` of the computed ones were loaded from the host's memory.
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
    """`num_tokens` known tokens to compute for a request that has not caught up yet.

    With `samples` the chunk reaches the last known token: one token is sampled from its last
    position, and the request joins the decoding set from the next step on.
    """

    request_id: str
    num_tokens: int
    samples: bool


@dataclass(slots=True)
class Batch:
    """The work of one step, or of the first of up to `max_steps` equal decode steps.

    `finished` may name requests that ended while they waited, of which the runner knows nothing.
    Order of folding: forget `finished` and `preempted`, take in `admitted`, append `new_blocks`
    to block tables, then compute `chunks` and one token for each decoding request not in `idle`.
    `num_decodes` counts the latter. A batch with `max_steps` above 1 has no chunks and goes
    only to backends that count: the blocks of its later steps are not said. `preempted_for` names
    for each of `preempted` the request whose growth needed its blocks (perhaps its own); None: a reset did.
    `drafts` pairs decoding requests with the number of their drafts to verify, the first ones that the runner
    keeps; the runner forgets those of any other request that the batch computes.
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
        """The number of drafts that are verified."""
        return sum([num_drafts for _, num_drafts in self.drafts]) if self.drafts else 0

    @property
    def num_tokens(self) -> int:
        """Tokens computed in the (first) step, drafts included."""
        num_tokens = self.num_decodes + self.num_draft_tokens
        return num_tokens + sum([chunk.num_tokens for chunk in self.chunks]) if self.chunks else num_tokens

    def answered_by(self, answer: "StepResult") -> "Batch":
        """Names its answer, for a type checker."""
        return self


@dataclass(slots=True)
class StepResult:
    """The result of a batch from its backend.

    `end_times_s` holds the end of each step done, on the run's clock; its length is the number
    of steps. `tokens` pairs every sampling request with its token, in any order; None in a world
    that only counts, where each sampling request got one token a step and `ended` names those
    whose token in the last step was the end token.

    A request with drafts in the batch has a pair for each accepted one and for the token after them, in
    order; where tokens are only counted, `accepted` pairs it with the number of accepted ones, and `surplus`
    with those that were accepted behind the end of its answer, if any. `drafts` pairs decoding requests with
    the number of drafts that the backend now keeps for the next step that has them.

    `failed` pairs each request that cannot go on with the reason, in words for its client: the last step
    computed it like the others but gave it no token. It ends alone. The backend keeps it in the decoding set
    until a batch names it in `finished`; what it yields meanwhile is dropped.
    `logprobs` pairs requests that asked for them with those of their new token, `prompt_logprobs` those of
    the prompt tokens that were computed; `vectors` pairs requests with their prompt's, little-endian float32.
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
"""The reasons not to admit a request: when running requests are preempted, none is admitted; the policy may
give the next one a `quota` of 0; prompts may be held back for the sake of decodes, by
`prefill_schedule_interval`; its blocks may be on their way from the host's memory; `unknown` stands in what
is read from logs that do not say it."""
FinishReason = Literal["stop", "length", "abort", "error", "refused", "repetition", "handed"]
"""The reasons to end; `handed` is no end: another engine goes on with the request."""


class Blocked(NamedTuple):
    """The reason why no further request was admitted in a step: what the next in the queue lacked.

    All behind it wait for it.
    """

    request_id: str
    reason: Lack


@dataclass(slots=True)
class Finish:
    """A request that ended.

    `stop_reason` is the stop token. `error` says what went wrong, or why the policy refused the request; then
    it may come again after `retry_after_s`. One that is handed over leaves what is computed of it in
    `block_ids`; `moves` is what goes on elsewhere of one that was told to.
    """

    request_id: str
    reason: FinishReason
    stop_reason: int | str | None = None
    error: str | None = None
    retry_after_s: float | None = None
    moves: Submit | None = None
    block_ids: tuple[int, ...] = ()
