"""Model split over ranks, by the library's own `tp_plan` and loader.

The library reads each rank's share of the weights, and hooks its modules. Its hooks for training and wrapped
tensors are not needed: weights become plain tensors, and modules the layers below. Each of these keeps the
library's own module as `part`, with its share of the weights, so that packing and kernels for plain linear
layers apply.

Shapes: R rows, I inputs and O outputs of a layer, V tokens of the vocabulary, W width of the states.
"""

from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from transformers import PreTrainedModel
from transformers.distributed.configuration_utils import DistributedConfig

from sundog.actors.core.config import ConfigError
from sundog.runtime.checkpoint.facts import LoadError
from sundog.runtime.model.loader import load_model
from sundog.runtime.ranks.fit import GATHERED, KEPT, SUMMED, generic
from sundog.runtime.ranks.group import RankGroup


class SummedLinear(nn.Module):
    """Linear layer from this rank's share of the inputs [..., I of it] to the sum over ranks [..., O].

    With `splits` it gets all inputs, and uses its share. The bias is added once, after the sum.
    """

    def __init__(self, part: nn.Linear, group: RankGroup, *, splits: bool) -> None:
        super().__init__()
        self.bias: nn.Parameter | None = part.bias
        part.register_parameter("bias", None)
        self.part = part
        self._group = group
        self._splits = splits

    def forward(self, x: Tensor) -> Tensor:
        if self._splits:
            width = -(-x.shape[-1] // self._group.rank.count)
            x = x[..., self._group.rank.number * width :][..., :width]
        out: Tensor = self.part(x)
        self._group.sum(out)
        return out if self.bias is None else out + self.bias


class GatheredLinear(nn.Module):
    """Linear layer from [..., I] to this rank's share of the outputs, gathered to [..., O]."""

    def __init__(self, part: nn.Linear, group: RankGroup, num_out: int) -> None:
        super().__init__()
        self.part = part
        self._group = group
        self._num_out = num_out

    def forward(self, x: Tensor) -> Tensor:
        return self._group.gather_columns(self.part(x), self._num_out)


class SummedEmbedding(nn.Module):
    """Embedding [..., W] of tokens, each stored on one rank: `part` has rows from `start` on."""

    def __init__(self, part: nn.Embedding, group: RankGroup, start: int) -> None:
        super().__init__()
        self.part = part
        self._group = group
        self._start, self._num_rows = start, part.weight.shape[0]

    def forward(self, ids: Tensor) -> Tensor:
        row = ids - self._start
        is_elsewhere = (row < 0) | (row >= self._num_rows)
        out: Tensor = self.part(row.masked_fill(is_elsewhere, 0)).masked_fill(is_elsewhere[..., None], 0)
        self._group.sum(out)
        return out


def load_share(folder: Path, group: RankGroup, *, dtype: str, max_model_len: int) -> PreTrainedModel:
    """Load this rank's share of the model, at the same time as the other ranks.

    Raises LoadError as `load_model` does.
    """
    # A build for GPUs without one shares on the CPU.
    found = torch.accelerator.current_accelerator(check_available=True)
    if found is not None and found.type != group.device.type:
        raise ConfigError(
            f"--tensor-parallel-size is {group.rank.count} on {group.device.type}, but transformers shares"
            f" models on the {found.type} device that is here: give --device {found.type}, or hide it"
        )
    sharing = DistributedConfig(tp_size=group.rank.count)
    device = str(group.device)
    model = load_model(folder, device=device, dtype=dtype, max_model_len=max_model_len, sharing=sharing)
    plan = model.tp_plan
    shapes = dict(_unwrapped(model, folder))
    for name, module in list(model.named_modules()):
        style = plan.get(generic(name))
        if style is not None:
            _put(model, name, module, style, shapes.get(f"{name}.weight"), group)
    return model


def _unwrapped(model: nn.Module, folder: Path) -> Iterator[tuple[str, torch.Size]]:
    """Turn each rank's shares into plain tensors, tied ones only once; yield the names and the shapes of the
    whole tensors.
    """
    plain: dict[int, nn.Parameter] = {}
    for module_name, module in model.named_modules():
        for name, value in list(module.named_parameters(recurse=False)):
            if not isinstance(value, DTensor):
                continue
            if id(value) not in plain:
                plain[id(value)] = nn.Parameter(value.to_local(), requires_grad=False)
            module._parameters[name] = plain[id(value)]
            whole = f"{module_name}.{name}"
            _check_even(folder, whole, value, plain[id(value)])
            yield whole, value.shape
    for module in model.modules():
        if isinstance(module, nn.Linear):
            module.out_features, module.in_features = module.weight.shape


def _check_even(folder: Path, name: str, value: DTensor, share: Tensor) -> None:
    if value.dim() > 2 and share.numel() * value.device_mesh.size() != value.numel():
        raise LoadError(
            f"{folder}: {name} of the shape {' x '.join(map(str, value.shape))} cannot be shared by"
            f" {value.device_mesh.size()} ranks: choose another --tensor-parallel-size"
        )


def _put(
    model: nn.Module, name: str, module: nn.Module, style: str, whole: torch.Size | None, group: RankGroup
) -> None:
    if style in KEPT:
        return
    module.__dict__.pop("forward", None)  # the library's hook, around the forward of the class
    made: nn.Module | None = None
    if isinstance(module, nn.Linear) and style in SUMMED:
        made = SummedLinear(module, group, splits=SUMMED[style])
    elif isinstance(module, nn.Linear) and style in GATHERED:
        assert whole is not None, "its weights are shared"
        made = GatheredLinear(module, group, whole[0])
    elif isinstance(module, nn.Embedding) and style == "embedding_rowwise":
        assert whole is not None, "its weights are shared"
        made = SummedEmbedding(module, group, group.rank.number * -(-whole[0] // group.rank.count))
    if made is not None:
        parent, _, own = name.rpartition(".")
        setattr(model.get_submodule(parent), own, made)
