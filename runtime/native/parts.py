"""Parts of a decoder as records, recognised by what they compute.

Names only find candidates: a norm is tested with ones and noise, an activation on a range of inputs, a packed
weight by its memory. Anything else raises `Unrecognised` with the reason.

Shapes: I inputs and O outputs of a linear layer.
"""

import copy
from collections.abc import Callable
from ctypes import addressof
from dataclasses import dataclass, field
from itertools import product

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sundog.runtime.lora.adapters import AdaptedLinear
from sundog.runtime.native.experts import Gating, SplitExperts
from sundog.runtime.native.few_bits import BLOCK, GROUP, FewBitsLinear
from sundog.runtime.native.linear import Packed, PackedLinear
from sundog.runtime.native.records import GATINGS, ExpertRecord, ExpertsRecord, Linear, Norm, Score

CLOSE = 1e-4
NUM_ROUTED = 64
ROUTER = ("gate", "router")


class Unrecognised(Exception):
    """Raised for a model that the kernels cannot compute; the message is the reason."""


@dataclass(frozen=True, slots=True)
class GatedProducts:
    """MLP of a layer: dense, of experts, or both."""

    gate: Linear
    up: Linear
    down: Linear
    experts: ExpertsRecord
    gating: Gating

    @property
    def inner(self) -> int:
        """Largest inner width."""
        return max(int(linear.num_in) for linear in self.linears[2::3])

    @property
    def linears(self) -> list[Linear]:
        """Linear layers of the MLP, one expert's for all."""
        own = [self.gate, self.up, self.down] if self.gate.num_out else []
        if not self.experts.num:
            return own
        first = ExpertRecord.from_address(self.experts.each)
        return [first.gate, first.up, first.down, *own]


@dataclass(slots=True)
class Parts:
    """Factory of records that keeps alive the tensors they point to."""

    dtype: torch.dtype
    kept: list[object] = field(default_factory=list)

    def linears(
        self, parent: nn.Module, names: tuple[str, ...], merged: str, num_in: int, *num_out: int
    ) -> list[Linear]:
        """Return the layers of these names, each [I] to its O, or their slices of a merged layer."""
        whole = getattr(parent, merged, None)
        if not isinstance(whole, nn.Module):
            return [
                self.linear(child(parent, name), num_in, n) for name, n in zip(names, num_out, strict=True)
            ]
        rest = self.linear(whole, num_in, sum(num_out))
        first = [sum(num_out[:n]) for n in range(len(num_out))]
        packed = getattr(_base(whole), "packed", None)
        if isinstance(packed, Packed) and any(at % BLOCK for at in first):
            apart = [packed.columns(at, n) for at, n in zip(first, num_out, strict=True)]
            self.kept += apart
            return [each.record for each in apart]
        return [_columns(rest, at, n, self.dtype.itemsize) for at, n in zip(first, num_out, strict=True)]

    def linear(self, module: nn.Module, num_in: int | None, num_out: int | None = None) -> Linear:
        """Return a linear layer [I] to [O], None for any size; plain or packed, without adapters."""
        module = _base(module)
        self.kept.append(module)
        if type(module) is nn.Linear and module.weight.dtype is self.dtype and module.weight.is_contiguous():
            found = Linear(module.weight.data_ptr(), _address(module.bias), *reversed(module.weight.shape), 0)
        elif isinstance(module, PackedLinear):
            found = module.packed.record
            if not found.weight:
                raise Unrecognised("oneDNN packs its weights in an order of its own")
        elif isinstance(module, FewBitsLinear):
            found = module.record
        else:
            raise Unrecognised(f"a layer is {type(module).__name__}, not linear")
        if num_in not in (None, found.num_in) or num_out not in (None, found.num_out):
            raise Unrecognised(f"a layer takes {found.num_in} to {found.num_out}, not {num_in} to {num_out}")
        return found

    def products(self, mlp: nn.Module, width: int) -> GatedProducts:
        """Return a layer's MLP, which maps [W] to [W]."""
        experts = maybe_child(mlp, "experts")
        if experts is None:
            gating = Gating(activation(child(mlp, "act_fn", "activation_fn")))
            return GatedProducts(*self._gated(mlp, width), ExpertsRecord(), gating)
        if not isinstance(experts, SplitExperts):
            raise Unrecognised(f"its experts are {type(experts).__name__}")
        shared = maybe_child(mlp, "shared_expert", "shared_experts")
        own = (Linear(), Linear(), Linear()) if shared is None else self._gated(shared, width)
        shared_gate = getattr(maybe_child(mlp, "shared_expert_gate"), "weight", None)
        record = self._router(mlp, width)
        each = [
            ExpertRecord(self.linear(gate, width), self.linear(up, width), self.linear(down, None, width))
            for gate, up, down in zip(experts.gate, experts.up, experts.down, strict=True)
        ]
        array = (ExpertRecord * len(each))(*each)
        self.kept.append(array)
        record.each = addressof(array)
        record.shared_gate = self._numbers(shared_gate)
        return GatedProducts(*own, record, experts.gating)

    def _gated(self, mlp: nn.Module, width: int) -> tuple[Linear, Linear, Linear]:
        down = self.linear(child(mlp, "down_proj"), None, width)
        inner = down.num_in
        gate, up = self.linears(mlp, ("gate_proj", "up_proj"), "gate_up_proj", width, inner, inner)
        return gate, up, down

    def _router(self, mlp: nn.Module, width: int) -> ExpertsRecord:
        """Return a router's record, after testing its scores, choices and weights with noise.

        A bias kept by the experts is passed to it.
        """
        router = child(mlp, *ROUTER)
        exact = copy.deepcopy(router).float()
        given = [each.float() for each in (*mlp.parameters(recurse=False), *mlp.buffers(recurse=False))]
        with torch.inference_mode():
            noise = torch.randn(NUM_ROUTED, width, generator=torch.Generator().manual_seed(0))
            try:
                logits, weights, chosen = exact(noise, *given)
            except (RuntimeError, TypeError, ValueError) as error:
                raise Unrecognised(f"its router {type(router).__name__} is of a kind of its own") from error
            num = logits.shape[-1]
            own = [*exact.parameters(), *exact.buffers(), *given]
            weight = next((each for each in own if each.shape == (num, width)), torch.zeros(num, width))
            bias = getattr(exact, "bias", None)
            if not torch.allclose(logits, F.linear(noise, weight, bias), rtol=CLOSE, atol=CLOSE):
                raise Unrecognised(f"its router {type(router).__name__} is not linear")
            coarse = router(noise.to(self.dtype), *given)[0].float()
            biases = (None, *(each.flatten() for each in own if each.numel() == num))
            for score, groups, of_choice in product(Score, _groups(router, num), biases):
                scores = logits.softmax(-1) if score is Score.SOFTMAX else logits.sigmoid()
                wanted = _of_best_groups(scores if of_choice is None else scores + of_choice, *groups)
                scale, is_normalised = _weighs(scores, wanted, weights, chosen)
                if scale is not None:
                    places = [self._numbers(each) for each in (weight, bias, of_choice)]
                    rounds = torch.equal(coarse, coarse.to(self.dtype).float())
                    how = (None, scale, score, is_normalised, rounds, *groups)
                    return ExpertsRecord(None, num, chosen.shape[-1], *places, *how)
        raise Unrecognised(f"its router {type(router).__name__} chooses by a rule of its own")

    def _numbers(self, tensor: Tensor | None) -> int | None:
        if tensor is None:
            return None
        copied = tensor.detach().float().contiguous().clone()
        self.kept.append(copied)
        return copied.data_ptr()

    def norm(self, module: nn.Module | None, width: int) -> Norm:
        """Return the RMSNorm record; an empty one if `module` is None."""
        if module is None:
            return Norm(None, width, 0.0)
        eps = getattr(module, "variance_epsilon", None) or getattr(module, "eps", None)
        if not isinstance(eps, float):
            raise Unrecognised(f"{type(module).__name__} has no epsilon")
        exact = copy.deepcopy(module).float()
        with torch.inference_mode():
            noise = torch.randn(4, width, generator=torch.Generator().manual_seed(0)) * 0.1
            try:
                weight = exact(torch.ones(1, width))[0] * (1 + eps) ** 0.5
                answer = exact(noise)
            except RuntimeError as error:
                raise Unrecognised(f"{type(module).__name__} is not a norm of {width} numbers") from error
            expected = noise * torch.rsqrt(noise.square().mean(-1, keepdim=True) + eps) * weight
        if not torch.allclose(answer, expected, rtol=CLOSE, atol=CLOSE):
            raise Unrecognised(f"{type(module).__name__} is not a root mean square norm")
        weight = weight.contiguous()
        self.kept.append(weight)
        return Norm(weight.data_ptr(), width, eps)


def products_of(layer: nn.Module) -> nn.Module:
    """Return a layer's MLP module."""
    return child(layer, "mlp", "block_sparse_moe")


def router_of(layer: nn.Module) -> nn.Module | None:
    """Return the router of a layer's experts, if it has some."""
    products = products_of(layer)
    return None if maybe_child(products, "experts") is None else child(products, *ROUTER)


def child(module: nn.Module, *names: str) -> nn.Module:
    """Return the first child with one of these names."""
    found = maybe_child(module, *names)
    if found is None:
        raise Unrecognised(f"{type(module).__name__} has no {' or '.join(names)}")
    return found


def maybe_child(module: nn.Module, *names: str) -> nn.Module | None:
    """Return the first child with one of these names, or None."""
    found = (getattr(module, name, None) for name in names)
    return next((each for each in found if isinstance(each, nn.Module)), None)


def activation(module: Callable[[Tensor], Tensor]) -> int:
    """Return the kernels' number of this activation."""
    x = torch.linspace(-12, 12, 999)
    with torch.inference_mode():
        answer = module(x)
        for number, known in enumerate(GATINGS):
            if torch.allclose(answer, known(x), rtol=CLOSE, atol=CLOSE):
                return number
    raise Unrecognised(f"its activation is {type(module).__name__}")


def _groups(router: nn.Module, num_experts: int) -> list[tuple[int, int, int]]:
    num, num_chosen = (int(getattr(router, name, None) or 1) for name in ("num_group", "topk_group"))
    return [(1, 1, 1), *((num, num_chosen, n) for n in (1, 2) if num > 1 and n <= num_experts // num)]


def _of_best_groups(wanted: Tensor, num: int, num_chosen: int, num_compared: int) -> Tensor:
    """Return the scores of experts in the chosen groups; the others get the lowest value."""
    by_group = wanted.view(len(wanted), num, -1)
    best = by_group.topk(num_compared).values.sum(-1).topk(num_chosen).indices
    left_out = torch.full_like(by_group[..., 0], -torch.inf).scatter(-1, best, 0)
    return (by_group + left_out[..., None]).flatten(1)


def _weighs(scores: Tensor, wanted: Tensor, weights: Tensor, chosen: Tensor) -> tuple[float | None, bool]:
    """Return the factor of weights and whether they are normalised; None if other experts were chosen."""
    best = wanted.topk(chosen.shape[-1]).indices
    if not torch.equal(best.sort().values, chosen.sort().values):
        return None, False
    picked = scores.gather(-1, chosen)
    for is_normalised, expected in ((False, picked), (True, picked / picked.sum(-1, keepdim=True))):
        scale = float((weights * expected).sum() / expected.square().sum())
        if torch.allclose(weights, scale * expected, rtol=CLOSE, atol=CLOSE):
            return scale, is_normalised
    return None, False


def _address(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()


def _base(module: nn.Module) -> nn.Module:
    return module.base if isinstance(module, AdaptedLinear) else module


def _columns(whole: Linear, first: int, num: int, itemsize: int) -> Linear:
    if whole.block and first % BLOCK:
        raise Unrecognised("its merged layers do not begin where a block does")
    found = Linear.from_buffer_copy(whole)
    found.weight += first * whole.num_in * (whole.bits or 8 * itemsize) // 8
    found.bias = None if whole.bias is None else whole.bias + itemsize * first
    found.scale = None if whole.scale is None else whole.scale + 4 * first * (whole.num_in // GROUP)
    found.num_out = num
    return found
