"""One decoder layer's roofline on one tensor-parallel rank; see `sim.cost.roofline` for the law.

Weights in a format that the GPU multiplies in take its rate for that format; others are read as they
are stored and multiplied in 16 bits. Latent attention prefills over keys and values made anew from
the latents, of the context too, and decodes in the latents themselves (DeepSeek-V2, section 2.1.2).
"""

import math
from typing import NamedTuple

from sim.hardware.formats import DTYPE_BYTES
from sim.hardware.gpu import Gpu
from sim.hardware.shape import Latent, Layer, ModelShape

LATENT_FLOPS = 0.67
"""Of the dense peak, in decodes of latent attention: 660 of 989 TFLOP/s (FlashMLA, on an H800)."""


class Rates(NamedTuple):
    """What this rank computes and reads in a second, fractions of the peaks applied."""

    flops: float
    attention_flops: float
    latent_flops: float
    bandwidth: float
    kv_bandwidth: float


class Product(NamedTuple):
    """Weights on this rank: how fast they are multiplied, and the bytes of each."""

    flops: float
    bytes_per_weight: float


class LayerRoofline:
    """Seconds of one layer of `model` on one of `ranks`; `window` is that of its attention, chunked or not.

    `decode_token_s` is of reading one token of context in a decode.
    """

    __slots__ = (
        "_act_bytes_per_token",
        "_attention_weights",
        "_dense_weights",
        "_expert_weights",
        "_kv_bytes",
        "_mlp",
        "_pair_flops",
        "_products",
        "_rates",
        "_up_weights",
        "decode_token_s",
        "is_chunked",
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
        if isinstance(attention, Latent):
            heads = math.ceil(attention.num_heads / ranks)
            key_dim = attention.nope_dim + attention.rope_dim
            self._pair_flops = 2 * heads * (key_dim + attention.value_dim)
            self._up_weights = attention.up_weights / ranks
            latent_flops = 2 * heads * (2 * attention.kv_rank + attention.rope_dim)
            compute_s = latent_flops / rates.latent_flops
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
        """Projections and MLP, or experts of that many tokens."""
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
        return seconds + self._product_s(products["experts"], routed, mlp.per_token * expert, read)

    def _product_s(self, product: Product, tokens: int, weights_used: float, weights_read: float) -> float:
        compute_s = 2 * tokens * weights_used / product.flops
        return max(compute_s, weights_read * product.bytes_per_weight / self._rates.bandwidth)

    def prefill_attention_s(self, chunks: tuple[tuple[int, int], ...]) -> float:
        """Attention of the chunks, each (new tokens, tokens before)."""
        seconds, rates = 0.0, self._rates
        for new, before in chunks:
            compute_s = self._pairs(new, before) * self._pair_flops / rates.attention_flops
            keys = self._kept(before) + new
            seconds += max(compute_s, keys * self._kv_bytes / rates.kv_bandwidth)
            if self._up_weights:
                product = self._products["attention"]
                seconds += self._product_s(
                    product, before, self._up_weights, self._up_weights if before else 0
                )
        return seconds

    def _kept(self, before: int) -> int:
        """Keys before a chunk that its first query sees."""
        if self.window is None:
            return before
        return before % self.window if self.is_chunked else min(before, self.window)

    def _pairs(self, new: int, before: int) -> int:
        """Pairs of a query and a key that it sees."""
        window = self.window
        if self.is_chunked and window is not None:
            return _chunked_pairs(before + new, window) - _chunked_pairs(before, window)
        if window is None or new + before <= window:
            return new * before + new * (new + 1) // 2
        rising = max(window - before, 0)
        return rising * before + rising * (rising + 1) // 2 + (new - rising) * window

    def elementwise_s(self, tokens: int) -> float:
        """Norms, rotary embedding and activation."""
        return tokens * self._act_bytes_per_token / self._rates.bandwidth


def _chunked_pairs(num_tokens: int, chunk: int) -> int:
    """Pairs of the first so many tokens, each of which sees its own chunk up to itself."""
    chunks, rest = divmod(num_tokens, chunk)
    return chunks * (chunk * (chunk + 1) // 2) + rest * (rest + 1) // 2


def _product(model: ModelShape, layer: Layer, part: str, gpu: Gpu, rates: Rates, dtype: str) -> Product:
    size, form = model.bytes_per_weight(layer, part, DTYPE_BYTES[dtype]), model.format_of(layer, part)
    peak = None if form is None else gpu.peak_flops_per_s.get(form.units or "")
    if peak is None:
        return Product(rates.flops, size)
    quick, share = peak * gpu.efficiency.gemm_flops, model.share_of(layer, part)
    return Product(quick if share == 1 else 1 / (share / quick + (1 - share) / rates.flops), size)
