"""Requests, as they arrive and as the scheduler stores them."""

import enum
from typing import Final

from sundog.actors.core.params.sampling import DEFAULTS, Adapter, Sampling
from sundog.actors.core.records import dataclass

TraceHeaders = tuple[tuple[str, str], ...]
"""W3C's `traceparent` and `tracestate` of the request's span; empty without one."""


@dataclass(slots=True)
class Begun:
    """State of a request that began on another engine.

    `num_output_tokens` counts its outputs so far, `token_ids` are they (None if tokens are only counted).
    `has_run`: it had been admitted there.
    """

    num_output_tokens: int
    token_ids: tuple[int, ...] | None
    has_run: bool
    first_token_s: float | None
    last_token_s: float | None


@dataclass(slots=True)
class Submit:
    """AsyncLLM sends a new request to the Scheduler, through the Router.

    There is no output length: the future is no part of a request. A request that `hands_over` ends with its
    first token, and its blocks are kept until another server has fetched them. A request that has `begun` on
    another engine continues behind its last token. One with `refused` was turned away by the router policy,
    for this reason.

    Args:
        request_id: Id of the request.
        arrival_s: Arrival in seconds on the run's clock.
        num_prompt_tokens: Number of prompt tokens.
        max_tokens: Largest number of output tokens.
        prompt_token_ids: The prompt; None if tokens are only counted.
        block_hashes: Hashes of the prompt's full blocks, for the prefix cache; None if unknown.
        priority: Priority for the policies that use it; smaller is more urgent.
        tenant: Tenant of the request, if any.
        slo_ttft_s: Target for the time to the first token, in seconds.
        slo_tpot_s: Target for the time per further token, in seconds.
        slo_e2e_s: Target for the time to the end, in seconds.
        predicted_tokens: Predicted output length. It orders requests, and ends none.
        session: Conversation that the request is a turn of.
        has_remote_kv: Whether another server computed the prompt. Its last token is computed again here, to
            sample the first output token.
        retry_after_s: Seconds after which the client of a refused request may try again.
        reached_s: Time at which the request left the API processes of a simulated server; None until then.

    Example:
        >>> import sundog
        >>> sundog.Submit("r1", arrival_s=0.0, num_prompt_tokens=12, max_tokens=4).num_prompt_tokens
        12
    """

    request_id: str
    arrival_s: float
    num_prompt_tokens: int
    max_tokens: int
    prompt_token_ids: tuple[int, ...] | None = None
    block_hashes: tuple[object, ...] | None = None
    sampling: Sampling = DEFAULTS
    eos_token_id: int | None = None
    priority: int = 0
    cache_salt: str | None = None
    tenant: str | None = None
    slo_ttft_s: float | None = None
    predicted_tokens: int | None = None
    slo_tpot_s: float | None = None
    slo_e2e_s: float | None = None
    adapter: Adapter | None = None
    session: str | None = None
    trace_headers: TraceHeaders = ()
    has_remote_kv: bool = False
    refused: str | None = None
    retry_after_s: float | None = None
    hands_over: bool = False
    begun: Begun | None = None
    reached_s: float | None = None


NO_TOKENS: Final = frozenset[int]()


class Status(enum.Enum):
    WAITING = "waiting"
    RUNNING = "running"
    PREEMPTED = "preempted"
    FINISHED = "finished"


class Request:
    """A request as the scheduler stores it, and as policies see it.

    It belongs to one `SchedulerState`. While `in_lockstep`, its counts of tokens are those of the step in
    which it joined: `View` and `Lockstep.settle` have the exact ones.

    Example:
        >>> import sundog
        >>> submit = sundog.Submit("r1", arrival_s=0.0, num_prompt_tokens=12, max_tokens=4)
        >>> request = sundog.Request(submit, max_model_len=100)
        >>> request.num_tokens, request.num_preemptions
        (12, 0)
    """

    __slots__ = (
        "admission_step",
        "block_ids",
        "block_keys",
        "decodes_on_wire",
        "dropped_through",
        "first_grow",
        "first_token_s",
        "in_lockstep",
        "joined",
        "last_step",
        "last_token_s",
        "length_limit",
        "next_decode_step",
        "next_fill",
        "num_computed_tokens",
        "num_drafts",
        "num_in_flight",
        "num_known_blocks",
        "num_loaded_tokens",
        "num_named_blocks",
        "num_offloaded_blocks",
        "num_overtakes",
        "num_preemptions",
        "num_registered_blocks",
        "num_tokens",
        "num_tokens_at_admission",
        "num_tokens_planned",
        "order",
        "request_id",
        "shared_prefix_tokens",
        "shown",
        "status",
        "stop_tokens",
        "submit",
        "token_ids",
        "waiting_since",
    )

    def __init__(self, submit: Submit, max_model_len: int) -> None:
        self.submit = submit
        self.request_id = submit.request_id
        self.status = Status.WAITING
        self.token_ids = None if submit.prompt_token_ids is None else list(submit.prompt_token_ids)
        self.num_tokens = submit.num_prompt_tokens
        self.first_token_s: float | None = None
        self.last_token_s: float | None = None
        """Time of its latest token in seconds; stale while `in_lockstep`: use `Lockstep.last_token_s`."""
        if submit.begun is not None:
            self._go_on(submit.begun)
        self.num_computed_tokens = 0
        self.num_in_flight = 0
        """Tokens to be sampled by steps whose results are not back."""
        self.num_drafts = 0
        """Drafts of its next tokens that the runner keeps: the most that the next step can verify."""
        self.num_tokens_planned = 0
        """Known tokens when it was last planned, for speculation; their full blocks are registered."""
        num_tokens = submit.num_prompt_tokens
        self.length_limit = max(num_tokens + 1, min(max_model_len, num_tokens + submit.max_tokens))
        """Number of tokens at which it must end; a prompt that fills the context still samples one."""
        self.stop_tokens = _stop_tokens(submit)
        self.num_preemptions = 0
        self.waiting_since = 0
        """Number of the next step when it last began to wait."""
        self.num_overtakes = 0
        """Times, in this wait, that a later request was admitted before it because it did not fit."""
        self.admission_step = 0
        self.num_tokens_at_admission = 0
        self.order = 0
        """Number of its latest admission, by which running requests are ordered."""
        self.block_ids: list[int] = []
        self.block_keys: list[object] = list(submit.block_hashes or ())
        self.num_offloaded_blocks = 0
        """Number of its first blocks that need not be copied to host memory (again)."""
        self.num_loaded_tokens = 0
        """Tokens whose blocks were loaded from host memory for the current, or coming, admission."""
        self.shared_prefix_tokens = 0
        """Tokens of its found prefix if the last of its blocks lacks a linear-attention state; else 0."""
        self.num_registered_blocks = 0
        self.num_known_blocks = 0
        """Number of its first blocks that may have a key in the pool, or other holders, while it runs."""
        self.num_named_blocks = 0
        """Number of its first blocks whose keys others may look up; the keys of the rest are its own."""
        self.decodes_on_wire = False
        """Whether the runner counts it in its decoding set (see `core/batch.py`)."""
        self.in_lockstep = False
        self.shown: object | None = None
        """View of it for a user's policy (`policies/shown.py`), made at the first call."""
        self.joined = 0
        self.last_step = 0
        """Number of the step, in a pipeline, in which it was last scheduled."""
        self.dropped_through = 0
        """Number of the last step, in a pipeline, whose results for it are discarded."""
        self.next_decode_step = 0
        """First step, in a pipeline planned ahead, that may compute the token it samples next."""
        self.first_grow = 0
        self.next_fill = 0

    def _go_on(self, begun: Begun) -> None:
        """Restore the tokens and times that the request had on the engine where it began."""
        self.num_tokens += begun.num_output_tokens
        if self.token_ids is not None and begun.token_ids is not None:
            self.token_ids += begun.token_ids
        if begun.has_run:
            self.status = Status.PREEMPTED
        self.first_token_s, self.last_token_s = begun.first_token_s, begun.last_token_s

    @property
    def num_output_tokens(self) -> int:
        return self.num_tokens - self.submit.num_prompt_tokens

    def __repr__(self) -> str:
        return (
            f"<Request {self.request_id} {self.status.value}"
            f" {self.num_computed_tokens}/{self.num_tokens} tokens, {len(self.block_ids)} blocks>"
        )


def _stop_tokens(submit: Submit) -> frozenset[int]:
    """Return the tokens that end a request: its stop tokens, and the end token unless ignored."""
    if submit.eos_token_id is None and not submit.sampling.stop_token_ids:
        return NO_TOKENS
    tokens = set(submit.sampling.stop_token_ids)
    if submit.eos_token_id is not None and not submit.sampling.ignore_eos:
        tokens.add(submit.eos_token_id)
    return frozenset(tokens)
