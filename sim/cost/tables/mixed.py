"""Attention of a step that prefills and decodes: one kernel for both, in tiles of queries.

With a chunk in the batch FlashAttention runs its prefill kernel for all requests. A decode is then
a tile of its own in every query head: `TILE_ROWS` rows are computed of which one is used, near the
speed of prefill, unless reading its keys and values takes longer. Profiles of Llama-3.1-8B in vLLM
0.19 on an RTX 4090 and an RTX PRO 6000 (LLMServingSim project, MIT) measure it: 64 decodes of 128,
512 and 1,024 tokens add 148, 355 and 623 microseconds a layer to a chunk of 16 on the one card, 75,
173 and 302 on the other. The constants below are from these and nothing else.

FlashAttention 2 (compute capability 8 and 12) does not split keys there: a tile walks through its
context alone, so no step is shorter than its longest context takes; it launches a tile for each
`TILE_ROWS` queries of the longest chunk in every request, empty or not; and the query heads of a
group share what they read only while the L2 cache holds one key head of all requests.

FlashAttention 3 (compute capability 9) puts the query heads of a group into one tile and splits
long contexts in either kernel: there decodes take what they take alone, less the launch, and each
key head of each one tile more.
"""

from typing import Final

from sim.cost.tables.attention import ContextAttention, GenerationAttention
from sim.hardware.gpu import Gpu

TILE_ROWS: Final = 64
TILE_S: Final = 4.4e-6
"""What a tile takes whatever its context: 5.0 and 3.9 microseconds of a multiprocessor."""
PIPELINED: Final = 0.5
"""As much of it FlashAttention 3 leaves, whose next tile is loaded meanwhile; fitted to one server
(Llama-2-7b on an H100, 20 requests a second)."""
TILE_SPEED: Final = 0.83
"""A row of such a tile against a row of a prompt: 0.85 and 0.81 of its time."""
EMPTY_TILE_S: Final = 0.3e-6
"""An empty tile: 0.27 and 0.34 microseconds, from 64 decodes beside chunks of 16 and of 2,048."""
LONE_TILE: Final = 0.78
"""A tile that has the GPU for itself against one among many: 0.80 and 0.76 of its time, from one
decode of 4,096 tokens beside a chunk of 16."""
SPILL: Final = 1.5
"""Beyond the L2 cache by this share of it, nothing is shared any more (128 decodes of 4,096 tokens
read 3.0 and 4 times their keys, at 2.1 and 3.7 times the cache)."""


class MixedAttention:
    """One layer's attention of chunks and decodes together; `heads` are a rank's query heads."""

    def __init__(
        self, context: ContextAttention, generation: GenerationAttention, gpu: Gpu, heads: int, kv_heads: int
    ) -> None:
        self.context, self.generation = context, generation
        self.heads, self.kv_heads = heads, kv_heads
        self.splits_contexts, self.num_sms, self.l2_bytes = gpu.splits_contexts, gpu.num_sms, gpu.l2_bytes

    def seconds(self, chunks: tuple[tuple[int, int], ...], num_decodes: int, context_tokens: float) -> float:
        """`context_tokens` are those of all decodes, which are taken to be equally long."""
        work_s = 0.0
        for new, before in chunks:
            work_s += self.context.seconds(new, before)
        if self.splits_contexts:
            if num_decodes:
                alone_s = self.generation.seconds(num_decodes, context_tokens / num_decodes)
                work_s += max(alone_s - self.context.launch_s, 0.0)
                tile_s = TILE_S * PIPELINED
                work_s += num_decodes * self.kv_heads * tile_s / self.num_sms
            return work_s
        longest = float(max([new + before for new, before in chunks]))
        if num_decodes:
            work_s += max(self._tiles_s(num_decodes, context_tokens), self._read_s(context_tokens))
            tiles = -(-max([new for new, _ in chunks]) // TILE_ROWS) - 1
            work_s += num_decodes * tiles * self.heads * EMPTY_TILE_S / self.num_sms
            longest = max(longest, context_tokens / num_decodes)
        tile_s = LONE_TILE * TILE_ROWS * self.context.pair_s / self.heads * self.num_sms
        return max(work_s, self.context.launch_s + longest * tile_s)

    def _tiles_s(self, num_decodes: int, context_tokens: float) -> float:
        """All tiles of the decodes, spread over the multiprocessors."""
        rows_s = TILE_SPEED * TILE_ROWS * self.context.pair_s * context_tokens
        return num_decodes * self.heads * TILE_S / self.num_sms + rows_s

    def _read_s(self, context_tokens: float) -> float:
        """Reading all keys and values, as often as the cache makes it necessary."""
        read_bytes = context_tokens * self.generation.row_bytes
        spilled = (read_bytes / self.kv_heads / self.l2_bytes - 1) / SPILL
        again = min(max(spilled, 0.0), 1.0) * (self.heads / self.kv_heads - 1)
        return (1 + again) * read_bytes / self.generation.bytes_per_s
