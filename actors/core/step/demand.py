"""Needs of a request to be admitted: tokens of the step's budget, and KV blocks.

A request may have blocks in host memory: then it needs their load. As in vLLM it keeps its place in the
queue, holds its blocks from the start of the load, and uses none of the step's token budget; requests behind
it go on. If another request already loads a block, this one waits for it. Unlike in vLLM a request takes
blocks for all its known tokens at once, so that requests with finished loads never wait for each other's
blocks.
"""

from sundog.actors.core.batch import Lack
from sundog.actors.core.blocks.runs import Key
from sundog.actors.core.config import SchedulerConfig
from sundog.actors.core.records import dataclass
from sundog.actors.core.request import Request
from sundog.actors.core.step.draft import Draft
from sundog.actors.core.step.state import SchedulerState


@dataclass(slots=True)
class Demand:
    """Tokens and blocks that a waiting request needs to be admitted.

    The request computes `num_tokens` beyond `num_known_tokens`, those of the cached blocks `hit` or computed
    by another server, and needs blocks for `num_fitting_tokens` in total.
    """

    hit: list[int]
    num_known_tokens: int
    num_tokens: int
    num_held_tokens: int
    num_fitting_tokens: int
    needs_slot: bool = True
    """Whether the request needs a running slot; False for a load, which computes nothing."""
    is_held: bool = False
    """Whether its prompt is held back to protect decodes (`cadence.py`)."""
    lacks: Lack | None = None
    """What a request with linear-attention states lacks to compute any token: room in this step for a
    whole block, or the state that this very step computes for another request.
    """


def demand_of(state: SchedulerState, draft: Draft, request: Request) -> Demand:
    """Return the tokens and blocks that a waiting request needs in this step, whether or not they are free.
    O(hit)
    """
    config = state.config
    hit = state.kv.find_hit(request)
    num_known_tokens = len(hit) * config.block_size
    if request.submit.has_remote_kv and not request.num_preemptions:
        num_known_tokens = request.num_tokens - 1
    elif request.block_ids:
        num_known_tokens = request.num_computed_tokens
    num_tokens = request.num_tokens - num_known_tokens
    if draft.holds_prefills and num_tokens > 1:
        return _none(hit, num_known_tokens, is_held=True)
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
            return _none(hit, num_known_tokens, lacks="token budget")
        if state.kv.waits_for_state(request, len(hit)):
            return _none(hit, num_known_tokens, lacks="KV blocks")
    held = min(num_known_tokens + num_tokens, config.max_model_len)
    fitting = min(request.num_tokens, config.max_model_len) if config.scheduler_reserve_full_isl else held
    if request.block_ids:  # they were fetched, for all that it computes now
        hit, fitting = [], 0
    return Demand(
        hit, num_known_tokens, num_tokens=num_tokens, num_held_tokens=held, num_fitting_tokens=fitting
    )


def _none(
    hit: list[int], num_known_tokens: int, *, is_held: bool = False, lacks: Lack | None = None
) -> Demand:
    """Return the demand of a request that cannot compute anything in this step."""
    return Demand(
        hit,
        num_known_tokens,
        num_tokens=0,
        num_held_tokens=num_known_tokens,
        num_fitting_tokens=0,
        is_held=is_held,
        lacks=lacks,
    )


def aligned_tokens(config: SchedulerConfig, request: Request, start: int, num_tokens: int) -> int:
    """Return how many tokens from `start` on a step computes; 0 if no block would end within it.

    For models with states of linear attention, as in vLLM's `_mamba_block_aligned_split`. Law: a state is
    kept only where a chunk ends with a block. So a prompt is first computed up to the end of its last full
    block, and the rest in a further step; the second request with the same prefix stops where they part, so
    that the third finds a state there.
    """
    size, most = config.block_size, config.max_num_batched_tokens
    prefill_end = max(request.submit.num_prompt_tokens, request.num_tokens - 1)
    if start >= prefill_end or num_tokens <= 0:
        return num_tokens
    if config.long_prefill_token_threshold:
        most = min(most, config.long_prefill_token_threshold)
    end = start + num_tokens
    if end < prefill_end:
        aligned = end // size * size
        # A block that no step can hold is computed in parts; a smaller one waits for a step with room.
        if aligned > start or size <= most:
            end = aligned
    stops = [(request.num_tokens - 1) // size * size, request.shared_prefix_tokens]
    if start % size:
        stops.append((start // size + 1) * size)
    return max(min([stop for stop in stops if start < stop < end], default=end) - start, 0)


@dataclass(slots=True)
class HostLoad:
    """Load that a waiting request needs: its `demand` of blocks, and all `keys` of its first blocks.

    With `is_under_way` another request already loads some of these blocks, and this one waits.
    """

    demand: Demand
    keys: list[Key]
    is_under_way: bool

    def begin(self, state: SchedulerState, request: Request) -> None:
        """Allocate the request's blocks and start loading those in host memory. O(hit)"""
        kv, host = state.kv, state.kv.host
        assert host is not None, "there is host memory"
        hit, num_found = self.demand.hit, len(self.keys)
        kv.hold(request, hit, self.demand.num_fitting_tokens)
        request.num_computed_tokens = min(num_found * kv.block_size, request.num_tokens - 1)
        request.num_loaded_tokens = request.num_computed_tokens - len(hit) * kv.block_size
        request.num_offloaded_blocks = num_found
        host.touch(self.keys)
        host.load(request.request_id, self.keys[len(hit) :], state.view.now_s)
        state.handovers.fetch(request)


def find_load(state: SchedulerState, request: Request) -> HostLoad | None:
    """Return the load of a waiting request's blocks that only host memory has, if any. O(hit)"""
    kv, host, submit = state.kv, state.kv.host, request.submit
    assert host is not None, "there is host memory"
    is_elsewhere = submit.has_remote_kv and not request.num_preemptions
    if request.block_ids or is_elsewhere or submit.sampling.prompt_logprobs is not None:
        return None
    hit = kv.find_hit(request)
    num_found = len(hit) + kv.num_on_host(request, len(hit), state.view.now_s)
    if num_found == len(hit):
        return None
    keys = request.block_keys[:num_found]
    num_tokens = min(request.num_tokens, state.config.max_model_len)
    num_loaded_tokens = (num_found - len(hit)) * kv.block_size
    demand = Demand(
        hit,
        len(hit) * kv.block_size,
        num_tokens=num_loaded_tokens,
        num_held_tokens=num_tokens,
        num_fitting_tokens=num_tokens,
        needs_slot=False,
    )
    return HostLoad(demand, keys, host.is_loading(keys[len(hit) :]))
