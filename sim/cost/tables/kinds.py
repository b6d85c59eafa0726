"""Measured attention of other kinds: latent, sparse, windowed, linear.

Each kind has the seconds of decodes over their context and of chunks; its dense products belong to the layer.
Prompts and decodes of latent attention are separate kernels, so a step with both takes the sum.
"""

import math
from typing import Any

import numpy as np

from sundog.sim.cost.tables.interpolate import Floats, Lines, Points, distinct, has_tables, load, log_interp
from sundog.sim.cost.tables.outliers import mended_grid, mended_line
from sundog.sim.cost.work import Coverage, seen_pairs
from sundog.sim.hardware.attention import GatedDelta, Heads, Latent
from sundog.sim.hardware.formats import DTYPE_BYTES

NARROW = 128
"""Widest window that is derived: that of gpt-oss, for which the derivation was compared."""
Chunks = tuple[tuple[int, int], ...]
CACHES = {"bfloat16": "", "float16": "", "float8": "_fp8"}
"""Suffixes of its arrays' names, by the dtype of the cache."""


def kinds_of(name: str) -> dict[str, Any]:
    """Return the arrays of the GPU's kinds of attention; empty if none was measured."""
    return load(f"{name}-kinds") if has_tables(f"{name}-kinds") else {}


class KindOfAttention:
    """Attention of a layer; a rank reads `row_bytes` of each token of context."""

    row_bytes: int = 0

    def chunks_s(self, chunks: Chunks) -> float:
        """Return the seconds of chunks of prompts, each (new tokens, tokens before)."""
        raise NotImplementedError

    def curve(self, num_requests: int) -> tuple[Floats, Floats]:
        """Return contexts, and seconds for this many requests of that context each."""
        raise NotImplementedError

    def seconds(self, chunks: Chunks, num_decodes: int, context_tokens: float) -> float:
        """Return the seconds of chunks, and of decodes whose contexts are assumed equally long."""
        taken_s = self.chunks_s(chunks)
        if num_decodes:
            taken_s += Lines(*self.curve(num_decodes)).at(context_tokens / num_decodes)
        return taken_s


class Surface:
    """Seconds of decodes by batch and context: interpolated linearly between contexts, logarithmically
    between batches.
    """

    def __init__(self, name: str, points: Points, seconds: Floats, coverage: Coverage) -> None:
        batches, row = distinct(points[:, 0])
        contexts, column = distinct(points[:, 1])
        self.batches, self.contexts = batches.astype(np.float64), contexts.astype(np.float64)
        grid: Floats = np.full((len(batches), len(contexts)), np.nan)
        grid[row, column] = seconds
        grid = mended_grid(self.batches, self.contexts, grid)
        for own in grid:
            known = np.flatnonzero(~np.isnan(own))
            own[:] = _extended(self.contexts, self.contexts[known], own[known])
        self._seconds: Floats = np.maximum.accumulate(np.maximum.accumulate(grid, axis=1), axis=0)
        self._name, self._coverage = name, coverage

    def curve(self, batch: float) -> tuple[Floats, Floats]:
        """Return contexts, and the seconds of a batch of that many requests with each; proportional beyond
        measured batches.
        """
        batches = self.batches
        self._coverage.note(self._name, batch, batches[0], batches[-1])
        if batch <= batches[0]:
            return self.contexts, self._seconds[0]
        if batch >= batches[-1]:
            return self.contexts, self._seconds[-1] * (batch / batches[-1])
        i = int(np.searchsorted(batches, batch))
        share = math.log(batch / batches[i - 1]) / math.log(batches[i] / batches[i - 1])
        low, high = self._seconds[i - 1], self._seconds[i]
        between: Floats = low * (high / low) ** share
        return self.contexts, between


def _extended(places: Floats, xs: Floats, ys: Floats) -> Floats:
    """Interpolate linearly between points, and extrapolate the last line."""
    values: Floats = np.interp(places, xs, ys)
    if len(xs) > 1:
        beyond = places > xs[-1]
        values[beyond] = ys[-1] + (places[beyond] - xs[-1]) * (ys[-1] - ys[-2]) / (xs[-1] - xs[-2])
    return values


def around_heads(heads: int, measured: list[int]) -> tuple[int, float]:
    """Return the measured number of heads nearest in ratio, and its ratio to `heads`."""
    like = min(measured, key=lambda each: (abs(math.log(each / heads)), each))
    return like, heads / like


class LatentAttention(KindOfAttention):
    """Latent attention over all keys, of `heads` on this rank: 512 + 64 numbers per token.

    Keys and values of a chunk and its context are recomputed from the latents: `layers.py` prices that
    product. A chunk takes as long as a whole prompt with the same number of query-key pairs.
    """

    def __init__(
        self, tables: dict[str, Any], latent: Latent, heads: int, coverage: Coverage, kv_dtype: str
    ) -> None:
        cache = CACHES[kv_dtype]
        points: Points = tables[f"latent{cache}"]
        like, more = around_heads(heads, distinct(points[:, 0])[0].tolist())
        own = points[:, 0] == like
        seconds = tables[f"latent{cache}_s"][own].astype(np.float64)
        self._decodes = Surface("latent decodes", points[own][:, 1:], seconds, coverage)
        prompts: Points = tables[f"latent_prompt{cache}"]
        rows = prompts[:, 0] == like
        self._lengths: list[float] = prompts[rows][:, 1].astype(np.float64).tolist()
        measured_s = mended_line(
            prompts[rows][:, 1], tables[f"latent_prompt{cache}_s"][rows].astype(np.float64)
        )
        self._prompt_s: list[float] = (np.maximum.accumulate(measured_s) * max(more, 1.0)).tolist()
        self.row_bytes = latent.kv_values() * DTYPE_BYTES[kv_dtype]
        self._coverage = coverage
        coverage.note("latent heads", heads, like, like)

    def chunks_s(self, chunks: Chunks) -> float:
        """Return the seconds of chunks, without the products that recompute keys and values."""
        taken_s = 0.0
        for new, before in chunks:
            length = max((math.sqrt(8 * seen_pairs(new, before) + 1) - 1) / 2, 1.0)
            self._coverage.note("latent prompts", length, 1.0, self._lengths[-1])
            taken_s += log_interp(max(length, self._lengths[0]), self._lengths, self._prompt_s)
        return taken_s

    def curve(self, num_requests: int) -> tuple[Floats, Floats]:
        """Return contexts, and seconds for this many requests of that context each."""
        return self._decodes.curve(num_requests)


class SparseAttention(KindOfAttention):
    """Sparse latent attention over chosen keys, of `heads` on this rank, in the most similar model.

    Prompts have a cost per token, per pair of a query and a chosen key, and per pair that was scored.
    """

    def __init__(
        self, tables: dict[str, Any], latent: Latent, heads: int, coverage: Coverage, kv_dtype: str
    ) -> None:
        indexer, cache = latent.indexer, CACHES[kv_dtype]
        assert indexer is not None
        # The models that were measured differ in the indexer's heads: DeepSeek-V3.2 has 64, GLM-5 32.
        place = 0 if indexer.num_heads > 48 else 1
        ours = tables[f"sparse{cache}"][:, 0] == place
        points: Points = tables[f"sparse{cache}"][ours]
        seconds = tables[f"sparse{cache}_s"][ours].astype(np.float64)
        like, more = around_heads(heads, distinct(points[:, 1])[0].tolist())
        own = points[:, 1] == like
        self._decodes = Surface("sparse decodes", points[own][:, 2:], seconds[own], coverage)
        fits: Points = tables[f"sparse_prompt{cache}"]
        row = int(np.flatnonzero((fits == (place, like)).all(axis=1))[0])
        token_s, chosen_s, pair_s = (float(each) for each in tables[f"sparse_prompt{cache}_s"][row])
        self._slopes = token_s, chosen_s * max(more, 1.0), pair_s
        self._top = indexer.top
        self.row_bytes = latent.kv_values() * DTYPE_BYTES[kv_dtype]
        coverage.note("latent heads", heads, like, like)

    def chunks_s(self, chunks: Chunks) -> float:
        """Return the seconds of chunks; a short one takes no less than as many decodes."""
        taken_s = 0.0
        for new, before in chunks:
            work = new, seen_pairs(new, before, self._top), seen_pairs(new, before)
            fitted_s = sum(slope * each for slope, each in zip(self._slopes, work, strict=True))
            least = Lines(*self._decodes.curve(min(new, self._decodes.batches[-1])))
            taken_s += max(fitted_s, least.at(float(self._decodes.contexts[0])))
        return taken_s

    def curve(self, num_requests: int) -> tuple[Floats, Floats]:
        """Return contexts, and seconds for this many requests of that context each."""
        return self._decodes.curve(num_requests)


class WindowAttention(KindOfAttention):
    """Attention by heads with a window of the measured width and head size.

    A chunk takes as long as a whole prompt with as many pairs of a query and a key, decodes as long as alone.
    Heads that were not measured take the share of the most similar ones.
    """

    def __init__(
        self, tables: dict[str, Any], attention: Heads, heads: int, kv_heads: int, coverage: Coverage
    ) -> None:
        assert attention.window is not None
        self._window = attention.window
        sizes = attention.window, heads, kv_heads, attention.head_dim
        points, seconds, like = _windowed(tables, "window", sizes)
        self._requests = kv_heads / like[1]
        self._decodes = Surface("windowed decodes", points, seconds * _wider(sizes, like), coverage)
        lengths, prompt_s, like = _windowed(tables, "window_prompt", sizes)
        self._lengths: list[float] = lengths[:, 0].astype(np.float64).tolist()
        prompt_s = np.maximum.accumulate(mended_line(lengths[:, 0], prompt_s))
        self._prompt_s: list[float] = (prompt_s * heads / like[0]).tolist()
        self._coverage = coverage

    def chunks_s(self, chunks: Chunks) -> float:
        """Return the seconds of chunks."""
        window, taken_s = self._window, 0.0
        for new, before in chunks:
            pairs, whole = seen_pairs(new, before, window), seen_pairs(window, 0)
            length = (
                (math.sqrt(8 * pairs + 1) - 1) / 2 if pairs <= whole else window + (pairs - whole) / window
            )
            self._coverage.note("windowed prompts", length, 1.0, self._lengths[-1])
            taken_s += log_interp(max(length, self._lengths[0]), self._lengths, self._prompt_s)
        return taken_s

    def curve(self, num_requests: int) -> tuple[Floats, Floats]:
        """Return contexts, and seconds for this many requests of that context each; constant beyond the
        last.
        """
        contexts, seconds = self._decodes.curve(num_requests * self._requests)
        return np.append(contexts, 2 * contexts[-1]), np.append(seconds, seconds[-1])


def _wider(sizes: tuple[int, int, int, int], like: tuple[int, int]) -> float:
    return max(sizes[1] / sizes[2] / (like[0] / like[1]), 1.0)


def _windowed(
    tables: dict[str, Any], name: str, sizes: tuple[int, int, int, int]
) -> tuple[Points, Floats, tuple[int, int]]:
    window, heads, kv_heads, dim = sizes
    points: Points = tables[name]
    own = (points[:, 0] == window) & (points[:, 3] == dim)
    pairs = sorted(set(zip(points[own][:, 1].tolist(), points[own][:, 2].tolist(), strict=True)))

    def unlike(pair: tuple[int, int]) -> tuple[float, float, tuple[int, int]]:
        group = pair[0] / pair[1] / (heads / kv_heads)
        return abs(math.log(group)), abs(math.log(pair[1] / kv_heads)), pair

    like = min(pairs, key=unlike)
    own &= (points[:, 1] == like[0]) & (points[:, 2] == like[1])
    return points[own][:, 4:], tables[f"{name}_s"][own].astype(np.float64), like


def has_window(name: str, attention: Heads) -> bool:
    """Return whether windows of this width were measured with this head size on the GPU of this name."""
    points: Points | None = kinds_of(name).get("window")
    if points is None or attention.is_chunked:
        return False
    return bool(((points[:, 0] == attention.window) & (points[:, 3] == attention.head_dim)).any())


def derives_window(name: str, attention: Heads) -> bool:
    """Return whether such a window is derived on the GPU of this name: a narrow one, if it has no tables."""
    narrow = attention.window is not None and attention.window <= NARROW
    return narrow and not attention.is_chunked and "window" not in kinds_of(name)


class DeltaAttention(KindOfAttention):
    """Gated delta rule of a rank's heads: a state for each request, whatever its context."""

    def __init__(self, tables: dict[str, Any], delta: GatedDelta, ranks: int, coverage: Coverage) -> None:
        keys, values = delta.num_key_heads // ranks, delta.num_value_heads // ranks
        points: Points = tables["delta"]
        pairs = sorted(set(zip(points[:, 0].tolist(), points[:, 1].tolist(), strict=True)))
        like = min(pairs, key=lambda p: (abs(math.log(p[1] / values)), abs(math.log(p[0] / keys)), p))
        scale = delta.value_dim * delta.key_dim / 128**2 * values / like[1]
        self._sizes, self._decode_s = _column(tables, "delta", like, scale)
        self._lengths, self._prompt_s = _column(tables, "delta_prompt", like, scale)
        self._coverage = coverage
        coverage.note("delta heads", values, like[1], like[1])

    def chunks_s(self, chunks: Chunks) -> float:
        """Return the seconds of chunks; their context is in the state."""
        taken_s = 0.0
        for new, _ in chunks:
            self._coverage.note("delta prompts", new, self._lengths[0], self._lengths[-1])
            taken_s += log_interp(new, self._lengths, self._prompt_s)
        return taken_s

    def curve(self, num_requests: int) -> tuple[Floats, Floats]:
        """Return two contexts with the same seconds."""
        self._coverage.note("delta decodes", num_requests, self._sizes[0], self._sizes[-1])
        taken_s = log_interp(num_requests, self._sizes, self._decode_s)
        return np.array([1.0, 2.0]), np.array([taken_s, taken_s])


def _column(
    tables: dict[str, Any], name: str, heads: tuple[int, int], scale: float
) -> tuple[list[float], list[float]]:
    points: Points = tables[name]
    own = (points[:, :2] == heads).all(axis=1)
    seconds = mended_line(points[own][:, 2], tables[f"{name}_s"][own].astype(np.float64))
    seconds = np.maximum.accumulate(seconds) * scale
    return points[own][:, 2].astype(np.float64).tolist(), seconds.tolist()
