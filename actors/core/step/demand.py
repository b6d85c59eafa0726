"""The needs of a request that is to be admitted: tokens of the step's budget, and KV blocks."""

from dataclasses import dataclass

from sundog.actors.core.batch import Lack
from sundog.actors.core.request import Request
from sundog.actors.core.step.commit import Draft
from sundog.actors.core.step.state import SchedulerState
from sundog.actors.core.step.states import aligned_tokens


@dataclass(slots=True)
class Demand:
    """A waiting request's needs, to be admitted into a step.

    The request computes `num_tokens` beyond the `num_known_tokens` of the cached blocks `hit`, or of another
    server's, and needs room for `num_fitting_tokens` in all.
    """

    hit: list[int]
    num_known_tokens: int
    num_tokens: int
    num_held_tokens: int
    num_fitting_tokens: int
    needs_slot: bool = True
    """False for a load, which runs nothing."""
    is_held: bool = False
    """True if its prompt is held back for the sake of decodes (`cadence.py`)."""
    lacks: Lack | None = None
    """What a request of a model that keeps states lacks to compute any token: room in this step for a whole
    block, or the state that this very step computes for another."""


def demand_of(state: SchedulerState, draft: Draft, request: Request) -> Demand:
    """Return what a waiting request needs in this step, whether or not there is room for it. O(hit)"""
    config = state.config
    hit = state.kv.find_hit(request)
    num_known_tokens = len(hit) * config.block_size
    if request.submit.has_remote_kv and not request.num_preemptions:
        num_known_tokens = request.num_tokens - 1
    elif request.block_ids:
        num_known_tokens = request.num_computed_tokens
    num_tokens = request.num_tokens - num_known_tokens
    if draft.holds_prefills and num_tokens > 1:
        return Demand(
            hit,
            num_known_tokens,
            num_tokens=0,
            num_held_tokens=num_known_tokens,
            num_fitting_tokens=0,
            is_held=True,
        )
    if 0 < draft.threshold < num_tokens:
        num_tokens = draft.threshold
    if state.quota is not None and (num_tokens > 1 or state.pauses):
        quota = state.quota(request, state.view)
        num_tokens = num_tokens if quota is None else min(num_tokens, quota)
    if config.enable_chunked_prefill:
        num_tokens = min(num_tokens, draft.budget)
    if config.keeps_states:
        num_tokens = aligned_tokens(config, request, num_known_tokens, num_tokens)
        if num_tokens == 0:
            return Demand(
                hit,
                num_known_tokens,
                num_tokens=0,
                num_held_tokens=num_known_tokens,
                num_fitting_tokens=0,
                lacks="token budget",
            )
        if state.kv.waits_for_state(request, len(hit)):
            return Demand(
                hit,
                num_known_tokens,
                num_tokens=0,
                num_held_tokens=num_known_tokens,
                num_fitting_tokens=0,
                lacks="KV blocks",
            )
    held = min(num_known_tokens + num_tokens, config.max_model_len)
    fitting = min(request.num_tokens, config.max_model_len) if config.scheduler_reserve_full_isl else held
    if request.block_ids:  # they were fetched, for all that it computes now
        hit, fitting = [], 0
    return Demand(
        hit, num_known_tokens, num_tokens=num_tokens, num_held_tokens=held, num_fitting_tokens=fitting
    )
