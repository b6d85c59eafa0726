"""Loads of KV blocks from the host's memory, for requests that are next in the queue.

As in vLLM a request that finds blocks there keeps its place in the queue, holds its blocks from the beginning
of the load, and takes no tokens of the step's budget; requests behind it go on. Blocks that are on their way
for another request are waited for. Unlike in vLLM a request takes blocks for all that it knows at once, so
that requests whose loads are done never wait for each other's blocks.
"""

from actors.core.batch import Lack
from actors.core.request import Request
from actors.core.step.state import SchedulerState


def load(state: SchedulerState, request: Request, reserved_blocks: int) -> Lack | None:
    """Load what the host's memory holds of a request, beyond what the GPU does; None if that is nothing.

    Returns `KV load` while blocks are on their way, `KV blocks` if there is no room for them. O(hit)
    """
    kv, host, submit = state.kv, state.kv.host, request.submit
    assert host is not None, "there is host memory"
    if request.request_id in state.handovers.fetching:
        return "KV load"
    is_elsewhere = submit.has_remote_kv and not request.num_preemptions
    if request.block_ids or is_elsewhere or submit.sampling.prompt_logprobs is not None:
        return None
    hit = kv.find_hit(request)
    num_found = len(hit) + kv.num_on_host(request, len(hit), state.view.now_s)
    if num_found == len(hit):
        return None
    keys = request.block_keys[:num_found]
    coming = keys[len(hit) :]
    if host.is_loading(coming):
        return "KV load"
    num_tokens = min(request.num_tokens, state.config.max_model_len)
    if not kv.fits(hit, num_tokens, reserved_blocks):
        return "KV blocks"
    kv.hold(request, hit, num_tokens)
    request.num_computed_tokens = min(num_found * kv.block_size, request.num_tokens - 1)
    request.num_loaded_tokens = request.num_computed_tokens - len(hit) * kv.block_size
    request.num_offloaded_blocks = num_found
    host.touch(keys)
    host.load(request.request_id, coming, state.view.now_s)
    state.handovers.fetch(request)
    return "KV load"
