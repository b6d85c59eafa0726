"""Linear layers whose weights are whole numbers of 8 or 4 bits, made at load from a model's own.

Decoding reads every weight, so that a step takes as long as its weights are large. Numbers have a scale for
each group of inputs of an output; activations become whole numbers of 8 bits in units of their row's group,
and products of the two are exact. The head is kept in 8 bits in either case, and what has few outputs,
such as a router, as it is. Without compiled kernels the numbers are multiplied out.

Shapes: O outputs, I inputs, G groups of inputs, B blocks of outputs; N rows of a pass.
"""

import ctypes
from ctypes import byref

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedModel

from sundog.actors.core.config import ConfigError
from sundog.runtime.host.progress import LoadProgress
from sundog.runtime.native.library import kernels
from sundog.runtime.native.records import FORMATS, Linear

BITS = {"int8": 8, "int4": 4}
"""The bits of a weight, by the names of `--quantization`."""
GROUP, BLOCK = 128, 64
"""Inputs of a scale and columns of a block, as in few_bits.h."""
HEAD_BITS = 8
NUM_AT_ONCE = 64 * BLOCK
"""Outputs that are quantised at once, so that a head needs no copy of itself in float."""


def whole_numbers(weight_OI: Tensor, bits: int) -> tuple[Tensor, Tensor]:
    """Whole numbers [O, I] and scales [O, G] whose products are nearest the weights."""
    most = 2 ** (bits - 1) - 1
    weight_OGi = weight_OI.float().view(len(weight_OI), -1, GROUP)
    scale_OG = (weight_OGi.abs().amax(-1) / most).clamp_min(torch.finfo(torch.float32).tiny)
    numbers_OGi = (weight_OGi / scale_OG[..., None]).round_().clamp_(-most, most)
    return numbers_OGi.flatten(1).to(torch.int8), scale_OG


def multiplied_out(weight_OI: Tensor, bits: int) -> Tensor:
    """The weights [O, I] in float32 that the whole numbers stand for."""
    numbers_OI, scale_OG = whole_numbers(weight_OI, bits)
    return numbers_OI * scale_OG.repeat_interleave(GROUP, 1)


def _packed(numbers_OI: Tensor, bits: int) -> Tensor:
    bytes_OI: Tensor = numbers_OI.view(torch.uint8) + 2 ** (bits - 1)
    num_in = numbers_OI.shape[1]
    if bits == 8:
        return bytes_OI.view(-1, BLOCK, num_in // 4, 4).transpose(1, 2).contiguous().flatten()
    quads = bytes_OI.view(-1, BLOCK, num_in // 8, 2, 4)
    both = quads[..., 0, :] | quads[..., 1, :] << 4
    return both.transpose(1, 2).contiguous().flatten()


class FewBitsLinear(nn.Module):
    """A bf16 linear layer [..., I] to [..., O] on weights of few bits, by the compiled kernels."""

    def __init__(self, linear: nn.Linear, bits: int, library: ctypes.CDLL) -> None:
        super().__init__()
        self._library = library
        self.num_out = linear.out_features
        self._bias = None if linear.bias is None else linear.bias.detach()
        numbers, scales = [], []
        for weight_OI in torch.split(linear.weight.detach(), NUM_AT_ONCE):
            numbers_OI, scale_OG = whole_numbers(weight_OI, bits)
            missing = -len(numbers_OI) % BLOCK
            numbers.append(_packed(F.pad(numbers_OI, (0, 0, 0, missing)), bits))
            scales.append(
                F.pad(scale_OG, (0, 0, 0, missing)).view(-1, BLOCK, scale_OG.shape[1]).transpose(1, 2)
            )
        self._numbers, self._scale_BGb = torch.cat(numbers), torch.cat(scales).contiguous()
        self.record = Linear(
            self._numbers.data_ptr(),
            None if self._bias is None else self._bias.data_ptr(),
            linear.in_features,
            linear.out_features,
            BLOCK,
            bits,
            self._scale_BGb.data_ptr(),
        )

    @property
    def numbers_at(self) -> tuple[int, int]:
        """Return the address of the whole numbers in memory, and their number of bytes."""
        return self._numbers.data_ptr(), self._numbers.nbytes

    def forward(self, x: Tensor) -> Tensor:
        x_NI = x.contiguous()
        out_NO = x.new_empty(*x.shape[:-1], self.num_out)
        num_rows, num_threads = x_NI.numel() // x.shape[-1], torch.get_num_threads()
        self._library.sundog_linear(
            byref(self.record), x_NI.data_ptr(), num_rows, out_NO.data_ptr(), FORMATS[x.dtype], num_threads
        )
        return out_NO


def quantise(model: PreTrainedModel, method: str, progress: LoadProgress | None = None) -> None:
    """Replace the model's linear layers, in place; ConfigError where that is not possible."""
    if model.device.type != "cpu" or model.dtype is not torch.bfloat16:
        raise ConfigError(
            f"--quantization {method} needs weights in bfloat16 on the CPU, and these are {model.dtype} on"
            f" {model.device.type}: add --dtype bfloat16, or leave it out"
        )
    library = kernels()
    head: object = model.get_output_embeddings()  # type: ignore[no-untyped-call]  # the library's own gap
    places = (
        ((parent, name, linear), linear.weight.nbytes)
        for parent in model.modules()
        for name, linear in parent.named_children()
        if type(linear) is nn.Linear
        if linear.in_features % GROUP == 0 and linear.out_features >= BLOCK
    )
    for parent, name, linear in (progress or LoadProgress("it")).each("quantising weights", places):
        bits = HEAD_BITS if linear is head else BITS[method]
        if library is not None:
            setattr(parent, name, FewBitsLinear(linear, bits, library))
        else:
            linear.weight = nn.Parameter(
                multiplied_out(linear.weight.detach(), bits).to(linear.weight.dtype), requires_grad=False
            )
