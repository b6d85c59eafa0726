"""Recognition of models that the kernels compute exactly as the library does.

Law: the library's modules are the definition. Parts are taken from them, every layer's result is compared
with the library's on the same input, and a model that differs anywhere is left to the library.
"""

import ctypes

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from sundog.runtime.attention.paged_cache import PagedKVCache
from sundog.runtime.native.attention import StepArrays
from sundog.runtime.native.decoder import Modules, NativeDecoder
from sundog.runtime.native.observed import Pass, observe
from sundog.runtime.native.parts import Unrecognised
from sundog.runtime.native.records import Rotary

APART = {torch.float32: 1e-4, torch.bfloat16: 0.04, torch.float16: 0.005}
"""Share of a layer's output that may differ: ten times bf16's rounding of 0.004; a wrong layer is off by
1.
"""
LOST = {torch.float32: 1e-6, torch.bfloat16: 4e-3, torch.float16: 5e-4}
"""Share of the residual stream that rounding may change when a layer's output is added to it."""


def recognised(
    library: ctypes.CDLL, model: PreTrainedModel, cache: PagedKVCache, max_model_len: int
) -> NativeDecoder:
    """Return the model for the kernels; raises Unrecognised if results would differ.

    Uses the cache's first blocks.
    """
    rope = getattr(model.config, "rope_parameters", None) or {}
    if rope.get("llama_4_scaling_beta") and max_model_len > rope.get("original_max_position_embeddings", 0):
        raise Unrecognised("its queries grow with their positions")  # beyond those that are compared
    modules = Modules.of(model)
    seen = observe(model, modules.layers, cache, max_model_len)
    try:
        decoder = NativeDecoder(library, modules, seen=seen, cache=cache, most_positions=max_model_len)
        _check(decoder, seen, cache)
    finally:
        cache.wipe(seen.blocks_B)
    return decoder


def _check(decoder: NativeDecoder, seen: Pass, cache: PagedKVCache) -> None:
    arrays = StepArrays([seen.span], seen.slot_T)
    none, every = np.zeros(0, np.int64), np.arange(len(seen.slot_T))
    for layer in range(decoder.num_layers):
        _find_rotary(decoder, layer, seen, cache, arrays)
    last_TW = seen.out_of_TW[decoder.num_layers - 1].clone()
    end = decoder.num_layers
    logits = decoder.run(arrays, seen.position_T, every, hidden_TW=last_TW, first=end)
    _same("its head", decoder.dtype, logits, seen.logits_TV)
    begun_TW = torch.empty_like(last_TW)
    decoder.run(arrays, seen.position_T, none, token_T=seen.token_T, hidden_TW=begun_TW, end=0)
    _same("its embedding", decoder.dtype, begun_TW, seen.into_TW[0])


def _find_rotary(
    decoder: NativeDecoder, layer: int, seen: Pass, cache: PagedKVCache, arrays: StepArrays
) -> None:
    """Set a layer's rotary embedding to the first variant that gives the library's results."""
    for rotary in Rotary:
        try:
            decoder.turn(layer, rotary)
            return _check_layer(decoder, layer, seen, cache, arrays)
        except Unrecognised:
            if rotary is max(Rotary):
                raise


def _check_layer(
    decoder: NativeDecoder, layer: int, seen: Pass, cache: PagedKVCache, arrays: StepArrays
) -> None:
    into_TW, out_TW = seen.into_TW[layer], seen.out_of_TW[layer]
    hidden_TW, none = into_TW.clone(), np.zeros(0, np.int64)
    decoder.run(arrays, seen.position_T, none, hidden_TW=hidden_TW, first=layer, end=layer + 1)
    lost = LOST[decoder.dtype] * float(into_TW.float().norm())
    before_TW, slots, settled_T = into_TW.float(), torch.from_numpy(seen.slot_T), seen.settled_T(layer)
    if not settled_T.any():
        raise Unrecognised(f"layer {layer}'s router is too close to a tie to be compared")
    found_TW, expected_TW = (rows_TW - before_TW for rows_TW in (hidden_TW, out_TW))
    _same(f"layer {layer}", decoder.dtype, found_TW[settled_T], expected_TW[settled_T], lost)
    for what, kept, expected in (
        ("keys", cache.keys_SPKD[layer], seen.attended[layer].k_TKD),
        ("values", cache.values_SPKE[layer], seen.attended[layer].v_TKE),
    ):
        _same(f"layer {layer}'s {what}", decoder.dtype, kept.flatten(0, 1)[slots], expected)


def _same(what: str, dtype: torch.dtype, found: Tensor, expected: Tensor, lost: float = 0.0) -> None:
    apart = float((found.float() - expected.float()).norm())
    if not apart <= APART[dtype] * float(expected.float().norm()) + lost:
        raise Unrecognised(f"{what} would differ")
