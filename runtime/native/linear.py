"""Linear layers for the CPU with their weights packed once for oneDNN.

Decoding reads every weight for a handful of rows, so its speed is how fast weights are read: in
bf16 packed ones take between half and four fifths of the time of plain ones for 1 to 8 rows, and
nine tenths for 256 (2-core AVX-512 machine, layers from 512 x 512 to 32,000 x 512).
"""

import ctypes
from typing import TypeGuard

import numpy as np
import torch
from torch import Tensor, nn

from runtime.host.progress import LoadProgress

BLOCKS = (64, 32, 16)
NUM_LOOKED_UP = 256


class Packed:
    """Weights [O, I] and bias [O] in oneDNN's own order.

    `block` says which order that is: [O / block, I / 2, block, 2], or another if None.
    """

    def __init__(self, weight_OI: Tensor, bias_O: Tensor | None) -> None:
        self.num_out, self.num_in = weight_OI.shape
        self.bias = bias_O
        self._packed = torch.ops.mkldnn._reorder_linear_weight(weight_OI)
        self.block = _block(self.address, self.num_bytes // 2, weight_OI)

    @property
    def address(self) -> int:
        """The address at which the weights begin in memory."""
        return int(torch.ops.mkldnn.data_ptr(self._packed))

    @property
    def num_bytes(self) -> int:
        """The number of bytes, those that fill up blocks included."""
        return int(torch.ops.mkldnn._nbytes(self._packed))

    def of(self, x: Tensor) -> Tensor:
        """The product [..., O] of an input [..., I]."""
        out: Tensor = torch.ops.mkldnn._linear_pointwise(x, self._packed, self.bias, "none", [], "")
        return out


def _block(address: int, num_numbers: int, weight_OI: Tensor) -> int | None:
    """The width of the blocks that packed weights lie in, found by looking some up."""
    num_out, num_in = weight_OI.shape
    if num_in % 2:
        return None
    numbers = np.ctypeslib.as_array((ctypes.c_uint16 * num_numbers).from_address(address))
    rng = np.random.default_rng(0)
    out, at = rng.integers(num_out, size=NUM_LOOKED_UP), rng.integers(num_in, size=NUM_LOOKED_UP)
    expected = weight_OI[torch.from_numpy(out), torch.from_numpy(at)].view(torch.uint16).numpy()
    for block in BLOCKS:
        if -(-num_out // block) * block * num_in == num_numbers:
            index = ((out // block * (num_in // 2) + at // 2) * block + out % block) * 2 + at % 2
            if np.array_equal(numbers[index], expected):
                return block
    return None


class PackedLinear(nn.Module):
    """A bf16 `nn.Linear` for inference; takes [..., I] to [..., O]."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        bias = None if linear.bias is None else linear.bias.detach()
        self.packed = Packed(linear.weight.detach(), bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.packed.of(x)


def _can_pack(module: nn.Module) -> TypeGuard[nn.Linear]:
    """True for bf16 on a CPU that computes in it: float32 stays the library's own arithmetic."""
    has_onednn = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]  # torch's gap
    return (
        has_onednn
        and torch.ops.mkldnn._is_mkldnn_bf16_supported()
        and type(module) is nn.Linear
        and module.out_features >= BLOCKS[-1]
        and module.weight.dtype is torch.bfloat16
        and module.weight.device.type == "cpu"
    )


def pack_linears(model: nn.Module, progress: LoadProgress | None = None) -> int:
    """Replace what can be packed, in place, one after another, so that memory is freed; returns how many."""
    places: dict[nn.Linear, list[tuple[nn.Module, str]]] = {}
    for parent in model.modules():
        for name, child in parent.named_children():
            if _can_pack(child):
                places.setdefault(child, []).append((parent, name))
    num_packed, sized = len(places), ((linear, linear.weight.nbytes) for linear in places)
    for linear in (progress or LoadProgress("it")).each("packing weights", sized):
        packed = PackedLinear(linear)
        for parent, name in places.pop(linear):
            setattr(parent, name, packed)
    return num_packed


def let_go_of_files(model: nn.Module) -> None:
    """Copy what was not packed, so that the weights' files are mapped no more: all of a file would stay."""
    for tensor in (*model.parameters(), *model.buffers()):
        tensor.data = tensor.data.clone()
