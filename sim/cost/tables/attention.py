"""Measured attention: of prompts' chunks, of decodes, and of both in one kernel.

If a step prefills and decodes, one kernel does both, in tiles of queries. With a chunk in the batch
FlashAttention runs its prefill kernel for all requests. A decode is then a tile of its own in every query
head: `TILE_ROWS` rows are computed of which one is used, near the speed of prefill, unless reading its keys
and values takes longer. Profiles of Llama-3.1-8B in vLLM 0.19 on an RTX 4090 and an RTX PRO 6000
(LLMServingSim project, MIT) measure it: 64 decodes of 128, 512 and 1,024 tokens add 148, 355 and 623
microseconds a layer to a chunk of 16 on the one card, 75, 173 and 302 on the other. The constants below come
from these and nothing else.

FlashAttention 2 (compute capability 8 and 12) does not split keys there: a tile walks through its context
alone, so no step is shorter than its longest context takes; it launches a tile for each `TILE_ROWS` queries
of the longest chunk in every request, empty or not; and the query heads of a group share what they read only
while the L2 cache holds one key head of all requests.

FlashAttention 3 (compute capability 9) puts the query heads of a group into one tile, so that a decode is a
tile for each key head. Up to `NARROW_ROWS` rows of the longest chunk it runs the kernel of decodes, with one
group of warps, which splits long contexts: there decodes take as long as alone, less the launch. Beyond, two
groups of warps compute tiles of `WIDE_ROWS`, of which a decode uses one for each head of the group, and
contexts are not split: a multiprocessor computes all rows as fast as those of a prompt, and waits for keys
and values, which no other tile has brought into the cache (`use_one_mma_wg`, `tile_size_fwd_sm90` and
`num_splits_heuristic` of vLLM's flash-attention).
"""

import math
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from sundog.sim.cost.tables.interpolate import Floats, Lines, Points, distinct, log_interp, nearest
from sundog.sim.cost.tables.outliers import mended_grid, mended_line
from sundog.sim.cost.work import Coverage
from sundog.sim.hardware.gpu import Gpu

KV_BYTES = {"bfloat16": 2, "float16": 2, "float8": 1}
STREAMED = 0.95
"""Share of the data sheet's bandwidth that no kernel exceeds when reading keys and values."""
TYPICAL = 2048.0
COLD = 2
"""Multiple of the L2 cache from which a repeated call finds almost none of its data in the cache."""


def heads_like(
    points: Points, num_heads: int, num_kv_heads: int, head_dim: int
) -> tuple[NDArray[np.bool_], int, int]:
    """Return the rows that were measured with heads most like these, and the heads they have.

    Heads are compared first by size, then by the number of queries that share a key, then by the number of
    keys.
    """
    dim = nearest(head_dim, distinct(points[:, 2])[0].tolist())
    rows = points[:, 2] == dim
    group = num_heads / num_kv_heads
    pairs = set(zip(*points[rows][:, :2].T.tolist(), strict=True))
    heads, kv_heads = min(
        pairs,
        key=lambda pair: (
            abs(math.log(pair[0] / pair[1] / group)),
            abs(math.log(pair[1] / num_kv_heads)),
            pair,
        ),
    )
    rows &= (points[:, 0] == heads) & (points[:, 1] == kv_heads)
    return rows, heads, kv_heads


class ContextAttention:
    """Attention of a prompt's chunk over the context before it and itself.

    A chunk of `new` tokens after `before` has new x before + new (new + 1) / 2 pairs of a query and a key; it
    takes as long as a whole prompt with as many pairs. Heads that were not measured take the share of the
    most similar ones. `pair_s` is the time of a pair in a prompt of `TYPICAL` tokens, without the launch.
    """

    def __init__(
        self, tables: dict[str, Any], heads: int, kv_heads: int, dim: int, coverage: Coverage
    ) -> None:
        points: Points = tables["context"]
        rows, measured, _ = heads_like(points, heads, kv_heads, dim)
        self._lengths: list[float] = points[rows][:, 3].astype(np.float64).tolist()
        scale = heads / measured * dim / points[rows][0, 2]
        seconds = mended_line(points[rows][:, 3], tables["context_s"][rows].astype(np.float64)) * scale
        self._seconds: list[float] = np.maximum.accumulate(seconds).tolist()
        self._coverage = coverage
        self.launch_s: float = self._seconds[0]
        length = min(TYPICAL, self._lengths[-1])
        whole_s = log_interp(length, self._lengths, self._seconds)
        self.pair_s: float = (whole_s - self.launch_s) / (length * (length + 1) / 2)

    def seconds(self, new: int, before: int) -> float:
        """Return the seconds of one chunk in one layer."""
        pairs = new * before + new * (new + 1) / 2
        length = max((math.sqrt(8 * pairs + 1) - 1) / 2, 1.0)
        self._coverage.note("context attention", length, self._lengths[0], self._lengths[-1])
        return log_interp(length, self._lengths, self._seconds)


class GenerationAttention:
    """Attention of one token per request over its context, in a kernel of its own.

    The time depends on the number of (request, key head) rows, so a model with more key heads than were
    measured is priced as that many more requests. Interpolation is logarithmic between measured batches,
    proportional beyond them, and linear between contexts, as reading takes time.

    The tables repeat one call, so keys and values that fit into the L2 cache come out of it: 64 decodes of
    512 tokens on an RTX PRO 6000 (128 MB of L2) take 50 microseconds in the table and 127 in a server, where
    every layer has keys of its own. So a point below `COLD` times the cache takes at least the launch of its
    batch and the time to read its bytes from memory at the speed of the largest measured point: 112
    microseconds there.

    FlashAttention 3 is bounded from above as well, by the launch of one request and reading all bytes, or by
    the launch of the batch. Its table takes up to 1.3 times as long between one and eight times the cache,
    whatever the batch, and a server does not: TPOT of Llama-2-7b at five loads is a straight line in the
    bytes read.

    A table measured with another cache type (`measured_dtype`) is used by the bytes read.
    """

    def __init__(
        self,
        tables: dict[str, Any],
        heads: int,
        kv_heads: int,
        dim: int,
        gpu: Gpu,
        coverage: Coverage,
        kv_dtype: str = "bfloat16",
        measured_dtype: str | None = None,
    ) -> None:
        points: Points = tables["generation"]
        value_bytes = KV_BYTES[measured_dtype or kv_dtype]
        rows, _, measured_kv = heads_like(points, heads, kv_heads, dim)
        self._requests_per_request = kv_heads / measured_kv
        measured_dim = int(points[rows][0, 2])
        grid = _Grid(points[rows], tables["generation_s"][rows].astype(np.float64))
        token_bytes = 2 * measured_kv * measured_dim * value_bytes
        limit = gpu.memory_bandwidth_bytes_per_s * STREAMED
        self.bytes_per_s: float = min(grid.bytes_per_s(token_bytes), limit)
        self.row_bytes: int = 2 * kv_heads * dim * KV_BYTES[kv_dtype]
        read_bytes = grid.batches[:, None] * grid.contexts * token_bytes
        read_s = read_bytes / self.bytes_per_s
        seconds = grid.filled(read_s)
        launches = seconds[:, :1]
        bounded = np.where(read_bytes < COLD * gpu.l2_bytes, np.maximum(seconds, launches + read_s), seconds)
        if gpu.splits_contexts:
            bounded = np.minimum(bounded, np.maximum(launches[0] + read_s, launches))
        rising = np.maximum.accumulate(np.maximum.accumulate(bounded, axis=1), axis=0)
        # Of smaller values as many tokens more are read in a time.
        self._batches, self._contexts = grid.batches, grid.contexts * (value_bytes / KV_BYTES[kv_dtype])
        self._seconds: Floats = rising * (dim / measured_dim)
        self._coverage = coverage
        self._lines: dict[int, Lines] = {}

    def curve(self, num_requests: int) -> tuple[Floats, Floats]:
        """Return contexts, and one layer's seconds for this many requests of that context each."""
        batch = num_requests * self._requests_per_request
        self._coverage.note("decode batch", batch, self._batches[0], self._batches[-1])
        if len(self._batches) == 1 or batch <= self._batches[0]:
            return self._contexts, self._seconds[0]
        if batch >= self._batches[-1]:
            return self._contexts, self._seconds[-1] * (batch / self._batches[-1])
        i = int(np.searchsorted(self._batches, batch))
        low, high = self._seconds[i - 1], self._seconds[i]
        share = math.log(batch / self._batches[i - 1]) / math.log(self._batches[i] / self._batches[i - 1])
        seconds: Floats = low * (high / low) ** share
        return self._contexts, seconds

    def seconds(self, num_requests: int, context: float) -> float:
        """Return the seconds of one layer for this many requests of that context each."""
        lines = self._lines.get(num_requests)
        if lines is None:
            lines = self._lines[num_requests] = Lines(*self.curve(num_requests))
        return lines.at(context)


class _Grid:
    """Measured decodes as a matrix: `batches` by `contexts`, NaN where nothing was measured.

    Outliers are replaced (`outliers.py`).
    """

    def __init__(self, points: Points, seconds: Floats) -> None:
        batches, row = distinct(points[:, 3])
        # A step writes its token first: the context it reads is one longer.
        contexts, column = distinct(points[:, 4] + 1)
        self.batches, self.contexts = batches.astype(np.float64), contexts.astype(np.float64)
        measured: Floats = np.full((len(batches), len(contexts)), np.nan)
        measured[row.reshape(-1), column.reshape(-1)] = seconds
        self._seconds = mended_grid(self.batches, self.contexts, measured)

    def bytes_per_s(self, token_bytes: int) -> float:
        """Return the bytes per second of the point that reads the most, without the launch of one request."""
        tokens = self.batches[:, None] * self.contexts
        row, column = np.unravel_index(
            np.argmax(np.where(np.isnan(self._seconds), 0.0, tokens)), tokens.shape
        )
        read_s = self._seconds[row, column] - self._seconds[0, 0]
        return float(tokens[row, column] * token_bytes / read_s)

    def filled(self, read_s: Floats) -> Floats:
        """Return seconds at every point: interpolated between measured contexts, extrapolated by reading
        time.
        """
        seconds = np.empty_like(self._seconds)
        for row, own_read_s, out in zip(self._seconds, read_s, seconds, strict=True):
            known = np.flatnonzero(~np.isnan(row))
            out[:] = np.interp(self.contexts, self.contexts[known], row[known])
            last = int(known[-1])
            out[last + 1 :] = row[last] + own_read_s[last + 1 :] - own_read_s[last]
        return seconds


TILE_ROWS: Final = 64
TILE_S: Final = 4.4e-6
"""Seconds of a tile, whatever its context: 5.0 and 3.9 microseconds of a multiprocessor."""
NARROW_ROWS: Final = 64
WIDE_ROWS: Final = 128
"""Rows of a tile: query heads of a group times tokens."""
TILE_SPEED: Final = 0.83
"""Time of a row of such a tile, relative to a row of a prompt: 0.85 and 0.81."""
EMPTY_TILE_S: Final = 0.3e-6
"""Seconds of an empty tile: 0.27 and 0.34 microseconds, measured with 64 decodes and chunks of 16 and of
2,048.
"""
LONE_TILE: Final = 0.78
"""Time of a tile alone on the GPU, relative to one among many: 0.80 and 0.76, from one decode of 4,096
tokens with a chunk of 16.
"""
SPILL: Final = 1.5
"""Relative excess over the L2 cache from which no reads are shared (128 decodes of 4,096 tokens read 3.0
and 4 times their keys, at 2.1 and 3.7 times the cache).
"""


HOPPER: Final = 9
"""Compute capability with the wide kernel; later GPUs run decodes in a kernel of their own."""


class MixedAttention:
    """Attention of chunks and decodes together in one layer; `heads` are a rank's query heads."""

    def __init__(
        self, context: ContextAttention, generation: GenerationAttention, gpu: Gpu, heads: int, kv_heads: int
    ) -> None:
        self.context, self.generation = context, generation
        self.heads, self.kv_heads = heads, kv_heads
        self.splits_contexts, self.num_sms, self.l2_bytes = gpu.splits_contexts, gpu.num_sms, gpu.l2_bytes
        self.is_hopper = int(gpu.compute_capability) == HOPPER

    def seconds(self, chunks: tuple[tuple[int, int], ...], num_decodes: int, context_tokens: float) -> float:
        """Return the seconds; `context_tokens` are those of all decodes, assumed equally long."""
        work_s, longest, most_new = 0.0, 0.0, 0
        for new, before in chunks:
            work_s += self.context.seconds(new, before)
            if new + before > longest:
                longest = float(new + before)
            if new > most_new:
                most_new = new
        if self.splits_contexts:
            return work_s + (self._beside_s(most_new, num_decodes, context_tokens) if num_decodes else 0.0)
        if num_decodes:
            work_s += max(self._tiles_s(num_decodes, context_tokens), self._read_s(context_tokens))
            tiles = -(-most_new // TILE_ROWS) - 1
            work_s += num_decodes * tiles * self.heads * EMPTY_TILE_S / self.num_sms
            longest = max(longest, context_tokens / num_decodes)
        tile_s = LONE_TILE * TILE_ROWS * self.context.pair_s / self.heads * self.num_sms
        return max(work_s, self.context.launch_s + longest * tile_s)

    def _beside_s(self, most_new: int, num_decodes: int, context_tokens: float) -> float:
        alone_s = self.generation.seconds(num_decodes, context_tokens / num_decodes) - self.context.launch_s
        group = self.heads / self.kv_heads
        if not self.is_hopper or most_new * group <= NARROW_ROWS:
            return max(alone_s, 0.0)
        tiles_s = num_decodes * self.kv_heads * TILE_S / self.num_sms
        rows_s = WIDE_ROWS / group * self.context.pair_s * context_tokens
        read_s = context_tokens * self.generation.row_bytes / self.generation.bytes_per_s
        return max(alone_s, tiles_s + rows_s + read_s)

    def _tiles_s(self, num_decodes: int, context_tokens: float) -> float:
        rows_s = TILE_SPEED * TILE_ROWS * self.context.pair_s * context_tokens
        return num_decodes * self.heads * TILE_S / self.num_sms + rows_s

    def _read_s(self, context_tokens: float) -> float:
        read_bytes = context_tokens * self.generation.row_bytes
        spilled = (read_bytes / self.kv_heads / self.l2_bytes - 1) / SPILL
        again = min(max(spilled, 0.0), 1.0) * (self.heads / self.kv_heads - 1)
        return (1 + again) * read_bytes / self.generation.bytes_per_s
