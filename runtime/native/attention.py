"""Attention of one step by the compiled kernel: one call per layer for all requests.

Keys are read in place, without gathering or masks.

Shapes: T tokens of the step, N requests; H query heads, K key/value heads; D key width, E value width.
"""

import ctypes
from collections.abc import Sequence
from ctypes import byref
from typing import Unpack

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sundog.runtime.attention import Special
from sundog.runtime.attention.paged_cache import PagedKVCache
from sundog.runtime.native.records import FORMATS, LayerRecord, RowsRecord, SequencesRecord
from sundog.runtime.step.step import Span

Ints = NDArray[np.int64]


def address(array: Ints) -> int:
    return int(array.__array_interface__["data"][0])


class StepArrays:
    """Arrays of a step's requests in the kernels' format, kept alive as long as the record that points to
    them.
    """

    __slots__ = ("_kept", "num_rows", "record")

    def __init__(self, spans: Sequence[Span], slot_T: Ints) -> None:
        position_N = np.concatenate([span.first_position_N for span in spans])
        count_N = np.repeat([s.num_queries for s in spans], [len(s.first_position_N) for s in spans])
        start_N1 = np.zeros(len(count_N) + 1, np.int64)
        np.cumsum(count_N, out=start_N1[1:])
        tables = [np.ascontiguousarray(span.table_NB) for span in spans]
        table_N = np.concatenate(
            [address(table) + np.arange(len(table)) * table.strides[0] for table in tables]
        )
        slot_T = np.ascontiguousarray(slot_T)
        self._kept = (position_N, start_N1, tables, table_N, slot_T)
        self.num_rows = len(slot_T)
        self.record = SequencesRecord(
            len(count_N), address(start_N1), address(position_N), address(table_N), address(slot_T)
        )


def layer_record(cache: PagedKVCache, number: int, num_heads: int) -> LayerRecord:
    """Return the record of an attention layer with its keys and values, without its module's options."""
    keys, values = cache.keys_SPKD[number], cache.values_SPKE[number]
    _, block_size, num_key_heads, key_width = keys.shape
    widths = num_heads, num_key_heads, key_width, values.shape[-1]
    return LayerRecord(keys.data_ptr(), values.data_ptr(), FORMATS[keys.dtype], *widths, block_size)


def specialise(record: LayerRecord, special: Special) -> Tensor | None:
    """Add a module's options to a layer's record; return the sinks in float32, to which the record points."""
    sinks_H = special["sinks_H"]
    sinks_H = None if sinks_H is None else sinks_H.float().contiguous()
    record.scaling, record.window = special["scaling"], special["window"] or 0
    record.softcap = special["softcap"] or 0.0
    record.sinks = None if sinks_H is None else sinks_H.data_ptr()
    return sinks_H


class NativeAttention:
    """Attention of every step of one model on one cache."""

    def __init__(self, library: ctypes.CDLL, cache: PagedKVCache) -> None:
        self._library = library
        self._cache = cache
        self._layers: dict[tuple[int, int], LayerRecord] = {}

    @staticmethod
    def can(cache: PagedKVCache) -> bool:
        """Return whether the kernel supports the cache's layers."""
        return all(keys.device.type == "cpu" and keys.dtype in FORMATS for keys in cache.keys_SPKD)

    def step(self, spans: Sequence[Span], slot_T: Ints) -> "NativeStep":
        return NativeStep(self, StepArrays(spans, slot_T))

    def layer(self, number: int, num_heads: int) -> LayerRecord:
        """Return a layer's record, without its module's options."""
        found = self._layers.get((number, num_heads))
        if found is None:
            found = self._layers[number, num_heads] = layer_record(self._cache, number, num_heads)
        return found

    def attend(
        self, layer: LayerRecord, arrays: StepArrays, q: Tensor, k: Tensor, v: Tensor, out: Tensor
    ) -> None:
        self._library.sundog_attend(
            byref(layer),
            byref(arrays.record),
            *(byref(_rows(tensor)) for tensor in (q, k, v, out)),
            torch.get_num_threads(),
        )


class NativeStep:
    """Attention of one step, layer by layer."""

    __slots__ = ("_arrays", "_attention")

    def __init__(self, attention: NativeAttention, arrays: StepArrays) -> None:
        self._attention = attention
        self._arrays = arrays

    def attend(
        self, layer: int, q_THD: Tensor, k_TKD: Tensor, v_TKE: Tensor, **special: Unpack[Special]
    ) -> Tensor:
        """Return the output [T, H, E]; rows beyond those of the requests are padding, and zero."""
        num_rows, num_heads, _ = q_THD.shape
        record = self._attention.layer(layer, num_heads)
        _sinks_H = specialise(record, special)  # which the record only points to
        if not (q_THD.dtype is k_TKD.dtype is v_TKE.dtype):
            raise ValueError(f"layer {layer} attends with {q_THD.dtype}, {k_TKD.dtype} and {v_TKE.dtype}")
        q_THD, k_TKD, v_TKE = _side_by_side(q_THD), _side_by_side(k_TKD), _side_by_side(v_TKE)
        out_THE = q_THD.new_empty(num_rows, num_heads, v_TKE.shape[-1])
        out_THE[self._arrays.num_rows :] = 0
        self._attention.attend(record, self._arrays, q_THD, k_TKD, v_TKE, out_THE)
        return out_THE


def _side_by_side(tensor_THD: Tensor) -> Tensor:
    return tensor_THD if tensor_THD.stride(2) == 1 else tensor_THD.contiguous()


def _rows(tensor_THD: Tensor) -> RowsRecord:
    return RowsRecord(tensor_THD.data_ptr(), tensor_THD.stride(0), tensor_THD.stride(1))
