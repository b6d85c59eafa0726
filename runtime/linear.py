"""Linear layers for the CPU with their weights packed once for oneDNN.

Decoding reads every weight for a handful of rows, so its speed is how fast weights are read: in
bf16 packed ones take between half and four fifths of the time of plain ones for 1 to 8 rows, and
nine tenths for 256 (2-core AVX-512 machine, layers from 512 x 512 to 32,000 x 512).
"""

import torch
from torch import Tensor, nn


class PackedLinear(nn.Module):
    """A bf16 `nn.Linear` for inference; takes [..., I] to [..., O]."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self._packed = torch.ops.mkldnn._reorder_linear_weight(linear.weight.detach())
        self._bias = None if linear.bias is None else linear.bias.detach()

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = torch.ops.mkldnn._linear_pointwise(x, self._packed, self._bias, "none", [], "")
        return out


def pack_linears(model: nn.Module) -> int:
    """Replace what can be packed, in place; returns how many layers were.

    Only bf16 on a CPU that computes in it: float32 stays the library's own arithmetic.
    """
    has_onednn = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]  # torch's gap
    if not (has_onednn and torch.ops.mkldnn._is_mkldnn_bf16_supported()):
        return 0
    plain = [
        (parent, name, child)
        for parent in model.modules()
        for name, child in parent.named_children()
        if type(child) is nn.Linear
        and child.weight.dtype is torch.bfloat16
        and child.weight.device.type == "cpu"
    ]
    for parent, name, child in plain:
        setattr(parent, name, PackedLinear(child))
    return len(plain)
