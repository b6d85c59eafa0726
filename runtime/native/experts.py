"""Experts of a mixture, each as linear layers of its own instead of a slice of one tensor.

So whatever packs, quantises and computes linear layers also handles experts.

Shapes: N rows of a pass, K experts of a row; I inputs of a layer, O outputs of its product, M in between.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sundog.runtime.native.records import CLAMPED, GATINGS
from sundog.runtime.step.ladder import padded

CLOSE = 1e-4
NUM_TRIED = 64


class Gating(NamedTuple):
    """Function of a gate and the gated value, with its number in the kernels."""

    number: int
    alpha: float = 0.0
    limit: float = 0.0

    def of(self, gate_NM: Tensor, up_NM: Tensor) -> Tensor:
        """Return the layer's inner numbers [N, M]."""
        if self.number != CLAMPED:
            return GATINGS[self.number](gate_NM) * up_NM
        gate_NM, up_NM = gate_NM.clamp(max=self.limit), up_NM.clamp(-self.limit, self.limit)
        return gate_NM * torch.sigmoid(gate_NM * self.alpha) * (up_NM + 1)


class SplitExperts(nn.Module):
    """Gated experts that replace the library's; called with rows, chosen experts and their weights."""

    def __init__(self, whole: nn.Module, gating: Gating, *, in_pairs: bool) -> None:
        super().__init__()
        self.gating = gating
        self.gate, self.up, self.down = nn.ModuleList(), nn.ModuleList(), nn.ModuleList()
        for number in range(whole.num_experts):  # type: ignore[arg-type]  # a whole number, says the caller
            both_OI, both_O = _slice(whole, "gate_up_proj", number)
            down_OI, down_O = _slice(whole, "down_proj", number)
            inner = len(both_OI) // 2
            halves = slice(inner), slice(inner, None)
            first, second = (slice(0, None, 2), slice(1, None, 2)) if in_pairs else halves
            for place, part in ((self.gate, first), (self.up, second)):
                place.append(_linear(both_OI[part], None if both_O is None else both_O[part]))
            self.down.append(_linear(down_OI, down_O))

    def forward(self, x_NI: Tensor, expert_NK: Tensor, weight_NK: Tensor) -> Tensor:
        """Return the rows' outputs [N, O], summed in float32."""
        out_NKO = x_NI.new_zeros(*expert_NK.shape, x_NI.shape[-1], dtype=torch.result_type(x_NI, weight_NK))
        for number in sorted(set(expert_NK.flatten().tolist())):
            at_N, at_K = torch.where(expert_NK == number)
            x = F.pad(x_NI[at_N], (0, 0, 0, padded(len(at_N)) - len(at_N)))
            inner = self.gating.of(self.gate[number](x), self.up[number](x))
            out_NKO[at_N, at_K] = self.down[number](inner)[: len(at_N)] * weight_NK[at_N, at_K, None]
        return out_NKO.sum(1, dtype=torch.float32).to(x_NI.dtype)


def split_experts(model: nn.Module) -> None:
    """Replace the library's experts by `SplitExperts`, in place, if the results are equal."""
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if getattr(child, "has_gate", False) and not getattr(child, "has_post_expert_norm", False):
                split = _split(child)
                if split is not None:
                    setattr(parent, name, split)


def _split(whole: nn.Module) -> SplitExperts | None:
    apply: object = getattr(whole, "_apply_gate", None)
    down = getattr(whole, "down_proj", None)
    if not callable(apply) or not isinstance(down, nn.Parameter):
        return None
    inner = down.shape[1 if whole.is_transposed else 2]
    both = 6 * torch.randn(NUM_TRIED, 2 * inner, generator=torch.Generator().manual_seed(0))
    answer = apply(both)
    numbers = [float(getattr(whole, name, 0.0) or 0.0) for name in ("alpha", "limit")]
    for in_pairs in (False, True):
        gate, up = (both[:, ::2], both[:, 1::2]) if in_pairs else both.chunk(2, -1)
        for gating in (*(Gating(number) for number in range(len(GATINGS))), Gating(CLAMPED, *numbers)):
            if torch.allclose(answer, gating.of(gate, up), rtol=CLOSE, atol=CLOSE):
                return SplitExperts(whole, gating, in_pairs=in_pairs)
    return None


def _slice(whole: nn.Module, name: str, number: int) -> tuple[Tensor, Tensor | None]:
    weight, bias = getattr(whole, name)[number], getattr(whole, f"{name}_bias", None)
    return weight.T if whole.is_transposed else weight, None if bias is None else bias[number]


def _linear(weight_OI: Tensor, bias_O: Tensor | None) -> nn.Linear:
    num_out, num_in = weight_OI.shape
    linear = nn.Linear(num_in, num_out, bias_O is not None, device="meta", dtype=weight_OI.dtype)
    linear.weight = nn.Parameter(weight_OI.detach().contiguous(), requires_grad=False)
    if bias_O is not None:
        linear.bias = nn.Parameter(bias_O.detach().contiguous(), requires_grad=False)
    return linear
