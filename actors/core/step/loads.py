"""Loads of KV blocks from the host's memory, for requests that are next in the queue.

As in vLLM a request that finds blocks there keeps its place in the queue, holds its blocks from the beginning
of the load, and takes no tokens of the step's budget; requests behind it go on. Blocks that are on their way
for another request are waited for. Unlike in vLLM a request takes blocks for all that it knows at once, so
that requests whose loads are done never wait for each other's blocks.
"""

from dataclasses import dataclass

from sundog.actors.core.blocks.runs import Key
from sundog.actors.core.request import Request
from sundog.actors.core.step.demand import Demand
from sundog.actors.core.step.state import SchedulerState


@dataclass(slots=True)
class HostLoad:
    """A load that a waiting request needs: its `demand` of blocks, and all `keys` of its first blocks.

    It `is_under_way` if another request loads some of these blocks: then it waits for them.
    """

    demand: Demand
    keys: list[Key]
    is_under_way: bool

    def begin(self, state: SchedulerState, request: Request) -> None:
        """Give the request its blocks, and have those filled that the host's memory holds. O(hit)"""
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
    """Find what the host's memory holds of a waiting request, beyond what the GPU does. O(hit)"""
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
