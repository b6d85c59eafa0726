"""A kind of layer from measured kernels: its dense products, experts, all-reduces and small kernels."""

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from sundog.actors.core.config import ConfigError
from sundog.sim.cost.tables.attention import ContextAttention, GenerationAttention, MixedAttention
from sundog.sim.cost.tables.experts import ExpertsOnRank, ExpertTables, has_experts_in
from sundog.sim.cost.tables.interpolate import Floats, Lines, has_tables, load, log_interp
from sundog.sim.cost.tables.kinds import (
    DeltaAttention,
    KindOfAttention,
    LatentAttention,
    SparseAttention,
    WindowAttention,
    has_window,
    kinds_of,
)
from sundog.sim.cost.tables.products import AllReduce, ExpertExchange, Products
from sundog.sim.cost.work import L2, Coverage, StepWork
from sundog.sim.hardware.attention import GatedDelta, Heads, Latent
from sundog.sim.hardware.formats import DTYPE_BYTES, WeightFormat
from sundog.sim.hardware.gpu import Gpu
from sundog.sim.hardware.shape import Experts, Layer, ModelShape

SMALL_KERNEL_S = 2.5e-6
NUM_SMALL_KERNELS = 4
NUM_QUERY_KEY_NORMS = 2
"""The small kernels: two norms, rotary embedding and activation, and a model's norms of queries and keys.
Norms take 1.9 to 2.4, rotary embedding 2.2 to 2.7, activations 2.6 to 3.2 microseconds for few tokens (vLLM
0.19 on an RTX 4090 and an RTX PRO 6000, profiles of the LLMServingSim project, MIT)."""
NUM_SMALL_LATENT = 3
"""The two norms and the activation: what lies between the projections was measured with the attention."""
NUM_SMALL_DELTA = 5
"""The two norms, the split of the projections, the gated norm of the output, the activation."""
TOP_K_S = 4e-6
"""Choosing a token's experts from the router's logits takes 4 microseconds on an H200 (vLLM's pull request
34206; 7 before it). The tables begin with experts that are chosen, except in mxfp4, timed with the choice."""
ROUTER_FLOPS = 0.73
"""The share of the float32 peak that cuBLAS reaches there: 32 of 44 TFLOP/s for 8,192 cubed on an H20."""
CACHED_SAVES = 1 - 1 / L2
"""The share of the time to read a token from memory that is saved where it is in the cache."""
TABLED = ("fp8", "block fp8", "nvfp4")
"""Formats of dense products that were measured beside 16 bits."""
FAMILIES: dict[type[KindOfAttention], str] = {
    LatentAttention: "latent",
    SparseAttention: "sparse",
    DeltaAttention: "delta",
    WindowAttention: "window",
}
NORM_SUMS = 4
"""The elements of 16 bits of a token that hold the sums of squares of its queries and keys, of 32 bits."""
LEAST_REDUCED = 128
"""The number of elements of the smallest all-reduce that was measured."""


class TablesOfGpu:
    """The tables of a GPU that layers share, each read once."""

    def __init__(self, name: str, gpu: Gpu, ranks: int, coverage: Coverage, kv_dtype: str) -> None:
        self.name, self.gpu, self.ranks, self.coverage = name, gpu, ranks, coverage
        self.kv_dtype = kv_dtype
        self.tables: dict[str, Any] = load(name)
        self.plain = Products(self.tables, gpu, coverage)
        self._products: dict[str, Products] = {}
        self.reduce: AllReduce | None = None
        self.exchange: ExpertExchange | None = None

    def products(self, form: WeightFormat | None) -> Products:
        """Dense products in that format."""
        if form is None:
            return self.plain
        found = self._products.get(form.name)
        if found is None:
            found = Products(load(file_of(self.name, form)), self.gpu, self.coverage, form)
            self._products[form.name] = found
        return found


def file_of(name: str, form: WeightFormat) -> str:
    """The file of a GPU's dense products in that format."""
    return f"{name}-{form.name.replace(' ', '-')}"


def cache_file(name: str) -> str:
    """The file of a GPU's attention by heads on a cache of float8."""
    return f"{name}-float8-cache"


def lacks_cache(model: ModelShape, name: str) -> bool:
    """True if a layer's attention was not measured with a cache of float8 on the GPU of that name."""
    by_heads = any(isinstance(layer.attention, Heads) for layer, _ in model.layers)
    return by_heads and not has_tables(cache_file(name))


def unlike_layer(model: ModelShape, layer: Layer, name: str) -> str | None:
    """Name what a layer has that no kernel was measured for on the GPU of that name, if anything."""
    attention = layer.attention
    if attention.window is not None and not (isinstance(attention, Heads) and has_window(name, attention)):
        return "attention with such a window was not measured"
    if isinstance(attention, Latent):
        needs = "sparse" if attention.indexer else "latent"
        sizes = attention.kv_rank, attention.rope_dim
        if needs not in kinds_of(name) or sizes != (512, 64):
            kind = "attention that chooses its keys" if attention.indexer else "latent attention"
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
        tables = load(cache_file(shared.name)) if kv_dtype == "float8" else shared.tables
        context = ContextAttention(tables, heads, kv_heads=kv_heads, dim=dim, coverage=coverage)
        self._generation = GenerationAttention(
            tables, heads, kv_heads=kv_heads, dim=dim, gpu=gpu, coverage=coverage, kv_dtype=kv_dtype
        )
        self._mixed = MixedAttention(
            context, self._generation, gpu=shared.gpu, heads=heads, kv_heads=kv_heads
        )
        self.row_bytes = self._generation.row_bytes

    def seconds(self, chunks: tuple[tuple[int, int], ...], num_decodes: int, context_tokens: float) -> float:
        """Chunks, and decodes whose contexts are taken to be equally long."""
        return self._mixed.seconds(chunks, num_decodes, context_tokens)

    def curve(self, num_requests: int) -> tuple[Floats, Floats]:
        """Contexts, and seconds for this many requests of that context each."""
        return self._generation.curve(num_requests)


def _own_heads(attention: Heads, ranks: int) -> tuple[int, int]:
    return attention.num_heads // ranks, math.ceil(attention.num_kv_heads / ranks)


class LayerTables:
    """`count` equal layers of `model` on one of the ranks that share them.

    Experts are split over `ranks`, or with `whole` given to as many groups of one.
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
                shared.name, shared.gpu, experts=experts, form=form, coverage=shared.coverage
            )
            self._choose_s = 0.0 if form is not None and form.name == "mxfp4" else TOP_K_S
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
        """Kernels beside dense products and attention by heads, by their names in `left_out.py`."""
        if type(self.attention) in FAMILIES:
            yield FAMILIES[type(self.attention)]
        if self._experts is not None:
            yield self._experts.family
            if self._experts.own.whole > 1:
                yield "whole experts"
            if self._shared.exchange is not None:
                yield "exchange"

    def _kind_of(self, model: ModelShape, layer: Layer) -> KindOfAttention:
        shared, attention = self._shared, layer.attention
        tables = kinds_of(shared.name)
        if isinstance(attention, Heads) and attention.window is None:
            return HeadsAttention(shared, attention)
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
        """Tokens, and seconds of the product that makes the logits of the experts, whole on every rank.

        In float32 tokens are cast before, and it is computed without units for matrices.
        """
        plain = self._shared.plain
        tokens = plain.ms.astype(np.float64)
        seconds = plain.curve(max(mlp.num_experts, plain.least_n), hidden)
        if mlp.routes_in_float32:
            flops = self._shared.gpu.peak("float32") * ROUTER_FLOPS
            seconds = SMALL_KERNEL_S + np.maximum(seconds, 2 * mlp.num_experts * hidden / flops * tokens)
        return tokens.tolist(), seconds.tolist()

    def _small(self, layer: Layer) -> tuple[int, int]:
        """Return the number of small kernels, and the numbers per token that they move beside the MLP's."""
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
        """Return the seconds of these layers for the tokens, attention aside; experts see `num_routed`."""
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
        """Tokens of context that decodes read from memory.

        A block that others read too comes out of the L2 cache as far as that holds what a layer's
        kernel reads: between two readers of a block the kernel reads everything else.
        """
        context = float(work.decode_context_tokens)
        if not work.num_shared_tokens:
            return context
        cached = min(1.0, self._cached_tokens / context)
        return context - cached * (work.num_shared_tokens * CACHED_SAVES)

    def read_each(self, work: StepWork, contexts: Floats) -> Floats:
        """`read_tokens` of each step of a decode run."""
        if not work.num_shared_tokens:
            return contexts
        cached = np.minimum(1.0, self._cached_tokens / contexts)
        read: Floats = contexts - cached * (work.num_shared_tokens * CACHED_SAVES)
        return read


def check_layers(model: ModelShape, name: str) -> None:
    """Refuse a model of which any layer has something that was not measured."""
    for layer, _ in model.layers:
        if lack := unlike_layer(model, layer, name):
            raise ConfigError(f"{model.name} has no tables: {lack}")
