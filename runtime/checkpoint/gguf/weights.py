"""Weights of a GGUF file with their names in transformers' models: in a plain type, or as the file has them.

The compiled kernels multiply the whole numbers and scales of most types (`whole.KINDS`) as they are, in about
the file's size. The `gguf` package dequantises the rest in float32, rounded once; so it does with everything
if there are no kernels, on a GPU, or in another type than bfloat16.
"""

import math
import re
from collections.abc import Iterator

import torch
from torch import Tensor
from transformers import PreTrainedConfig

from sundog.runtime.checkpoint.gguf.header import GgufFile, GgufTensor
from sundog.runtime.checkpoint.gguf.shape import EMBEDDING, FACTORS
from sundog.runtime.checkpoint.gguf.tensors import Bytes, multiplied_out, name_of, stored_rows
from sundog.runtime.checkpoint.gguf.whole import KINDS, WholeWeights, whole

TIED_HEAD = "lm_head.weight"
LEAST_OUTPUTS, NUM_AT_ONCE = 64, 4096
"""Outputs of a matrix that is worth a block of the kernels, and those read at a time, a multiple of it."""


def read_weights(
    file: GgufFile, config: PreTrainedConfig, dtype: torch.dtype, *, leaves_out: bool = False
) -> dict[str, Tensor]:
    """Return the weights in `dtype`; LoadError names a tensor that is unknown in the family.

    With `leaves_out`, matrices for `pack_weights` are zeros that take no memory.
    """
    packed = matrices(file) if leaves_out and dtype is torch.bfloat16 else {}
    found: dict[str, Tensor] = {}
    for tensor in file.tensors.values():
        if tensor.name == FACTORS:
            continue
        name = name_of(file, tensor)
        if name in packed:
            found[name] = torch.zeros(1, dtype=dtype).expand(tensor.shape)
            continue
        found[name] = values = torch.empty(tensor.shape, dtype=dtype)
        for first, rows in _rows(file, tensor, config):
            numbers = torch.from_numpy(multiplied_out(tensor.kind, rows))
            if file.architecture.startswith("gemma") and name.endswith("norm.weight"):
                numbers -= 1  # the file has what is multiplied by, transformers what is added to 1
            values.view(-1, numbers.shape[1])[first : first + len(rows)] = numbers
    return found


def matrices(file: GgufFile) -> dict[str, GgufTensor]:
    """Return the tensors of linear layers that stay as they are, by the names of the layers' weights."""
    found = {
        name_of(file, tensor): tensor
        for tensor in file.tensors.values()
        if tensor.kind in KINDS and len(tensor.shape) == 2 and tensor.shape[0] >= LEAST_OUTPUTS
        if tensor.name != EMBEDDING
    }
    for name in list(found):  # the kernels multiply both halves of an MLP alike
        both = {name.replace(*turn) for turn in (("gate_proj", "up_proj"), ("up_proj", "gate_proj"))}
        if not both <= found.keys():
            del found[name]
    return found


def is_left_out(weight: Tensor) -> bool:
    """Return whether a matrix is the zeros that `read_weights` returns instead of its values."""
    return weight.ndim == 2 and weight.stride() == (0, 0)


def parts(file: GgufFile, tensor: GgufTensor, config: PreTrainedConfig) -> Iterator[WholeWeights]:
    """Return a matrix as the file has it, some outputs at a time."""
    return (whole(tensor.kind, rows) for _, rows in _rows(file, tensor, config))


def _rows(file: GgufFile, tensor: GgufTensor, config: PreTrainedConfig) -> Iterator[tuple[int, Bytes]]:
    """Return the bytes of some rows at a time, in the order of transformers, each with the first's number."""
    turned = re.search(r"attn_([qk])\.", tensor.name) if file.architecture == "llama" else None
    num_rows = tensor.shape[0] if turned else math.prod(tensor.shape[:-1])
    num_at_once = num_rows if turned else NUM_AT_ONCE
    first = 0
    for rows in stored_rows(file, tensor, num_rows=num_rows, num_at_once=num_at_once):
        if turned is not None:
            heads = config.num_attention_heads if turned[1] == "q" else config.num_key_value_heads
            rows = halved(torch.from_numpy(rows), heads).numpy()
        yield first, rows
        first += len(rows)


def halved(values: Tensor, num_heads: int) -> Tensor:
    """Return a Llama's query or key weights with the rotary halves of each head side by side; llama.cpp
    interleaves them.
    """
    pairs = values.view(num_heads, -1, 2, *values.shape[1:])
    return pairs.transpose(1, 2).reshape(values.shape).contiguous()
