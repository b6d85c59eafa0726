"""A whole step in one compiled call, for decoders whose layers the kernels support.

Shapes: T tokens of the step, R sampling requests, V tokens of the vocabulary, W hidden width; D key width.
"""

import ctypes
from ctypes import addressof, byref
from inspect import signature
from typing import NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel

from sundog.runtime.attention.paged_cache import PagedKVCache
from sundog.runtime.native.attention import StepArrays, address, layer_record, specialise
from sundog.runtime.native.observed import Attended, Pass
from sundog.runtime.native.parts import GatedProducts, Parts, Unrecognised, child, maybe_child, products_of
from sundog.runtime.native.records import (
    FORMATS,
    DecoderLayer,
    DecoderRecord,
    Linear,
    Norm,
    Rotary,
    StepRecord,
)

FIRST_POSITIONS = 4096
Ints = NDArray[np.int64]
Fact = TypeVar("Fact")


class Modules(NamedTuple):
    """Names of a decoder's parts in the library."""

    embedding: nn.Embedding
    layers: nn.ModuleList
    rotary: nn.Module
    norm: nn.Module
    head: nn.Module
    config: PreTrainedConfig

    @classmethod
    def of(cls, model: PreTrainedModel) -> "Modules":
        """Return the names in this model; raises Unrecognised if its parts are unknown."""
        body = model.base_model
        embedding, layers = model.get_input_embeddings(), child(body, "layers")
        head = model.get_output_embeddings()  # type: ignore[no-untyped-call]  # the library's own gap
        if not isinstance(embedding, nn.Embedding) or not isinstance(layers, nn.ModuleList) or head is None:
            raise Unrecognised("it is not an embedding, layers and a head")
        rotary, norm = child(body, "rotary_emb"), child(body, "norm")
        return cls(embedding, layers, rotary=rotary, norm=norm, head=head, config=model.config)

    def setting(self, name: str, otherwise: float) -> float:
        """Return a scaling factor of the configuration, or `otherwise`; all models use the same name for
        it.
        """
        value = getattr(self.config, name, None)
        return otherwise if value is None else float(value)


class NativeDecoder:
    """Layers and head of a model as one record, with the tensors that it points to kept alive."""

    def __init__(
        self, library: ctypes.CDLL, modules: Modules, seen: Pass, cache: PagedKVCache, most_positions: int
    ) -> None:
        attended = seen.attended
        self.dtype = modules.embedding.weight.dtype
        if self.dtype not in FORMATS:
            raise Unrecognised(f"it computes in {self.dtype}")
        if sorted(attended) != list(range(len(modules.layers))):
            raise Unrecognised("not every layer attends")
        self._library, self._cache = library, cache
        self._rotary, self._most_positions = modules.rotary, most_positions
        self._kinds = _kinds(modules)
        self._parts = parts = Parts(self.dtype, [modules, cache])
        self.vocab_size, self._width = modules.embedding.weight.shape
        products = [parts.products(products_of(layer), self._width) for layer in modules.layers]
        layers = [self._layer(layer, n, attended[n], products[n]) for n, layer in enumerate(modules.layers)]
        self._layers = (DecoderLayer * len(layers))(*layers)
        _one("heads", {layer.shape for layer in self._layers})
        linears = [linear for each in products for linear in each.linears]
        gating = _one("gates", {each.gating for each in products})
        num_chosen = {each.experts.num_chosen for each in products if each.experts.num}
        head = parts.linear(modules.head, self._width, self.vocab_size)
        self._record = DecoderRecord(
            addressof(self._layers),
            len(layers),
            self._width,
            max(each.inner for each in products),
            self.vocab_size,
            max(each.experts.num for each in products),
            _one("numbers of chosen experts", num_chosen or {1}),
            modules.embedding.weight.data_ptr(),
            parts.norm(modules.norm, self._width),
            head,
            embedding_scale=_embedding_scale(modules.embedding, seen),
            residual_scale=getattr(
                modules.layers[0], "residual_scale", modules.setting("residual_multiplier", 1.0)
            ),
            logit_scale=1 / modules.setting("logits_scaling", 1.0),
            logit_softcap=modules.setting("final_logit_softcapping", 0.0),
            gate_alpha=gating.alpha,
            gate_limit=gating.limit,
            gating=gating.number,
            has_whole=any(
                each.bits for each in (*linears, head, *(each for layer in layers for each in layer.linears))
            ),
            format=FORMATS[self.dtype],
        )
        self._num_positions = 0
        self._know_positions(min(FIRST_POSITIONS, most_positions) - 1)

    def turn(self, layer: int, rotary: Rotary) -> None:
        """Set the rotary embedding of a layer's queries and keys."""
        wide = 2 * self._record.rotary_width > self._layers[layer].attention.key_width
        if rotary is Rotary.WIDE_HALVES and (wide or self._layers[layer].kv_a.num_out):
            raise Unrecognised(f"layer {layer} would differ")
        self._layers[layer].rotary = rotary

    @property
    def num_layers(self) -> int:
        return len(self._layers)

    def _layer(self, layer: nn.Module, number: int, seen: Attended, products: GatedProducts) -> DecoderLayer:
        parts, width = self._parts, self._width
        attention = child(layer, "self_attn")
        before_attention, after_attention, before_mlp, after_mlp = (
            parts.norm(norm, width) for norm in _norms(layer)
        )
        record = layer_record(self._cache, number, seen.num_heads)
        parts.kept.append(specialise(record, seen.special))
        return DecoderLayer(
            record,
            before_attention,
            after_attention=after_attention,
            before_mlp=before_mlp,
            after_mlp=after_mlp,
            o=parts.linear(child(attention, "o_proj"), seen.num_heads * seen.v_TKE.shape[-1], width),
            gate=products.gate,
            up=products.up,
            down=products.down,
            experts=products.experts,
            **self._heads(attention, seen),
        )

    def _heads(self, attention: nn.Module, seen: Attended) -> dict[str, Linear | Norm]:
        parts, width = self._parts, self._width
        _, num, key_width = seen.k_TKD.shape
        columns = (seen.num_heads * key_width, num * key_width, num * seen.v_TKE.shape[-1])
        of_latent = maybe_child(attention, "kv_b_proj")
        if of_latent is None:
            linears = parts.linears(attention, ("q_proj", "k_proj", "v_proj"), "qkv_proj", width, *columns)
            of_queries = self._head_norm(attention, "q_norm", key_width, columns[0])
            of_keys = self._head_norm(attention, "k_norm", key_width, columns[1])
            return {"of_queries": of_queries, "of_keys": of_keys, **dict(zip("qkv", linears, strict=True))}
        kv_a, k = parts.linear(child(attention, "kv_a_proj_with_mqa"), width), parts.linear(of_latent, None)
        if k.num_out != sum(columns[1:]) - num * (kv_a.num_out - k.num_in):
            raise Unrecognised("its heads are not made of one latent")
        found: dict[str, Linear | Norm] = {
            "kv_a": kv_a,
            "k": k,
            "of_keys": parts.norm(child(attention, "kv_a_layernorm"), k.num_in),
        }
        if (q_latent := maybe_child(attention, "q_a_proj")) is not None:
            found["q_a"] = q_a = parts.linear(q_latent, width)
            width = q_a.num_out
            found["of_queries"] = parts.norm(child(attention, "q_a_layernorm"), width)
        return {**found, "q": parts.linear(child(attention, "q_b_proj", "q_proj"), width, columns[0])}

    def _head_norm(self, attention: nn.Module, name: str, key_width: int, columns: int) -> Norm:
        norm = maybe_child(attention, name)
        weight = getattr(norm, "weight", None)
        is_of_all = isinstance(weight, Tensor) and weight.numel() == columns
        return self._parts.norm(norm, columns if is_of_all else key_width)

    def _know_positions(self, position: int) -> None:
        if position < self._num_positions:
            return
        self._num_positions = min(self._most_positions, 1 << position.bit_length())
        self._turns = {kind: self._turn(kind) for kind in dict.fromkeys(self._kinds)}
        for layer, kind in zip(self._layers, self._kinds, strict=True):
            layer.cos, layer.sin = (turn_PD.data_ptr() for turn_PD in self._turns[kind])
        widths = {turn_PD.shape[-1] for turns in self._turns.values() for turn_PD in turns}
        width, layer = widths.pop(), self._layers[0]
        if widths or width % 2:
            raise Unrecognised("its rotary embeddings differ in width")
        if width > layer.attention.key_width or layer.kv_a.num_out not in (0, layer.k.num_in + width):
            raise Unrecognised("its rotary embedding is not as wide as what it turns")
        self._record.rotary_width = width

    def _turn(self, kind: str | None) -> tuple[Tensor, Tensor]:
        """Return the library's cosines and sines [P, D] of each position, for a kind of layers if they
        differ.
        """
        at_1P = torch.arange(self._num_positions)[None]
        of_kind = () if kind is None else (kind,)
        with torch.inference_mode():
            try:
                turned = self._rotary(torch.empty(0, dtype=self.dtype), at_1P, *of_kind)
                if isinstance(turned, Tensor) and turned.is_complex():
                    turned = turned.real.repeat(1, 1, 2), turned.imag.repeat(1, 1, 2)
                cos_1PD, sin_1PD = turned
            except (KeyError, TypeError, ValueError) as error:
                raise Unrecognised("its rotary embedding is not one table of positions") from error
        return cos_1PD[0].float().contiguous(), sin_1PD[0].float().contiguous()

    def run(
        self,
        arrays: StepArrays,
        position_T: Ints,
        sampled_R: Ints,
        *,
        token_T: Ints | None = None,
        hidden_TW: Tensor | None = None,
        first: int = 0,
        end: int | None = None,
        num_threads: int | None = None,
    ) -> Tensor:
        """Return the logits [R, V] of the sampled rows, from tokens, or from hidden states, which are
        overwritten.

        Computed by `num_threads`, torch's number if None.
        """
        self._know_positions(int(position_T.max()))
        logits_RV = torch.empty(len(sampled_R), self.vocab_size, dtype=self.dtype)
        step = StepRecord(
            addressof(arrays.record),
            None if token_T is None else address(token_T),
            address(position_T),
            address(sampled_R),
            None if hidden_TW is None else hidden_TW.data_ptr(),
            logits_RV.data_ptr(),
            first,
            self.num_layers if end is None else end,
            len(sampled_R),
        )
        self._library.sundog_decode(byref(self._record), byref(step), num_threads or torch.get_num_threads())
        return logits_RV


def _norms(layer: nn.Module) -> tuple[nn.Module | None, ...]:
    """Return the norms before attention, after it, before the MLP and after it, by the library's names.

    In a layer with a norm after the MLP, `post_attention_layernorm` follows attention; otherwise it precedes
    the MLP.
    """
    before = maybe_child(layer, "input_layernorm")
    behind_attention = maybe_child(layer, "post_attention_layernorm")
    before_mlp = maybe_child(layer, "pre_feedforward_layernorm")
    if after_mlp := maybe_child(layer, "post_feedforward_layernorm"):
        return before, behind_attention, before_mlp, after_mlp
    after_attention = maybe_child(layer, "post_self_attn_layernorm")
    holders = layer, products_of(layer)
    after_mlp = next(filter(None, (maybe_child(each, "post_mlp_layernorm") for each in holders)), None)
    return before, after_attention, before_mlp or behind_attention, after_mlp


def _kinds(modules: Modules) -> list[str | None]:
    """Return the kind of each layer, which selects its rotary embedding; None if all share one."""
    if "layer_type" in signature(modules.rotary.forward).parameters:
        return list(modules.config.layer_types)
    return [None] * len(modules.layers)


def _one(what: str, found: set[Fact]) -> Fact:
    if len(found) != 1:
        raise Unrecognised(f"its layers have different {what}")
    return found.pop()


def _embedding_scale(embedding: nn.Embedding, seen: Pass) -> float:
    plain_TW, into_TW = embedding.weight[torch.from_numpy(seen.token_T)].double(), seen.into_TW[0].double()
    scale = (plain_TW * into_TW).sum() / plain_TW.square().sum()
    return float(scale.to(embedding.weight.dtype))
