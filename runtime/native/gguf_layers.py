"""Linear layers of a GGUF file, with weights as the file has them."""

import ctypes
from pathlib import Path

import torch
from torch import nn
from transformers import PreTrainedModel

from sundog.runtime.checkpoint.gguf.header import read_header
from sundog.runtime.checkpoint.gguf.shape import EMBEDDING, HEAD
from sundog.runtime.checkpoint.gguf.weights import TIED_HEAD, is_left_out, matrices, parts
from sundog.runtime.checkpoint.gguf.whole import KINDS
from sundog.runtime.host.progress import LoadProgress
from sundog.runtime.native.few_bits import FewBitsLinear


def pack_weights(
    model: PreTrainedModel, path: Path, library: ctypes.CDLL, progress: LoadProgress | None = None
) -> int:
    """Replace the linear layers that `read_weights` left out, in place; return their bytes."""
    file = read_header(path)
    if model.dtype is not torch.bfloat16:
        return 0
    packed = matrices(file)
    if HEAD not in file.tensors and file.tensors[EMBEDDING].kind in KINDS:
        packed[TIED_HEAD] = file.tensors[EMBEDDING]
    places = [
        (parent, own, linear, packed[name])
        for above, parent in model.named_modules()
        for own, linear in parent.named_children()
        # An adapter holds the layer that it changes as `base`.
        if (name := f"{above}.{own}".removeprefix(".").removesuffix(".base") + ".weight") in packed
        if type(linear) is nn.Linear and (is_left_out(linear.weight) or name == TIED_HEAD)
    ]
    num_bytes = 0
    sized = (((parent, own, linear, tensor), tensor.num_bytes) for parent, own, linear, tensor in places)
    for parent, own, linear, tensor in (progress or LoadProgress("it")).each("packing weights", sized):
        bias_O = None if linear.bias is None else linear.bias.detach()
        made = FewBitsLinear(linear.out_features, bias_O, parts(file, tensor, model.config), library)
        setattr(parent, own, made)
        num_bytes += made.num_bytes
    assert not any(is_left_out(each) for each in model.parameters()), "every matrix was read"
    return num_bytes
