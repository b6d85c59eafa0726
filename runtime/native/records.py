"""Arguments of the compiled kernels, as plain records equal to those in `attention.h` and `decoder.h`."""

from collections.abc import Callable
from ctypes import Structure, c_float, c_int32, c_int64, c_void_p
from enum import IntEnum

import torch
import torch.nn.functional as F
from torch import Tensor


class Rotary(IntEnum):
    """Which numbers of a head are rotated as a pair: i and i + half (HALVES), neighbours (PAIRS), or none.

    A half is half as wide as the library's table of angles, with WIDE_HALVES as wide as the table.
    PARTING_PAIRS rotates neighbours, and then stores the first numbers of all pairs before the second ones.
    """

    HALVES = 0
    PAIRS = 1
    NONE = 2
    WIDE_HALVES = 3
    PARTING_PAIRS = 4


class Score(IntEnum):
    """Normalisation of a router's logits: over all experts together, or each alone."""

    SOFTMAX = 0
    SIGMOID = 1


GATINGS: tuple[Callable[[Tensor], Tensor], ...] = (F.silu, lambda x: F.gelu(x, approximate="tanh"))
"""Gating functions, in the order of `Gating` in decoder.h; CLAMPED follows them."""
CLAMPED = len(GATINGS)
FORMATS = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}


class LayerRecord(Structure):
    """Attention layer with its keys and values."""

    _fields_ = (
        ("keys", c_void_p),
        ("values", c_void_p),
        ("format", c_int32),
        ("num_heads", c_int32),
        ("num_key_heads", c_int32),
        ("key_width", c_int32),
        ("value_width", c_int32),
        ("block_size", c_int32),
        ("scaling", c_float),
        ("softcap", c_float),
        ("window", c_int64),
        ("sinks", c_void_p),
    )


class SequencesRecord(Structure):
    """Requests of a step."""

    _fields_ = (
        ("num_sequences", c_int64),
        ("start", c_void_p),
        ("position", c_void_p),
        ("table", c_void_p),
        ("slot", c_void_p),
    )


class RowsRecord(Structure):
    """Addresses of rows of heads, and their strides."""

    _fields_ = (("at", c_void_p), ("row", c_int64), ("head", c_int64))


class Linear(Structure):
    """Weights of a linear layer: plain, packed in blocks of columns, or quantised to a few bits."""

    _fields_ = (
        ("weight", c_void_p),
        ("bias", c_void_p),
        ("num_in", c_int64),
        ("num_out", c_int64),
        ("block", c_int32),
        ("bits", c_int32),
        ("scale", c_void_p),
        ("least", c_void_p),
        ("group", c_int32),
        ("has_halves", c_int32),
    )


class Norm(Structure):
    """RMSNorm; it does nothing if the weight is missing."""

    _fields_ = (("weight", c_void_p), ("width", c_int64), ("eps", c_float))


class ExpertRecord(Structure):
    """Linear layers of one expert."""

    _fields_ = tuple((name, Linear) for name in ("gate", "up", "down"))


class ExpertsRecord(Structure):
    """Experts of a layer and their router; empty for a dense layer."""

    _fields_ = (
        ("each", c_void_p),
        ("num", c_int64),
        ("num_chosen", c_int64),
        ("router", c_void_p),
        ("router_bias", c_void_p),
        ("bias", c_void_p),
        ("shared_gate", c_void_p),
        ("scale", c_float),
        ("score", c_int32),
        *((name, c_int32) for name in ("is_normalised", "rounds", "num_groups", "num_chosen_groups")),
        ("num_compared", c_int32),
    )


class DecoderLayer(Structure):
    """Layer of a decoder, with its weights."""

    _fields_ = (
        ("attention", LayerRecord),
        ("before_attention", Norm),
        ("of_queries", Norm),
        ("of_keys", Norm),
        ("after_attention", Norm),
        ("before_mlp", Norm),
        ("after_mlp", Norm),
        *((name, Linear) for name in ("q", "k", "v", "o", "gate", "up", "down", "q_a", "kv_a")),
        ("cos", c_void_p),
        ("sin", c_void_p),
        ("rotary", c_int32),
        ("experts", ExpertsRecord),
    )

    @property
    def linears(self) -> list[Linear]:
        """Linear layers before and after attention."""
        return [self.kv_a, self.q_a, self.q, self.k, self.v, self.o]

    @property
    def shape(self) -> tuple[int, ...]:
        """Numbers and widths of its heads, and of their latents."""
        a = self.attention
        widths = a.num_heads, a.num_key_heads, a.key_width, a.value_width
        return (*widths, self.kv_a.num_out, self.q_a.num_out)


class DecoderRecord(Structure):
    """Decoder with equal attention in all layers."""

    _fields_ = (
        ("layers", c_void_p),
        ("num_layers", c_int64),
        ("width", c_int64),
        ("mlp_width", c_int64),
        ("vocab_size", c_int64),
        ("num_experts", c_int64),
        ("num_chosen", c_int64),
        ("embedding", c_void_p),
        ("last_norm", Norm),
        ("head", Linear),
        ("rotary_width", c_int64),
        ("embedding_scale", c_float),
        ("residual_scale", c_float),
        ("logit_scale", c_float),
        ("logit_softcap", c_float),
        ("gate_alpha", c_float),
        ("gate_limit", c_float),
        ("gating", c_int32),
        ("has_whole", c_int32),
        ("format", c_int32),
    )


class StepRecord(Structure):
    """Layers `first ... end` of one step."""

    _fields_ = (
        ("sequences", c_void_p),
        ("token", c_void_p),
        ("position", c_void_p),
        ("sampled", c_void_p),
        ("hidden", c_void_p),
        ("logits", c_void_p),
        ("first", c_int64),
        ("end", c_int64),
        ("num_sampled", c_int64),
    )
