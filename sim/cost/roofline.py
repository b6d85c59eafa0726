"""Roofline per operator: the longer of its arithmetic and its memory traffic.

Williams, Waterman, Patterson, "Roofline" (CACM 2009), with peaks scaled by the GPU's measured efficiencies.
One tensor-parallel rank is modelled; all ranks do the same at the same time. Operators of a layer, for T
tokens (bytes per weight w, per key or value element v):

    linear       2 T P FLOP, w P bytes, P the layer's weights on this rank; of the experts,
                 E (1 - (1 - k/E)^T) of E are read when each token picks k at random
    prefill      4 heads head_dim (query, key) pairs FLOP; keys and values of context and chunk
    decode       the same with one query per request: proportional to the context tokens read, at
                 most the window's in layers that have one (contexts are assumed equally long);
                 with chunks, one decode from where its chunk begins, several half a chunk each beyond
                 the first, since theirs begin at different places
    linear attn  a request's state, read and written at each of its steps (gated delta rule)
    elementwise  norms, rotary embedding, activation: bytes of the tensors read and written
    exchange     an all-gather and a reduce-scatter over data-parallel ranks per layer with experts,
                 (d-1)/d of all ranks' tokens each (vLLM's default, `allgather_reducescatter`)
    all-reduce   2 per layer, ring: 2 (r-1)/r bytes over the link, plus its latency

and once a step the output head and the sampler. Small kernels add fixed times per layer and per step.
`tests/sim/roofline_points.py` prints this model's TPOT beside the measurements of real servers.

Weights in a format that the GPU multiplies in have its rate for that format; others are read as they are
stored and multiplied in 16 bits. Latent attention prefills over keys and values recomputed from the latents,
including the context's, and decodes in the latents themselves (DeepSeek-V2, section 2.1.2).
"""

import math
from typing import NamedTuple

import numpy as np

from sundog.actors.config.generation import GREEDY
from sundog.actors.core.engine_version import NEWEST
from sundog.sim.cost.sampler import Sampler
from sundog.sim.cost.work import CostModel, Seconds, StepWork, seen_pairs
from sundog.sim.hardware.attention import GatedDelta, Latent
from sundog.sim.hardware.formats import DTYPE_BYTES
from sundog.sim.hardware.gpu import Gpu
from sundog.sim.hardware.memory import check_parallel
from sundog.sim.hardware.shape import Layer, ModelShape

LATENT_FLOPS = 0.67
"""Share of the dense peak in decodes of latent attention: 660 of 989 TFLOP/s (FlashMLA, H800)."""
KERNEL_S, EXPERTS_S, LATENT_S = 2.4e-6, 15e-6, 18e-6
"""Least seconds of a dense product, a layer's experts, and latent attention without its projections, from
aiconfigurator-core's tables (0.12.0, vLLM 0.24), all on a B200, where they are several kernels each.
"""
DELTA_FLOPS = 8
"""Operations per number of the state and token of a prompt: decay, two products and an update."""


class Rates(NamedTuple):
    """FLOP and bytes per second of this rank, with efficiencies applied."""

    flops: float
    attention_flops: float
    latent_flops: float
    bandwidth: float
    kv_bandwidth: float


class Product(NamedTuple):
    """Weights on this rank: their multiplication rate, and bytes per weight."""

    flops: float
    bytes_per_weight: float


class LayerRoofline:
    """Seconds of one layer of `model` on one of `ranks`; `window` is that of its attention, chunked or not.

    `decode_token_s` is the time of reading one token of context in a decode.
    """

    __slots__ = (
        "_act_bytes_per_token",
        "_attention_weights",
        "_dense_weights",
        "_expert_weights",
        "_index_flops",
        "_kv_bytes",
        "_mlp",
        "_pair_flops",
        "_products",
        "_rates",
        "_token_flops",
        "_up_weights",
        "decode_request_s",
        "decode_token_s",
        "index_token_s",
        "is_chunked",
        "launch_s",
        "window",
    )

    def __init__(
        self,
        model: ModelShape,
        layer: Layer,
        gpu: Gpu,
        rates: Rates,
        ranks: int,
        dtype: str,
        kv_dtype: str,
        expert_ranks: int,
    ) -> None:
        hidden, attention, mlp = model.hidden_size, layer.attention, layer.mlp
        self._rates, self._mlp, self.window = rates, mlp, attention.window
        self.is_chunked = attention.is_chunked
        self._products = {
            part: _product(model, layer, part, gpu, rates, dtype)
            for part in ("attention", "dense", "experts")
        }
        projections = attention.num_weights(hidden) + attention.replicated_weights(hidden, ranks)
        self._attention_weights = projections / ranks + mlp.router_weights(hidden)
        self._dense_weights = mlp.dense_weights(hidden) / ranks
        self._expert_weights = mlp.expert_weights(hidden) / expert_ranks
        self._kv_bytes = attention.kv_values(ranks) * DTYPE_BYTES[kv_dtype]
        widths = 3 * mlp.inner_per_token // ranks
        self._act_bytes_per_token = DTYPE_BYTES[dtype] * (widths + 8 * hidden)
        self.launch_s = LATENT_S if isinstance(attention, Latent) else 0.0
        self._token_flops = self._index_flops = self.decode_request_s = self.index_token_s = 0.0
        if isinstance(attention, GatedDelta):
            self._pair_flops, self._up_weights, compute_s = 0, 0.0, 0.0
            state_bytes = attention.request_bytes(ranks, DTYPE_BYTES[dtype])
            self._token_flops = DELTA_FLOPS * attention.widths[1] * attention.key_dim / ranks
            self.decode_request_s = 2 * state_bytes / rates.kv_bandwidth
        elif isinstance(attention, Latent):
            heads = math.ceil(attention.num_heads / ranks)
            key_dim = attention.nope_dim + attention.rope_dim
            self._pair_flops = 2 * heads * (key_dim + attention.value_dim)
            self._up_weights = attention.up_weights / ranks
            latent_flops = 2 * heads * (2 * attention.kv_rank + attention.rope_dim)
            compute_s = latent_flops / rates.latent_flops
            if indexer := attention.indexer:
                index_bytes = indexer.kept_values * DTYPE_BYTES["bfloat16"]
                self.index_token_s = index_bytes / rates.kv_bandwidth
                self.window, self._kv_bytes = indexer.top, self._kv_bytes - index_bytes
                self._index_flops = 2.0 * indexer.num_heads * indexer.head_dim
        else:
            self._pair_flops = 4 * attention.num_heads // ranks * attention.head_dim
            self._up_weights = 0.0
            compute_s = self._pair_flops / rates.attention_flops
        self.decode_token_s = max(self._kv_bytes / rates.kv_bandwidth, compute_s)

    @property
    def routes(self) -> bool:
        """Whether the layer has experts."""
        return self._expert_weights > 0

    def linear_s(self, tokens: int, routed: int) -> float:
        """Return the seconds of projections and MLP, or experts, for this many tokens."""
        mlp, products = self._mlp, self._products
        if products["dense"] == products["attention"] or not self._dense_weights:
            dense = self._attention_weights + self._dense_weights
            seconds = self._product_s(products["attention"], tokens, dense, dense)
        else:
            weights = self._attention_weights
            seconds = self._product_s(products["attention"], tokens, weights, weights)
            weights = self._dense_weights
            seconds += self._product_s(products["dense"], tokens, weights, weights)
        expert = self._expert_weights
        if not expert:
            return seconds
        missed = (1 - mlp.per_token / mlp.num_experts) ** routed
        read = mlp.num_experts * (1 - missed) * expert
        expert_s = self._product_s(products["experts"], routed, mlp.per_token * expert, read)
        return seconds + max(expert_s, EXPERTS_S)

    def _product_s(self, product: Product, tokens: int, weights_used: float, weights_read: float) -> float:
        if not weights_used:
            return 0.0
        compute_s = 2 * tokens * weights_used / product.flops
        read_s = weights_read * product.bytes_per_weight / self._rates.bandwidth
        return max(compute_s, read_s, KERNEL_S)

    def prefill_attention_s(self, chunks: tuple[tuple[int, int], ...]) -> float:
        """Return the seconds of attention of the chunks, each (new tokens, tokens before)."""
        seconds, rates = 0.0, self._rates
        for new, before in chunks:
            compute_s = self._pairs(new, before) * self._pair_flops / rates.attention_flops
            compute_s += seen_pairs(new, before) * self._index_flops / rates.attention_flops
            compute_s += new * self._token_flops / rates.attention_flops
            keys = self._kept(before) + new
            seconds += max(compute_s, keys * self._kv_bytes / rates.kv_bandwidth)
            if self._up_weights and before and not self._index_flops:
                product, weights = self._products["attention"], self._up_weights
                seconds += self._product_s(product, before, weights, weights)
        return seconds

    def _kept(self, before: int) -> int:
        """Return how many keys before a chunk its first query attends to."""
        if self.window is None:
            return before
        return before % self.window if self.is_chunked else min(before, self.window)

    def _pairs(self, new: int, before: int) -> int:
        """Return the number of pairs of a query and a visible key."""
        window = self.window
        if self.is_chunked and window is not None:
            return _chunked_pairs(before + new, window) - _chunked_pairs(before, window)
        return seen_pairs(new, before, window)

    def elementwise_s(self, tokens: int) -> float:
        """Return the seconds of norms, rotary embedding and activation."""
        return tokens * self._act_bytes_per_token / self._rates.bandwidth


def _chunked_pairs(num_tokens: int, chunk: int) -> int:
    chunks, rest = divmod(num_tokens, chunk)
    return chunks * (chunk * (chunk + 1) // 2) + rest * (rest + 1) // 2


def _product(model: ModelShape, layer: Layer, part: str, gpu: Gpu, rates: Rates, dtype: str) -> Product:
    size, form = model.bytes_per_weight(layer, part, DTYPE_BYTES[dtype]), model.format_of(layer, part)
    peak = None if form is None else gpu.peak_flops_per_s.get(form.units or "")
    if peak is None:
        return Product(rates.flops, size)
    quick, share = peak * gpu.efficiency.gemm_flops, model.share_of(layer, part)
    return Product(quick if share == 1 else 1 / (share / quick + (1 - share) / rates.flops), size)


LINK_EFFICIENCY = {"nvlink": 0.8, "pcie-p2p": 0.55, "pcie": 0.55 / 2.3}
"""Share of a link's bandwidth that an all-reduce reaches for large messages: on NVLink NCCL's
(nccl-tests), on PCIe that of two RTX PRO 6000 with and without access to each other's memory
(aiconfigurator-core 0.12.0, tables of vLLM 0.24 and 0.19).
"""

FITTED_GPU = "h100"
"""GPU whose efficiencies were fitted to servers, of dense models in 16 bits."""


def _in_chunks(contexts: Seconds, num_decodes: int, chunk: int) -> Seconds:
    if num_decodes == 1:
        return np.where(contexts > 0, np.mod(contexts - 1, chunk) + 1, 0.0)
    return np.where(contexts <= chunk * num_decodes, contexts, num_decodes * (chunk + 1) / 2)


def _is_plain(model: ModelShape) -> bool:
    latent = any(isinstance(layer.attention, Latent) for layer, _ in model.layers)
    return not (latent or model.has_windows or model.has_experts or model.weights)


class Roofline(CostModel):
    """Roofline cost model of `model` on `tensor_parallel_size` GPUs.

    `num_ranks` are all GPUs that layers are split over; `was_fitted` if the efficiencies were fitted to
    models of this kind on this GPU; `unpacks_weights` if 4-bit weights are multiplied in 16 bits. The experts
    are split over the GPUs of all `data_parallel_size` ranks; everything else belongs to one rank. `dtype` is
    that of activations and of unquantised weights, `kv_dtype` that of the cache; both default to the model's.
    """

    __slots__ = (
        "_act_bytes",
        "_chunks",
        "_decode_s",
        "_decode_token_s",
        "_gpu",
        "_groups",
        "_model",
        "_ranks",
        "_rates",
        "_sampler",
        "_windows",
        "has_experts",
        "layers",
        "num_ranks",
        "unpacks_weights",
        "was_fitted",
    )

    def __init__(
        self,
        model: ModelShape,
        gpu: Gpu,
        *,
        tensor_parallel_size: int = 1,
        dtype: str | None = None,
        kv_dtype: str | None = None,
        data_parallel_size: int = 1,
        sampler: Sampler | None = None,
    ) -> None:
        check_parallel(model, tensor_parallel_size)
        dtype = dtype or model.dtype
        efficiency, ranks = gpu.efficiency, tensor_parallel_size
        self._model, self._gpu, self._ranks = model, gpu, ranks
        self._sampler = sampler or Sampler(GREEDY, NEWEST, model.vocab_size, gpu)
        self._act_bytes, self._groups = DTYPE_BYTES[dtype], data_parallel_size
        experts = self.num_ranks = ranks * data_parallel_size
        self.has_experts = model.has_experts
        # Attention computes in 16 bits (or more) whatever the weights are stored in.
        attention_peak = gpu.peak("bfloat16" if dtype == "float8" else dtype)
        self._rates = Rates(
            flops=gpu.peak(dtype) * efficiency.gemm_flops,
            attention_flops=attention_peak * efficiency.attention_flops,
            latent_flops=attention_peak * LATENT_FLOPS,
            bandwidth=gpu.memory_bandwidth_bytes_per_s * efficiency.weight_bandwidth,
            kv_bandwidth=gpu.memory_bandwidth_bytes_per_s * efficiency.kv_bandwidth,
        )
        self.layers = [
            (
                LayerRoofline(
                    model,
                    layer,
                    gpu=gpu,
                    rates=self._rates,
                    ranks=ranks,
                    dtype=dtype,
                    kv_dtype=kv_dtype or dtype,
                    expert_ranks=experts,
                ),
                count,
            )
            for layer, count in model.layers
        ]
        self._decode_token_s = sum(
            count * (layer.index_token_s + (layer.decode_token_s if layer.window is None else 0.0))
            for layer, count in self.layers
        )
        self._windows = [
            (count * layer.decode_token_s, layer.window)
            for layer, count in self.layers
            if layer.window is not None and not layer.is_chunked
        ]
        self._chunks = [
            (count * layer.decode_token_s, layer.window)
            for layer, count in self.layers
            if layer.window is not None and layer.is_chunked
        ]
        self._decode_s: dict[int, float] = {}
        sixteen_bits = DTYPE_BYTES[dtype] == DTYPE_BYTES[kv_dtype or dtype] == 2
        form = model.weights
        self.unpacks_weights = form is not None and form.bits < 8 and form.units not in gpu.peak_flops_per_s
        self.was_fitted = gpu.key == FITTED_GPU and sixteen_bits and _is_plain(model)

    def step_s(self, work: StepWork) -> float:
        """Return the seconds of one step."""
        context = float(work.read_context_tokens)
        seconds = self._rest_s(work) + self._decode_token_s * context
        for token_s, window in self._windows:
            seconds += token_s * min(context, float(window * work.num_decodes))
        for token_s, chunk in self._chunks:
            seconds += token_s * float(_in_chunks(np.array([context]), work.num_decodes, chunk)[0])
        return seconds

    def run_s(self, work: StepWork, num_steps: int) -> Seconds:
        """Return the seconds of each step of a decode run."""
        contexts = work.read_contexts(num_steps)
        seconds: Seconds = np.add(self._rest_s(work), self._decode_token_s * contexts)
        for token_s, window in self._windows:
            seconds += token_s * np.minimum(contexts, float(window * work.num_decodes))
        for token_s, chunk in self._chunks:
            seconds += token_s * _in_chunks(contexts, work.num_decodes, chunk)
        return seconds

    def _rest_s(self, work: StepWork) -> float:
        if work.chunks or work.num_samples != work.num_decodes or work.num_routed_tokens:
            return self._compute_rest_s(work)
        rest_s = self._decode_s.get(work.num_decodes)
        if rest_s is None:
            rest_s = self._decode_s[work.num_decodes] = self._compute_rest_s(work)
        return rest_s

    def _compute_rest_s(self, work: StepWork) -> float:
        tokens = work.num_tokens
        if not tokens:
            return 0.0
        routed = work.num_routed_tokens or tokens
        seconds = sum(count * self._layer_s(layer, work, tokens, routed) for layer, count in self.layers)
        return seconds + self.logits_s(work.num_samples) + self._gpu.step_launch_s

    def _layer_s(self, layer: LayerRoofline, work: StepWork, tokens: int, routed: int) -> float:
        """Return the seconds of one layer, without decode attention."""
        return (
            layer.linear_s(tokens, routed)
            + layer.prefill_attention_s(work.chunks)
            + layer.elementwise_s(tokens)
            + self.all_reduce_s(tokens)
            + self._gpu.layer_launch_s
            + layer.launch_s
            + layer.decode_request_s * work.num_decodes
            + (self.exchange_s(routed) if layer.routes else 0.0)
        )

    def exchange_s(self, routed: int) -> float:
        """Return the seconds of exchanging tokens among all data-parallel ranks; 0 for one."""
        groups = self._groups
        if groups == 1:
            return 0.0
        message_bytes = routed * self._model.hidden_size * self._act_bytes
        link = self._gpu.interconnect_bytes_per_s * LINK_EFFICIENCY[self._gpu.link]
        latency_s = self._gpu.allreduce_latency_s * (1 + 0.5 * (math.log2(groups) - 1))
        return 2 * (latency_s + (groups - 1) / groups * message_bytes / link)

    def all_reduce_s(self, tokens: int) -> float:
        """Return the seconds of a layer's two all-reduces; 0 on one rank."""
        ranks = self._ranks
        if ranks == 1:
            return 0.0
        message_bytes = tokens * self._model.hidden_size * self._act_bytes
        link = self._gpu.interconnect_bytes_per_s * LINK_EFFICIENCY[self._gpu.link]
        latency_s = self._gpu.allreduce_latency_s * (1 + 0.5 * (math.log2(ranks) - 1))
        return 2 * (latency_s + 2 * (ranks - 1) / ranks * message_bytes / link)

    def logits_s(self, num_samples: int) -> float:
        """Return the seconds of the output head and the sampler; 0 without sampled positions."""
        if not num_samples:
            return 0.0
        weights, rates = self._model.embedding_params // self._ranks, self._rates
        compute_s = 2 * num_samples * weights / rates.flops
        product_s = max(compute_s, weights * self._act_bytes / rates.bandwidth)
        return product_s + self._sampler.seconds(num_samples)
