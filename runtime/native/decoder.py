"""A whole step in one compiled call, for decoders whose layers compute what the kernels do.

Shapes: T tokens of the step, R sampling requests, V tokens of the vocabulary, W hidden width; D key width.
"""

import ctypes
from ctypes import addressof, byref
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from transformers import PreTrainedModel

from runtime.attention.paged_cache import PagedKVCache
from runtime.native.attention import StepArrays, address
from runtime.native.observed import Attended
from runtime.native.parts import Parts, Unrecognised, activation, child
from runtime.native.records import FORMATS, DecoderLayer, DecoderRecord, LayerRecord, Norm, StepRecord

FIRST_POSITIONS = 4096
MOST_PLAIN_ROWS, MOST_TILE_ROWS = 16, 32
"""With more, torch's products are faster than ours: of plain weights, and of packed ones where the CPU has
tiles (AMX) and these kernels were compiled without. By dot products a thread of ours does 450 GFLOP/s,
oneDNN's 280 (32 rows) to 400 (2,048); tiles of ours are sooner up to 48 rows, and as soon beyond."""
Ints = NDArray[np.int64]


class Modules(NamedTuple):
    """The names under which the library keeps the parts of a decoder."""

    embedding: nn.Embedding
    layers: nn.ModuleList
    rotary: nn.Module
    norm: nn.Module
    head: nn.Module

    @classmethod
    def of(cls, model: PreTrainedModel) -> "Modules":
        """Raises Unrecognised if the model is not made of these."""
        body = model.base_model
        embedding, layers = model.get_input_embeddings(), child(body, "layers")
        head = model.get_output_embeddings()  # type: ignore[no-untyped-call]  # the library's own gap
        if type(embedding) is not nn.Embedding or not isinstance(layers, nn.ModuleList) or head is None:
            raise Unrecognised("it is not an embedding, layers and a head")
        return cls(embedding, layers, child(body, "rotary_emb"), child(body, "norm"), head)


class NativeDecoder:
    """A model's layers and head as one record. Keeps alive what the record points to."""

    def __init__(
        self,
        library: ctypes.CDLL,
        modules: Modules,
        attended: dict[int, Attended],
        cache: PagedKVCache,
        most_positions: int,
    ) -> None:
        self.dtype = modules.embedding.weight.dtype
        if self.dtype not in (torch.float32, torch.bfloat16):
            raise Unrecognised(f"it computes in {self.dtype}")
        if sorted(attended) != list(range(len(modules.layers))):
            raise Unrecognised("not every layer attends")
        self._library, self._cache = library, cache
        self._rotary, self._most_positions = modules.rotary, most_positions
        self._parts = parts = Parts(self.dtype, [modules, cache])
        self.vocab_size, self._width = modules.embedding.weight.shape
        layers = [self._layer(layer, n, attended[n]) for n, layer in enumerate(modules.layers)]
        self._layers = (DecoderLayer * len(layers))(*layers)
        self._record = DecoderRecord(
            addressof(self._layers),
            len(layers),
            self._width,
            layers[0].gate.num_out,
            self.vocab_size,
            modules.embedding.weight.data_ptr(),
            parts.norm(modules.norm, self._width),
            parts.linear(modules.head, self._width, self.vocab_size),
            activation=activation(child(child(modules.layers[0], "mlp"), "act_fn", "activation_fn")),
            format=FORMATS[self.dtype],
        )
        self._num_positions = 0
        self._know_positions(min(FIRST_POSITIONS, most_positions) - 1)
        plain = any(not linear.block for linear in (layers[0].q, layers[0].gate, self._record.head))
        left_to_torch = torch.cpu._is_amx_tile_supported() and not library.sundog_has_tiles()
        self.most_rows = MOST_PLAIN_ROWS if plain else MOST_TILE_ROWS if left_to_torch else None

    def takes(self, num_rows: int) -> bool:
        """True if a step of this many rows is computed sooner here than layer by layer."""
        return self.most_rows is None or num_rows <= self.most_rows

    @property
    def num_layers(self) -> int:
        return len(self._layers)

    def _layer(self, layer: nn.Module, number: int, seen: Attended) -> DecoderLayer:
        parts, width = self._parts, self._width
        attention, mlp = child(layer, "self_attn"), child(layer, "mlp")
        _, key_heads, key_width = seen.k_TKD.shape
        value_width = seen.v_TKE.shape[-1]
        heads = (seen.num_heads * key_width, key_heads * key_width, key_heads * value_width)
        down = parts.linear(child(mlp, "down_proj"), None, width)
        inner = down.num_in
        return DecoderLayer(
            self._attention(number, seen),
            parts.norm(child(layer, "input_layernorm"), width),
            self._head_norm(attention, "q_norm", key_width),
            self._head_norm(attention, "k_norm", key_width),
            parts.norm(child(layer, "post_attention_layernorm"), width),
            *parts.linears(attention, ("q_proj", "k_proj", "v_proj"), "qkv_proj", width, *heads),
            parts.linear(child(attention, "o_proj"), seen.num_heads * value_width, width),
            *parts.linears(mlp, ("gate_proj", "up_proj"), "gate_up_proj", width, inner, inner),
            down,
        )

    def _head_norm(self, attention: nn.Module, name: str, key_width: int) -> Norm:
        has_one = getattr(attention, name, None) is not None
        return self._parts.norm(child(attention, name) if has_one else None, key_width)

    def _attention(self, number: int, seen: Attended) -> LayerRecord:
        keys, values = self._cache.keys_SPKD[number], self._cache.values_SPKE[number]
        _, block_size, num_key_heads, key_width = keys.shape
        sinks_H = None if seen.sinks_H is None else seen.sinks_H.float().contiguous()
        self._parts.kept.append(sinks_H)
        return LayerRecord(
            keys.data_ptr(),
            values.data_ptr(),
            FORMATS[keys.dtype],
            seen.num_heads,
            num_key_heads,
            key_width,
            values.shape[-1],
            block_size,
            seen.scaling,
            seen.softcap or 0.0,
            seen.window or 0,
            None if sinks_H is None else sinks_H.data_ptr(),
        )

    def _know_positions(self, position: int) -> None:
        """Have the library's own rotary table reach this position."""
        if position < self._num_positions:
            return
        self._num_positions = min(self._most_positions, 1 << position.bit_length())
        at_1P = torch.arange(self._num_positions)[None]
        with torch.inference_mode():
            try:
                cos_1PD, sin_1PD = self._rotary(torch.empty(0, dtype=self.dtype), at_1P)
            except (TypeError, ValueError) as error:  # it takes more, such as the type of a layer
                raise Unrecognised("its rotary embedding is not one table of positions") from error
        if cos_1PD.shape[-1] > self._layers[0].attention.key_width or cos_1PD.shape[-1] % 2:
            raise Unrecognised("its rotary embedding is wider than a head")
        self._turns = cos_1PD.contiguous(), sin_1PD.contiguous()
        self._record.cos, self._record.sin = (turn.data_ptr() for turn in self._turns)
        self._record.rotary_width = cos_1PD.shape[-1]

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
    ) -> Tensor:
        """The logits [R, V] of the sampled rows, from tokens, or from hidden states, which it replaces."""
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
        self._library.sundog_decode(byref(self._record), byref(step), torch.get_num_threads())
        return logits_RV
