"""Which batches vLLM replays from captured graphs: of up to how many tokens, and what they are padded to.

The rule is vLLM's own (`_set_cudagraph_sizes`): graphs up to twice what all requests that may run
decode in a step, but at most `MOST_TOKENS`, and never beyond a step's budget.
"""

from typing import Final

from actors.core.engine_version import parse_version
from sim.hardware.gpu import Gpu

MOST_TOKENS: Final = 512
MOST_TOKENS_BLACKWELL: Final = 1024
"""On data-centre Blackwell (compute capability 10), merged in July 2026."""
BLACKWELL_SINCE: Final = (0, 32)
"""The first vLLM known to do so."""


def graph_sizes(most_tokens: int) -> list[int]:
    """Numbers of tokens for which graphs are captured: a batch is padded to the next."""
    sizes = [1, 2, 4, *range(8, 256, 8), *range(256, most_tokens + 1, 16)]
    return [size for size in sizes if size <= most_tokens]


def largest_graph(
    gpu: Gpu, version: str, max_num_seqs: int, max_num_batched_tokens: int, num_drafts: int = 0
) -> int:
    """Tokens of the largest batch that is replayed; larger ones are launched kernel by kernel."""
    is_blackwell = 10 <= gpu.compute_capability < 11 and parse_version(version) >= BLACKWELL_SINCE
    most = MOST_TOKENS_BLACKWELL if is_blackwell else MOST_TOKENS
    decodes = max_num_seqs * (1 + num_drafts)
    if max_num_batched_tokens <= min(2 * decodes, most):
        return max_num_batched_tokens
    return graph_sizes(min(2 * decodes, most))[-1]
