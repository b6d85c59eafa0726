"""Linear layers for the CPU, their weights packed once for the compiled kernels.

Decoding reads every weight for a handful of rows, so its speed is that of reading weights; prompts multiply
them by many rows. Both need columns side by side. A row's product has the same bits whatever other rows there
are.

Shapes: O outputs, I inputs; B blocks of `BLOCK` outputs.
"""

import ctypes
from collections.abc import Callable
from ctypes import byref
from typing import Protocol

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sundog.runtime.host.progress import LoadProgress
from sundog.runtime.native.library import kernels
from sundog.runtime.native.records import FORMATS, Linear

BLOCK = 64
"""Columns of a block, as in few_bits.h."""
LEAST_OUTPUTS = 16
ONEDNN_BLOCKS = (64, 32, 16)
NUM_LOOKED_UP = 256
NUM_AT_ONCE = 64 * BLOCK
"""Outputs packed at a time, so that a head needs no full copy of itself."""


class PackedWeights(Protocol):
    """Weights [O, I] in blocks of columns."""

    @property
    def record(self) -> Linear:
        """Record of the layer for the kernels; without a weight if its order is different."""
        ...

    @property
    def num_bytes(self) -> int:
        """Number of bytes, including padding of blocks."""
        ...

    def of(self, x: Tensor) -> Tensor:
        """Return the product [..., O] of an input [..., I]."""
        ...


def packed(weight_OI: Tensor) -> Tensor:
    """Return the weights in the order of linear.h: [B, I / 2, BLOCK, 2] of bfloat16, [B, I, BLOCK, 1] of
    others.
    """
    num_out, num_in = weight_OI.shape
    pair = 2 if weight_OI.dtype is torch.bfloat16 else 1
    found = weight_OI.new_empty(-(-num_out // BLOCK), num_in // pair, BLOCK, pair)
    for part_BIbp, part_OI in zip(
        torch.split(found, NUM_AT_ONCE // BLOCK), torch.split(weight_OI, NUM_AT_ONCE), strict=True
    ):
        whole_OI = F.pad(part_OI, (0, 0, 0, -len(part_OI) % BLOCK))
        part_BIbp.copy_(whole_OI.view(-1, BLOCK, num_in // pair, pair).transpose(1, 2))
    return found


class Packed:
    """Weights [O, I] and bias [O] packed for our own kernels."""

    def __init__(self, weight_OI: Tensor, bias_O: Tensor | None, library: ctypes.CDLL) -> None:
        self._library, self._bias = library, bias_O
        self._format = FORMATS[weight_OI.dtype]
        self._weights = packed(weight_OI)
        bias = None if bias_O is None else bias_O.data_ptr()
        self.record = Linear(self._weights.data_ptr(), bias, *reversed(weight_OI.shape), BLOCK)

    def columns(self, first: int, num: int) -> "Packed":
        """Copy some outputs, which need not begin at a block's boundary."""
        weight_OI = self._weights.transpose(1, 2).reshape(-1, self.record.num_in)[first : first + num]
        bias_O = None if self._bias is None else self._bias[first : first + num]
        return Packed(weight_OI, bias_O, self._library)

    @property
    def num_bytes(self) -> int:
        return self._weights.nbytes

    def of(self, x: Tensor) -> Tensor:
        x_NI = x.contiguous()
        out_NO = x.new_empty(*x.shape[:-1], self.record.num_out)
        num_rows = x_NI.numel() // self.record.num_in
        self._library.sundog_linear(
            byref(self.record),
            x_NI.data_ptr(),
            num_rows,
            out_NO.data_ptr(),
            self._format,
            torch.get_num_threads(),
        )
        return out_NO


class OneDnnPacked:
    """Weights [O, I] and bias [O] in bfloat16, in oneDNN's own order.

    Used without our own kernels. The record has the weights' address if they lie in blocks.
    """

    def __init__(self, weight_OI: Tensor, bias_O: Tensor | None) -> None:
        self._bias = bias_O
        self._packed = torch.ops.mkldnn._reorder_linear_weight(weight_OI)
        at = int(torch.ops.mkldnn.data_ptr(self._packed))
        block = _block(at, self.num_bytes // 2, weight_OI)
        bias = None if bias_O is None else bias_O.data_ptr()
        self.record = Linear(at if block else None, bias, *reversed(weight_OI.shape), block or 0)

    @property
    def num_bytes(self) -> int:
        return int(torch.ops.mkldnn._nbytes(self._packed))

    def of(self, x: Tensor) -> Tensor:
        out: Tensor = torch.ops.mkldnn._linear_pointwise(x, self._packed, self._bias, "none", [], "")
        return out


def _block(address: int, num_numbers: int, weight_OI: Tensor) -> int | None:
    """Find the block width of oneDNN's weight layout by looking up some weights."""
    num_out, num_in = weight_OI.shape
    if num_in % 2:
        return None
    numbers = np.ctypeslib.as_array((ctypes.c_uint16 * num_numbers).from_address(address))
    rng = np.random.default_rng(0)
    out, at = rng.integers(num_out, size=NUM_LOOKED_UP), rng.integers(num_in, size=NUM_LOOKED_UP)
    expected = weight_OI[torch.from_numpy(out), torch.from_numpy(at)].view(torch.uint16).numpy()
    for block in ONEDNN_BLOCKS:
        if -(-num_out // block) * block * num_in == num_numbers:
            index = ((out // block * (num_in // 2) + at // 2) * block + out % block) * 2 + at % 2
            if np.array_equal(numbers[index], expected):
                return block
    return None


class PackedLinear(nn.Module):
    """`nn.Linear` for inference, [..., I] to [..., O]."""

    def __init__(self, weights: PackedWeights) -> None:
        super().__init__()
        self.packed = weights

    def forward(self, x: Tensor) -> Tensor:
        return self.packed.of(x)


Packing = Callable[[Tensor, Tensor | None], PackedWeights]


def own_packing(library: ctypes.CDLL) -> Packing:
    """Return how weights are packed for these kernels."""
    return lambda weight_OI, bias_O: Packed(weight_OI, bias_O, library)


def _packing(weight_OI: Tensor, library: ctypes.CDLL | None) -> Packing | None:
    """Return how weights of this format and shape are packed; None if they stay as they are."""
    num_out, num_in = weight_OI.shape
    is_bf16 = weight_OI.dtype is torch.bfloat16
    if weight_OI.device.type != "cpu" or num_out < LEAST_OUTPUTS or weight_OI.dtype not in FORMATS:
        return None
    if library is not None:
        return None if is_bf16 and num_in % 2 else own_packing(library)
    has_onednn = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]  # torch's gap
    return OneDnnPacked if is_bf16 and has_onednn and torch.ops.mkldnn._is_mkldnn_bf16_supported() else None


def pack_linears(model: nn.Module, progress: LoadProgress | None = None) -> int:
    """Replace what can be packed, in place, one after another to free memory; return their number."""
    library = kernels()
    places: dict[nn.Linear, list[tuple[nn.Module, str]]] = {}
    for parent in model.modules():
        for name, child in parent.named_children():
            if type(child) is nn.Linear and _packing(child.weight, library) is not None:
                places.setdefault(child, []).append((parent, name))
    num_packed, sized = len(places), ((linear, linear.weight.nbytes) for linear in places)
    for linear in (progress or LoadProgress("it")).each("packing weights", sized):
        packing = _packing(linear.weight, library)
        assert packing is not None, "chosen above"
        bias_O = None if linear.bias is None else linear.bias.detach()
        found = PackedLinear(packing(linear.weight.detach(), bias_O))
        for parent, name in places.pop(linear):
            setattr(parent, name, found)
    return num_packed


def let_go_of_files(model: nn.Module) -> None:
    """Copy unpacked weights, so that the weights' files are no longer mapped: all of a file would stay in
    memory.
    """
    for tensor in (*model.parameters(), *model.buffers()):
        tensor.data = tensor.data.clone()
