"""The ends of chunks where a model keeps states, as vLLM's `_mamba_block_aligned_split` has them.

Law: a state is kept only where a chunk ends with a block. So a prompt is computed up to the end of its last
full block first, and the rest in a step of its own; the second request that begins like another stops where
they part, so that the third finds a state there.
"""

from sundog.actors.core.config import SchedulerConfig
from sundog.actors.core.request import Request


def aligned_tokens(config: SchedulerConfig, request: Request, start: int, num_tokens: int) -> int:
    """Return how many of the tokens from `start` on a step computes; 0 if no block would end in it."""
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
