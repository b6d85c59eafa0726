"""Linear layers for the CPU with their weights packed once for oneDNN.

Decoding reads every weight for a handful of rows, so its speed is how fast weights are read: in
bf16 packed ones take between half and four fifths of the time of plain ones for 1 to 8 rows, and
nine tenths for 256 (2-core AVX-512 machine, layers from 512 x 512 to 32,000 x 512). Layers that
read the same input, such as queries, keys and values, become one product with the same bits: a
pass takes 0.91 to 0.94 of the time with one row, 0.92 to 0.99 with 8 and 32, and no less with 256
(layers of the embedded model and of Qwen3-0.6B beside another load, `python -m tests.bench linear`).
"""

import ctypes
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TypeGuard

import numpy as np
import torch
from torch import Tensor, nn

BLOCKS = (64, 32, 16)
NUM_LOOKED_UP = 4096


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


class SharedProduct:
    """The product of one input with several layers' weights, made when the first layer asks.

    Input and product are released when each layer has had its part. A layer that comes with another input
    gets a product of that input: whatever the order of calls, every layer gets its own answer.
    """

    def __init__(self, linears: Sequence[nn.Linear]) -> None:
        biases = [linear.bias.detach() for linear in linears if linear.bias is not None]
        weight = torch.cat([linear.weight.detach() for linear in linears])
        self.packed = Packed(weight, torch.cat(biases) if biases else None)
        self._num_parts = len(linears)
        self._made: tuple[Tensor, Tensor] | None = None
        self._num_left = 0

    def take(self, x: Tensor, part: slice) -> Tensor:
        """These columns of the product [..., O of all]."""
        if self._made is None or self._made[0] is not x:
            self._made = x, self.packed.of(x)
            self._num_left = self._num_parts
        out = self._made[1][..., part]
        self._num_left -= 1
        if self._num_left == 0:
            self._made = None
        return out


class PartOfProduct(nn.Module):
    """A layer whose product is part of a shared one."""

    def __init__(self, product: SharedProduct, part: slice) -> None:
        super().__init__()
        self.product, self.part = product, part

    def forward(self, x: Tensor) -> Tensor:
        return self.product.take(x, self.part)


def _can_pack(module: nn.Module) -> TypeGuard[nn.Linear]:
    """Only bf16 on a CPU that computes in it: float32 stays the library's own arithmetic."""
    has_onednn = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]  # torch's gap
    return (
        has_onednn
        and torch.ops.mkldnn._is_mkldnn_bf16_supported()
        and type(module) is nn.Linear
        and module.out_features >= BLOCKS[-1]
        and module.weight.dtype is torch.bfloat16
        and module.weight.device.type == "cpu"
    )


@contextmanager
def noted_inputs(model: nn.Module) -> Iterator[list[list[nn.Linear]]]:
    """The layers that read the same, unchanged input one after the other in the passes inside."""
    groups: list[list[nn.Linear]] = []
    last: list[Tensor] = []

    def note(module: nn.Module, args: tuple[Tensor, ...]) -> None:
        assert isinstance(module, nn.Linear)
        if last and last[0] is args[0] and torch.equal(last[0], last[1]):
            groups[-1].append(module)
        else:
            groups.append([module])
            last[:] = args[0], args[0].clone()

    hooks = [module.register_forward_pre_hook(note) for module in model.modules() if _can_pack(module)]
    try:
        yield groups
    finally:
        last.clear()
        for hook in hooks:
            hook.remove()


def pack_linears(model: nn.Module, together: Sequence[Sequence[nn.Linear]] = ()) -> int:
    """Replace what can be packed, in place, each of `together` by one product; returns how many layers."""
    places: dict[nn.Linear, list[tuple[nn.Module, str]]] = {}
    for parent in model.modules():
        for name, child in parent.named_children():
            if _can_pack(child):
                places.setdefault(child, []).append((parent, name))
    replaced: dict[nn.Linear, nn.Module] = {}
    calls = [linear for group in together for linear in group]
    for group in together:
        once = all(calls.count(linear) == 1 and linear in places for linear in group)
        begins_blocks = all(linear.out_features % BLOCKS[0] == 0 for linear in group[:-1])
        if len(group) > 1 and once and begins_blocks and len({linear.bias is None for linear in group}) == 1:
            replaced |= _merged(group)
            _put(places, replaced, group)
    _put(places, replaced, [linear for linear in places if linear not in replaced])
    return len(places)


def let_go_of_files(model: nn.Module) -> None:
    """Copy what was not packed, so that the weights' files are mapped no more: all of a file would stay."""
    for tensor in (*model.parameters(), *model.buffers()):
        tensor.data = tensor.data.clone()


def _merged(group: Sequence[nn.Linear]) -> dict[nn.Linear, nn.Module]:
    product, start = SharedProduct(group), 0
    parts: dict[nn.Linear, nn.Module] = {}
    for linear in group:
        parts[linear] = PartOfProduct(product, slice(start, start + linear.out_features))
        start += linear.out_features
    return parts


def _put(
    places: dict[nn.Linear, list[tuple[nn.Module, str]]],
    replaced: dict[nn.Linear, nn.Module],
    linears: Sequence[nn.Linear],
) -> None:
    """Put replacements in these layers' places, one after another, so that memory is freed."""
    for linear in linears:
        module = replaced.get(linear) or PackedLinear(linear)
        for parent, name in places[linear]:
            setattr(parent, name, module)
