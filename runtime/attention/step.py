"""Attention of one step, and of the probing pass that finds a model's layers.

Shapes: T tokens of the step; H query heads, K key/value heads; D key width, E value width.
"""

from dataclasses import dataclass, field
from typing import Unpack

import torch
from torch import Tensor

from sundog.runtime.attention import Special
from sundog.runtime.attention.decoding import DecodeAttention, Decodes, by_gathering
from sundog.runtime.attention.gathered import attend_group
from sundog.runtime.attention.groups import Group
from sundog.runtime.attention.paged_cache import LayerShape, PagedKVCache
from sundog.runtime.attention.varlen import Sequences, attend_all, can_attend


@dataclass(frozen=True, slots=True)
class PagedStep:
    """Attention that stores each layer's keys and values in their slots, then reads block tables.

    The first rows are those of `decodes`, if there are any; `groups` cover the others in order. `sequences`
    are the requests behind the decodes, or all of them if it `covers_all`. Rows beyond those of `slots_T` are
    padding: they store nothing and attend to nothing.
    """

    cache: PagedKVCache
    slots_T: Tensor
    groups: list[Group]
    decodes: Decodes | None = None
    decode: DecodeAttention = by_gathering
    sequences: Sequences | None = None
    covers_all: bool = False

    def attend(
        self, layer: int, q_THD: Tensor, k_TKD: Tensor, v_TKE: Tensor, **special: Unpack[Special]
    ) -> Tensor:
        num_rows, num_padding = len(self.slots_T), len(q_THD) - len(self.slots_T)
        if num_padding:
            q_THD, k_TKD, v_TKE = q_THD[:num_rows], k_TKD[:num_rows], v_TKE[:num_rows]
        keys_SPKD, values_SPKE = self.cache.keys_SPKD[layer], self.cache.values_SPKE[layer]
        self.cache.write(layer, self.slots_T, k_TKD, v_TKE)
        sequences = self.sequences
        is_plain = special["softcap"] is None and special["sinks_H"] is None
        plain = special["scaling"], special["window"]
        if not is_plain or not can_attend(q_THD, values_SPKE):
            sequences = None
        if sequences is not None and self.covers_all:
            return attend_all(sequences, q_THD, keys_SPKD, values_SPKE, *plain)
        outs, num_decodes = [], 0
        if self.decodes is not None:
            num_decodes = len(self.decodes.num_keys_N)
            q_NHD = q_THD[:num_decodes]
            outs.append(self.decode(self.decodes, q_NHD, keys_SPKD, values_SPKE, **special))
        if sequences is not None:
            q_RHD = q_THD[num_decodes:]
            outs.append(attend_all(sequences, q_RHD, keys_SPKD, values_SPKE, *plain))
        else:
            for group in self.groups:
                outs.append(attend_group(group, q_THD, k_TKD, v_TKE, keys_SPKD, values_SPKE, **special))
        if num_padding:
            outs.append(q_THD.new_zeros(num_padding, q_THD.shape[1], v_TKE.shape[-1]))
        return outs[0] if len(outs) == 1 else torch.cat(outs)


@dataclass(slots=True)
class LayerProbe:
    """Attention without keys, which records what each layer stores and its options."""

    shapes: dict[int, LayerShape] = field(default_factory=dict)
    windows: dict[int, int | None] = field(default_factory=dict)
    repeated: set[int] = field(default_factory=set)

    def attend(
        self, layer: int, q_THD: Tensor, k_TKD: Tensor, v_TKE: Tensor, **special: Unpack[Special]
    ) -> Tensor:
        _, num_heads, key_width = k_TKD.shape
        if layer in self.shapes:
            self.repeated.add(layer)
        self.shapes[layer] = LayerShape(
            *(num_heads, key_width, v_TKE.shape[-1], k_TKD.dtype),
            num_query_heads=q_THD.shape[1],
            has_window=special["window"] is not None,
            has_softcap=special["softcap"] is not None,
            has_sinks=special["sinks_H"] is not None,
        )
        self.windows[layer] = special["window"]
        return v_TKE.repeat_interleave(q_THD.shape[1] // num_heads, dim=1)
