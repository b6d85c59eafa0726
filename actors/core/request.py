"""A request: as it arrives, and as the scheduler keeps it."""

import enum
from dataclasses import dataclass
from typing import Final

from sundog.actors.core.params.sampling import DEFAULTS, Adapter, Sampling

TraceHeaders = tuple[tuple[str, str], ...]
"""W3C's `traceparent` and `tracestate` of the span that a request belongs to; empty where none is."""


@dataclass(slots=True)
class Begun:
    """Holds what a request brings along that has been on another engine.

    It has `num_output_tokens`, which are `token_ids` (None where they are only counted). With `has_run` it
    had been admitted there.
    """

    num_output_tokens: int
    token_ids: tuple[int, ...] | None
    has_run: bool
    first_token_s: float | None
    last_token_s: float | None


@dataclass(slots=True)
class Submit:
    """AsyncLLM tells the Scheduler, through the Router, of a new request.

    There is no output length: the future is not a part of a request. `prompt_token_ids` is None
    in a world that only counts; `block_hashes` identifies the prompt's full blocks for the prefix
    cache, None when nothing is known about them. `arrival_s` is on the run's clock. `slo_ttft_s`
    is the wanted time to the first token, `slo_tpot_s` that from token to token, `slo_e2e_s` that to the
    end. `predicted_tokens` is a guess, made before the engine, of the
    answer's length; right or wrong, it orders requests and ends none. Requests of one `session` are turns
    of one conversation. With `has_remote_kv` another server has computed the prompt, and its keys and values
    are there when the request is admitted; its last token is computed again, for the first sample. One that
    `hands_over` ends with its first token, and its blocks are kept for another server to fetch. One that has
    `begun` elsewhere goes on behind its last token, which is computed here as the prompt's last would be.
    With `refused` the Router's policy turns it away, for this reason: its client may come again after
    `retry_after_s`.
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


NO_TOKENS: Final = frozenset[int]()


class Status(enum.Enum):
    WAITING = "waiting"
    RUNNING = "running"
    PREEMPTED = "preempted"
    FINISHED = "finished"


class Request:
    """The scheduler's record of one request; owned by one `SchedulerState`.

    While `in_lockstep` the counts of tokens are as of the step in which it joined; ask
    `Lockstep.settle` for exact ones. Otherwise they are exact.
    """

    __slots__ = (
        "admission_step",
        "block_ids",
        "block_keys",
        "decodes_on_wire",
        "dropped_through",
        "first_token_s",
        "in_lockstep",
        "joined",
        "last_step",
        "last_token_s",
        "length_limit",
        "next_decode_step",
        "next_fill",
        "next_grow",
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
        """The time of its latest token; of an earlier one if `in_lockstep`: ask `Lockstep.last_token_s`."""
        if submit.begun is not None:
            self._go_on(submit.begun)
        self.num_computed_tokens = 0
        self.num_in_flight = 0
        """Tokens that steps will have sampled whose results have not come back."""
        self.num_drafts = 0
        """Guesses of its next tokens that the runner keeps: what the next step may verify."""
        self.num_tokens_planned = 0
        """The tokens known when it was last planned, for speculation; their full blocks are registered."""
        num_tokens = submit.num_prompt_tokens
        self.length_limit = max(num_tokens + 1, min(max_model_len, num_tokens + submit.max_tokens))
        """A prompt that fills the context samples once all the same."""
        self.stop_tokens = _stop_tokens(submit)
        self.num_preemptions = 0
        self.waiting_since = 0
        """The step that was planned next when it last began to wait."""
        self.num_overtakes = 0
        """The number of times, in this wait, that another was admitted before it because it did not fit."""
        self.admission_step = 0
        self.num_tokens_at_admission = 0
        self.order = 0
        """The number of its latest admission; running requests are listed in this order."""
        self.block_ids: list[int] = []
        self.block_keys: list[object] = list(submit.block_hashes or ())
        self.num_offloaded_blocks = 0
        """The number of its first blocks that need not be copied to the host's memory (again)."""
        self.num_loaded_tokens = 0
        """Tokens whose blocks were copied from there for its present, or coming, admission."""
        self.shared_prefix_tokens = 0
        """The tokens of its prefix in blocks that were found, if the last of them lacks a state; else 0."""
        self.num_registered_blocks = 0
        self.num_known_blocks = 0
        """The number of its first blocks that may have a key in the pool, or other readers, while it runs."""
        self.num_named_blocks = 0
        """The number of its first blocks with keys that others may look up; the rest are its own."""
        self.decodes_on_wire = False
        """True if the runner counts it in its decoding set (see `core/batch.py`)."""
        self.in_lockstep = False
        self.shown: object | None = None
        """The view that a user's policy has of it (`policies/shown.py`), once it was asked about it."""
        self.joined = 0
        self.last_step = 0
        """The step, in a pipeline, in which it was scheduled last."""
        self.dropped_through = 0
        """The step, in a pipeline, through which what is in flight for it is thrown away."""
        self.next_decode_step = 0
        """The first step, in a pipeline planned ahead, that may compute the token that it samples next."""
        self.next_grow = 0
        self.next_fill = 0

    def _go_on(self, begun: Begun) -> None:
        """Have what it had on the engine where it was before."""
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
    """The tokens that end a request: its stop tokens, and the end token unless ignored."""
    if submit.eos_token_id is None and not submit.sampling.stop_token_ids:
        return NO_TOKENS
    tokens = set(submit.sampling.stop_token_ids)
    if submit.eos_token_id is not None and not submit.sampling.ignore_eos:
        tokens.add(submit.eos_token_id)
    return frozenset(tokens)
