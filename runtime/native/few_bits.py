"""Linear layers with weights of 8 or 4 bits, quantised at load or as a GGUF file has them.

Decoding reads every weight, so that a step's time is proportional to their size. Each group of inputs of an
output has a scale; activations become 8-bit integers with a scale per row and group, and products of the two
are exact. The head is kept in 8 bits in either case, and layers with few outputs, such as a router,
unchanged. Without compiled kernels the weights are dequantised.

Shapes: O outputs, I inputs, G groups of inputs, B blocks of outputs; N rows of a pass.
"""

import ctypes
from collections.abc import Iterable
from ctypes import byref

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedModel

from sundog.actors.core.config import ConfigError
from sundog.runtime.checkpoint.gguf.whole import WholeWeights
from sundog.runtime.host.progress import LoadProgress
from sundog.runtime.native.library import kernels
from sundog.runtime.native.records import FORMATS, Linear

BITS = {"int8": 8, "int4": 4}
"""Bits of a weight, by the names of `--quantization`."""
GROUP, BLOCK = 128, 64
"""Inputs per scale of what is quantised here and columns per block, as in few_bits.h."""
HEAD_BITS = 8
NUM_AT_ONCE = 64 * BLOCK
"""Outputs quantised at a time, so that a head needs no copy of itself in float."""


def whole_numbers(weight_OI: Tensor, bits: int) -> tuple[Tensor, Tensor]:
    """Return the integers [O, I] and scales [O, G] whose products are nearest the weights."""
    most = 2 ** (bits - 1) - 1
    weight_OGi = weight_OI.float().view(len(weight_OI), -1, GROUP)
    scale_OG = (weight_OGi.abs().amax(-1) / most).clamp_min(torch.finfo(torch.float32).tiny)
    numbers_OGi = (weight_OGi / scale_OG[..., None]).round_().clamp_(-most, most)
    return numbers_OGi.flatten(1).to(torch.int8), scale_OG


def multiplied_out(weight_OI: Tensor, bits: int) -> Tensor:
    """Return the dequantised weights [O, I] in float32."""
    numbers_OI, scale_OG = whole_numbers(weight_OI, bits)
    return numbers_OI * scale_OG.repeat_interleave(GROUP, 1)


def _in_blocks(numbers_OI: Tensor, bits: int) -> Tensor:
    num_in = numbers_OI.shape[1]
    if bits == 8:
        return numbers_OI.view(-1, BLOCK, num_in // 4, 4).transpose(1, 2).reshape(-1, num_in * BLOCK)
    quads = numbers_OI.view(-1, BLOCK, num_in // 8, 2, 4)
    both = quads[..., 0, :] | quads[..., 1, :] << 4
    return both.transpose(1, 2).reshape(-1, num_in * BLOCK // 2)


def _quantised(linear: nn.Linear, bits: int) -> Iterable[WholeWeights]:
    for weight_OI in torch.split(linear.weight.detach(), NUM_AT_ONCE):
        numbers_OI, scale_OG = whole_numbers(weight_OI, bits)
        yield WholeWeights(bits, numbers_OI.view(torch.uint8) + 2 ** (bits - 1), scale_OG)


class FewBitsLinear(nn.Module):
    """Linear layer for bf16, [..., I] to [..., O], on weights of few bits, by the compiled kernels."""

    def __init__(
        self, num_out: int, bias_O: Tensor | None, parts: Iterable[WholeWeights], library: ctypes.CDLL
    ) -> None:
        """`parts` are the weights of `NUM_AT_ONCE` outputs after the other."""
        super().__init__()
        self._library = library
        self.num_out = num_out
        self._bias = bias_O
        num_blocks, first = -(-num_out // BLOCK), 0
        for part in parts:
            missing = (0, 0, 0, -len(part.numbers_OI) % BLOCK)
            numbers = _in_blocks(F.pad(part.numbers_OI, missing), part.bits)
            tables = [
                F.pad(each, missing).view(-1, BLOCK, each.shape[1]).transpose(1, 2)
                for each in (part.scale_OG, part.least_OG)
                if each is not None
            ]
            if not first:  # made once, so that a layer is never there twice
                self._numbers = numbers.new_empty(num_blocks, *numbers.shape[1:])
                self._tables = [each.new_empty(num_blocks, *each.shape[1:]) for each in tables]
                kind = part
            for made, piece in zip((self._numbers, *self._tables), (numbers, *tables), strict=True):
                made[first : first + len(piece)] = piece
            first += len(numbers)
        self.record = Linear(
            self._numbers.data_ptr(),
            None if bias_O is None else bias_O.data_ptr(),
            kind.numbers_OI.shape[1],
            num_out,
            BLOCK,
            kind.bits,
            self._tables[0].data_ptr(),
            None if kind.least_OG is None else self._tables[1].data_ptr(),
            kind.group,
            kind.scale_OG.dtype is torch.float16,
        )

    @classmethod
    def quantised(cls, linear: nn.Linear, bits: int, library: ctypes.CDLL) -> "FewBitsLinear":
        """Return a layer with the nearest weights of `bits`."""
        bias_O = None if linear.bias is None else linear.bias.detach()
        return cls(linear.out_features, bias_O, _quantised(linear, bits), library)

    @property
    def num_bytes(self) -> int:
        """Bytes of integers, scales and least weights."""
        return self._numbers.nbytes + sum(each.nbytes for each in self._tables)

    @property
    def numbers_at(self) -> tuple[int, int]:
        """Address of the integers in memory, and their number of bytes."""
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
    """Replace the model's linear layers, in place; ConfigError if that is not possible."""
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
            setattr(parent, name, FewBitsLinear.quantised(linear, bits, library))
        else:
            linear.weight = nn.Parameter(
                multiplied_out(linear.weight.detach(), bits).to(linear.weight.dtype), requires_grad=False
            )
