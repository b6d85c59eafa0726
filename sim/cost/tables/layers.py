"""Kind of layer from measured kernels: its dense products, experts, all-reduces and small kernels."""

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from sundog.actors.core.config import ConfigError
from sundog.actors.core.engine_version import NEWEST
from sundog.sim.cost.tables.attention import ContextAttention, GenerationAttention, MixedAttention
from sundog.sim.cost.tables.experts import ExpertsOnRank, ExpertTables, has_experts_in
from sundog.sim.cost.tables.interpolate import Floats, Lines, has_tables, load, log_interp
from sundog.sim.cost.tables.kinds import (
    DeltaAttention,
    KindOfAttention,
    LatentAttention,
    SparseAttention,
    WindowAttention,
    derives_window,
    has_window,
    kinds_of,
)
from sundog.sim.cost.tables.products import AllReduce, ExpertExchange, Products
from sundog.sim.cost.work import L2, Coverage, StepWork, seen_pairs
from sundog.sim.hardware.attention import GatedDelta, Heads, Latent
from sundog.sim.hardware.formats import DTYPE_BYTES, WeightFormat
from sundog.sim.hardware.gpu import Gpu
from sundog.sim.hardware.shape import Experts, Layer, ModelShape

SMALL_KERNEL_S = 2.5e-6
NUM_SMALL_KERNELS = 4
NUM_QUERY_KEY_NORMS = 2
"""Small kernels of a layer: two norms, rotary embedding and activation, and a model's norms of queries and
keys. Norms take 1.9 to 2.4, rotary embedding 2.2 to 2.7, activations 2.6 to 3.2 microseconds for few
tokens (vLLM 0.19 on an RTX 4090 and an RTX PRO 6000, profiles of the LLMServingSim project, MIT).
"""
NUM_SMALL_LATENT = 3
"""Two norms and the activation; kernels between the projections were measured with the attention."""
NUM_SMALL_DELTA = 5
"""Two norms, the split of the projections, the gated norm of the output, the activation."""
TOP_K_S = 4e-6
"""Seconds to choose a token's experts from the router's logits: 4 microseconds on an H200 (vLLM's pull
request 34206; 7 before it). The tables begin after the choice, except in mxfp4, timed with it.
"""
ROUTER_FLOPS = 0.73
"""Share of the float32 peak that cuBLAS reaches there: 32 of 44 TFLOP/s for 8,192 cubed on an H20."""
CACHED_SAVES = 1 - 1 / L2
"""Share of a token's memory read time that is saved if it is in the cache."""
TABLED = ("fp8", "block fp8", "nvfp4")
"""Formats of dense products that were measured besides 16 bits."""
FAMILIES: dict[type[KindOfAttention], str] = {
    LatentAttention: "latent",
    SparseAttention: "sparse",
    DeltaAttention: "delta",
    WindowAttention: "window",
}
DERIVED_WINDOW = "derived window"
WINDOW_TILE = 128
NORM_SUMS = 4
"""Elements of 16 bits per token that hold the 32-bit sums of squares of its queries and keys."""
LEAST_REDUCED = 128
"""Elements of the smallest all-reduce that was measured."""


class TablesOfGpu:
    """Tables of a GPU that layers share, each read once."""

    def __init__(
        self, name: str, gpu: Gpu, ranks: int, coverage: Coverage, kv_dtype: str, version: str = NEWEST
    ) -> None:
        self.name, self.gpu, self.ranks, self.coverage = name, gpu, ranks, coverage
        self.kv_dtype, self.version = kv_dtype, version
        self.derives_cache = False
        """True if attention on a cache of float8 is derived from kernels of 16 bits."""
        self.tables: dict[str, Any] = load(name)
        self.plain = Products(self.tables, gpu, coverage)
        self._products: dict[str, Products] = {}
        self.reduce: AllReduce | None = None
        self.exchange: ExpertExchange | None = None

    def products(self, form: WeightFormat | None) -> Products:
        """Return the dense products in that format."""
        if form is None:
            return self.plain
        found = self._products.get(form.name)
        if found is None:
            found = Products(load(file_of(self.name, form)), self.gpu, self.coverage, form)
            self._products[form.name] = found
        return found


def file_of(name: str, form: WeightFormat) -> str:
    """Return the file of a GPU's dense products in that format."""
    return f"{name}-{form.name.replace(' ', '-')}"


def cache_file(name: str) -> str:
    """Return the file of a GPU's attention by heads on a cache of float8."""
    return f"{name}-float8-cache"


def lacks_cache(model: ModelShape, name: str) -> bool:
    """Return whether attention on a float8 cache was neither measured on this GPU nor can be derived."""
    kinds = [layer.attention for layer, _ in model.layers]
    in_windows = any(isinstance(kind, Heads) and kind.window is not None for kind in kinds)
    return in_windows and not has_tables(cache_file(name))


def unlike_layer(model: ModelShape, layer: Layer, name: str) -> str | None:
    """Return the part of a layer without a measured kernel on the GPU of that name, if any."""
    attention = layer.attention
    if attention.window is not None and not (
        isinstance(attention, Heads) and (has_window(name, attention) or derives_window(name, attention))
    ):
        return "attention with this window size was not measured"
    if isinstance(attention, Latent):
        needs = "sparse" if attention.indexer else "latent"
        sizes = attention.kv_rank, attention.rope_dim
        if needs not in kinds_of(name) or sizes != (512, 64):
            kind = "sparse attention" if attention.indexer else "latent attention"
            return f"{kind} was not measured"
    if isinstance(attention, GatedDelta) and "delta" not in kinds_of(name):
        return "linear attention was not measured"
    for part in sorted(layer.parts):
        form, share = model.format_of(layer, part), model.share_of(layer, part)
        if form is None:
            continue
        is_dense = form.name in TABLED and has_tables(file_of(name, form))
        if share < 1 or not (has_experts_in(name, form) if part == "experts" else is_dense):
            return f"kernels were measured in 16 bits, not in {form.name}"
    if layer.mlp.num_experts > 1 and not has_experts_in(name, model.format_of(layer, "experts")):
        return "no experts were measured"
    return None


class HeadsAttention(KindOfAttention):
    """Attention by heads: chunks and decodes are one kernel."""

    def __init__(self, shared: TablesOfGpu, attention: Heads) -> None:
        heads, kv_heads = _own_heads(attention, shared.ranks)
        dim, coverage, gpu, kv_dtype = attention.head_dim, shared.coverage, shared.gpu, shared.kv_dtype
        tables, measured = shared.tables, "bfloat16"
        if kv_dtype == "float8" and has_tables(cache_file(shared.name)):
            tables, measured = load(cache_file(shared.name)), kv_dtype
        elif kv_dtype == "float8":
            shared.derives_cache = True
        context = ContextAttention(tables, heads, kv_heads=kv_heads, dim=dim, coverage=coverage)
        self._generation = GenerationAttention(
            tables,
            heads,
            kv_heads=kv_heads,
            dim=dim,
            gpu=gpu,
            coverage=coverage,
            kv_dtype=kv_dtype,
            measured_dtype=measured,
        )
        self._mixed = MixedAttention(
            context, self._generation, gpu=shared.gpu, heads=heads, kv_heads=kv_heads
        )
        self.row_bytes = self._generation.row_bytes

    def seconds(self, chunks: tuple[tuple[int, int], ...], num_decodes: int, context_tokens: float) -> float:
        """Return the seconds of chunks, and of decodes whose contexts are assumed equally long."""
        return self._mixed.seconds(chunks, num_decodes, context_tokens)

    def curve(self, num_requests: int) -> tuple[Floats, Floats]:
        """Return contexts, and seconds for this many requests of that context each."""
        return self._generation.curve(num_requests)


class DerivedWindow(KindOfAttention):
    """Attention in a window on a GPU where no window was measured, by kernels without one.

    A tile of `WINDOW_TILE` queries reads all keys that one of them sees, in blocks of as many: a query
    computes with up to two blocks of keys beside its window, a decode with one. So derived, decodes of
    gpt-oss are off by 3 to 42 % (mean of a GPU) on five GPUs where its windows were measured, too quick where
    hundreds decode at once, and prompts of 512 and 2,048 tokens by 0 to 20 % (`test_kinds.py`).
    """

    def __init__(self, shared: TablesOfGpu, attention: Heads) -> None:
        assert attention.window is not None
        self._chunk_keys = attention.window + 2 * WINDOW_TILE
        self._window = attention.window + WINDOW_TILE
        self._whole = HeadsAttention(shared, attention)
        self.row_bytes = self._whole.row_bytes

    def seconds(self, chunks: tuple[tuple[int, int], ...], num_decodes: int, context_tokens: float) -> float:
        """Return the seconds of chunks, and of decodes whose contexts are assumed equally long."""
        seen = tuple([self._seen(new, before) for new, before in chunks])
        return self._whole.seconds(seen, num_decodes, min(context_tokens, num_decodes * self._window))

    def chunks_s(self, chunks: tuple[tuple[int, int], ...]) -> float:
        """Return the seconds of chunks alone."""
        return self.seconds(chunks, 0, 0.0)

    def _seen(self, new: int, before: int) -> tuple[int, int]:
        """Return a chunk without a window of as many pairs, as new tokens and tokens before."""
        pairs = seen_pairs(new, before, self._chunk_keys)
        if pairs < new * (new + 1) / 2:
            return max(round((math.sqrt(8 * pairs + 1) - 1) / 2), 1), 0
        return new, round(pairs / new - (new + 1) / 2)

    def curve(self, num_requests: int) -> tuple[Floats, Floats]:
        """Return contexts, and seconds for this many requests of that context each."""
        contexts, seconds = self._whole.curve(num_requests)
        widest = float(np.interp(self._window, contexts, seconds))
        kept = contexts < self._window
        ends = np.array([self._window, 2.0 * self._window])
        return np.append(contexts[kept], ends), np.append(seconds[kept], [widest, widest])


def _own_heads(attention: Heads, ranks: int) -> tuple[int, int]:
    return attention.num_heads // ranks, math.ceil(attention.num_kv_heads / ranks)


class LayerTables:
    """`count` equal layers of `model` on one of the ranks that share them.

    Experts are split over `ranks`, or with `whole` distributed over as many groups of one.
    """

    def __init__(self, model: ModelShape, layer: Layer, count: int, shared: TablesOfGpu, whole: int) -> None:
        self.count, self._shared, self._hidden = count, shared, model.hidden_size
        self._up_latents: tuple[Products, Floats] | None = None
        self.attention = self._kind_of(model, layer)
        ranks, mlp, hidden = shared.ranks, layer.mlp, model.hidden_size
        sizes = {"attention": self._projections(layer, hidden), "dense": []}
        if inner := mlp.shared // ranks:
            sizes["dense"] = [(2 * inner, hidden), (hidden, inner)]
        sums: dict[int, tuple[Products, Floats]] = {}
        for part, products in sizes.items():
            linear = shared.products(model.format_of(layer, part))
            for n, k in products:
                curve = linear.curve(n, k)
                known = sums.get(id(linear))
                sums[id(linear)] = linear, curve if known is None else known[1] + curve
        self._products: list[tuple[list[float], list[float]]] = [
            (linear.ms.astype(np.float64).tolist(), curve.tolist()) for linear, curve in sums.values()
        ]
        self._experts: ExpertTables | None = None
        self._choose_s = 0.0
        self._per_token = mlp.per_token
        if isinstance(mlp, Experts) and mlp.num_experts > 1:
            split = 1 if whole > 1 else ranks
            experts = ExpertsOnRank(
                hidden,
                mlp.inner,
                per_token=mlp.per_token,
                num_experts=mlp.num_experts,
                split=split,
                whole=whole,
            )
            form = model.format_of(layer, "experts")
            self._experts = ExpertTables(
                shared.name,
                shared.gpu,
                experts=experts,
                form=form,
                coverage=shared.coverage,
                version=shared.version,
            )
            self._choose_s = 0.0 if self._experts.times_choice else TOP_K_S
            self._products.append(self._router(mlp, hidden))
        gpu = shared.gpu
        self._bandwidth = gpu.memory_bandwidth_bytes_per_s * gpu.efficiency.weight_bandwidth
        self._num_small, widths = self._small(layer)
        if mlp.num_experts > 1 and not mlp.shared:
            self._num_small -= 1  # the activation, which experts were timed with
        self._reduces_norms = isinstance(layer.attention, Heads) and layer.attention.norms_all
        self._act_bytes = DTYPE_BYTES["bfloat16"] * (widths + 3 * mlp.inner_per_token // ranks + 8 * hidden)
        self._cached_tokens = gpu.l2_bytes / self.attention.row_bytes if self.attention.row_bytes else 0.0
        self._curves: dict[int, Lines] = {}

    @property
    def families(self) -> Iterator[str]:
        """Kernels besides dense products and attention by heads, by their names in `left_out.py`."""
        if type(self.attention) in FAMILIES:
            yield FAMILIES[type(self.attention)]
        if isinstance(self.attention, DerivedWindow):
            yield DERIVED_WINDOW
        if self._experts is not None:
            yield self._experts.family
            if self._experts.own.whole > 1:
                yield "whole experts"
            if self._shared.exchange is not None:
                yield "exchange"

    def _kind_of(self, model: ModelShape, layer: Layer) -> KindOfAttention:
        shared, attention = self._shared, layer.attention
        if isinstance(attention, Heads) and attention.window is None:
            return HeadsAttention(shared, attention)
        if isinstance(attention, Heads) and not has_window(shared.name, attention):
            return DerivedWindow(shared, attention)
        tables = kinds_of(shared.name)
        if isinstance(attention, Heads):
            if shared.kv_dtype == "float8":
                tables = load(cache_file(shared.name))
            return WindowAttention(tables, attention, *_own_heads(attention, shared.ranks), shared.coverage)
        if isinstance(attention, GatedDelta):
            return DeltaAttention(tables, attention, shared.ranks, shared.coverage)
        heads = math.ceil(attention.num_heads / shared.ranks)
        if attention.indexer is not None:
            return SparseAttention(
                tables, attention, heads=heads, coverage=shared.coverage, kv_dtype=shared.kv_dtype
            )
        linear = shared.products(model.format_of(layer, "attention"))
        up = linear.curve(heads * (attention.nope_dim + attention.value_dim), attention.kv_rank)
        self._up_latents = linear, up
        return LatentAttention(
            tables, attention, heads=heads, coverage=shared.coverage, kv_dtype=shared.kv_dtype
        )

    def _projections(self, layer: Layer, hidden: int) -> list[tuple[int, int]]:
        """Return (n, k) of each dense product of a rank's attention."""
        attention, ranks = layer.attention, self._shared.ranks
        if isinstance(attention, Heads):
            heads, kv_heads = _own_heads(attention, ranks)
            dim, queries = attention.head_dim, heads * (1 + attention.has_gate)
            return [((queries + 2 * kv_heads) * dim, hidden), (hidden, heads * dim)]
        if isinstance(attention, GatedDelta):
            keys, values = (width // ranks for width in attention.widths)
            small = 2 * attention.num_value_heads // ranks
            return [(2 * keys + 2 * values, hidden), (small, hidden), (hidden, values)]
        heads, latent = math.ceil(attention.num_heads / ranks), attention.kv_rank + attention.rope_dim
        queries = heads * (attention.nope_dim + attention.rope_dim)
        found = [(queries + latent, hidden)]
        if rank := attention.query_rank:
            found = [(rank + latent, hidden), (queries, rank)]
        if indexer := attention.indexer:
            found.append((indexer.num_heads * indexer.head_dim, rank or hidden))
            found.append((indexer.head_dim + indexer.num_heads, hidden))
        return [*found, (hidden, heads * attention.value_dim)]

    def _router(self, mlp: Experts, hidden: int) -> tuple[list[float], list[float]]:
        """Return tokens, and seconds of the product for the experts' logits, whole on every rank.

        In float32 the tokens are cast first, and the product does not use tensor cores.
        """
        plain = self._shared.plain
        tokens = plain.ms.astype(np.float64)
        seconds = plain.curve(max(mlp.num_experts, plain.least_n), hidden)
        if mlp.routes_in_float32:
            flops = self._shared.gpu.peak("float32") * ROUTER_FLOPS
            seconds = SMALL_KERNEL_S + np.maximum(seconds, 2 * mlp.num_experts * hidden / flops * tokens)
        return tokens.tolist(), seconds.tolist()

    def _small(self, layer: Layer) -> tuple[int, int]:
        """Return the number of small kernels, and the numbers per token that they move besides the MLP's."""
        attention = layer.attention
        if isinstance(attention, Latent):
            return NUM_SMALL_LATENT, 0
        if isinstance(attention, GatedDelta):
            return NUM_SMALL_DELTA, 2 * sum(attention.widths) // self._shared.ranks
        if not attention.has_norms:
            return NUM_SMALL_KERNELS, 0
        heads, kv_heads = _own_heads(attention, self._shared.ranks)
        return NUM_SMALL_KERNELS + NUM_QUERY_KEY_NORMS, 2 * (heads + kv_heads) * attention.head_dim

    def tokens_s(self, num_tokens: int, num_routed: int) -> float:
        """Return the seconds of these layers for the tokens, without attention; experts compute
        `num_routed`.
        """
        shared = self._shared
        layer_s = 0.0
        for sizes, curve in self._products:
            shared.coverage.note("gemm m", num_tokens, sizes[0], sizes[-1])
            layer_s += log_interp(num_tokens, sizes, curve)
        layer_s += self._num_small * SMALL_KERNEL_S
        layer_s += num_tokens * self._act_bytes / self._bandwidth
        if self._experts is not None:
            layer_s += self._choose_s + self._experts.seconds(num_routed)
            if shared.exchange is not None:
                layer_s += shared.exchange.seconds(num_routed, self._hidden, self._per_token)
        if shared.reduce is not None:
            layer_s += 2 * shared.reduce.seconds(num_tokens * self._hidden)
            if self._reduces_norms:
                layer_s += shared.reduce.seconds(max(num_tokens * NORM_SUMS, LEAST_REDUCED))
        return layer_s * self.count

    def mixed_s(self, work: StepWork) -> float:
        """Return the seconds of attention in these layers, in a step with chunks."""
        taken_s = self.attention.seconds(work.chunks, work.num_decodes, self.read_tokens(work))
        if self._up_latents is not None:
            linear, up = self._up_latents
            tokens = sum([new + before for new, before in work.chunks])
            taken_s += log_interp(tokens, linear.ms.astype(np.float64).tolist(), up.tolist())
        return self.count * taken_s

    def decodes(self, num_decodes: int) -> Lines:
        """Return the seconds of attention of decodes in these layers, whose contexts are equally long."""
        curve = self._curves.get(num_decodes)
        if curve is None:
            xs, ys = self.attention.curve(num_decodes)
            curve = self._curves[num_decodes] = Lines(xs, ys * self.count)
        return curve

    def read_tokens(self, work: StepWork) -> float:
        """Return the tokens of context that decodes read from memory.

        A block with several readers comes out of the L2 cache as far as that holds what a layer's kernel
        reads: between two readers of a block the kernel reads everything else.
        """
        context = float(work.decode_context_tokens)
        if not work.num_shared_tokens:
            return context
        cached = min(1.0, self._cached_tokens / context)
        return context - cached * (work.num_shared_tokens * CACHED_SAVES)

    def read_each(self, work: StepWork, contexts: Floats) -> Floats:
        """Return `read_tokens` of each step of a decode run."""
        if not work.num_shared_tokens:
            return contexts
        cached = np.minimum(1.0, self._cached_tokens / contexts)
        read: Floats = contexts - cached * (work.num_shared_tokens * CACHED_SAVES)
        return read


def check_layers(model: ModelShape, name: str) -> None:
    """Raise ConfigError for a model with a layer that was not measured."""
    for layer, _ in model.layers:
        if lack := unlike_layer(model, layer, name):
            raise ConfigError(f"{model.name} has no tables: {lack}")
