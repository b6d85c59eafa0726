"""All adapters of a server in one model: a step may mix them freely.

Adapters have numbers from 1 in the order in which they were given; 0 is the model itself. Each row of a layer
gets the low-rank changes of its own adapter, or none.

Shapes: N rows of a pass in all, M of them with one adapter; I inputs, O outputs, R rank.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import safe_open
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from sundog.runtime.checkpoint.facts import LoadError
from sundog.runtime.lora.peft import AdapterFiles, read_adapter


@dataclass(slots=True)
class AdapterRows:
    """The rows of the pass under way by adapter number; all adapted layers share it."""

    of_adapter: dict[int, Tensor] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Change:
    """The change of an adapter to one layer: `up @ (down @ x)`, with its scale in `up`."""

    down_RI: Tensor
    up_OR: Tensor


class AdaptedLinear(nn.Module):
    """A linear layer, whichever way it is computed, and the changes of every adapter that has one for it.

    Rows without an adapter get exactly what the layer gives; those with one do not see each other's.
    """

    def __init__(self, base: nn.Module, rows: AdapterRows) -> None:
        super().__init__()
        self.base = base
        self.changes: dict[int, Change] = {}
        self.was_called = False
        self._rows = rows

    @property
    def weight(self) -> object:
        """The layer's own, for code of the library that asks for its type."""
        return self.base.weight

    def forward(self, x: Tensor) -> Tensor:
        self.was_called = True
        out: Tensor = self.base(x)
        adapted = [
            (number, rows_M) for number, rows_M in self._rows.of_adapter.items() if number in self.changes
        ]
        if not adapted:
            return out
        x_NI = x.reshape(-1, x.shape[-1])
        # A copy: the layer's output may be a part of a product that others share.
        out_NO = out.reshape(-1, out.shape[-1]).clone()
        for number, rows_M in adapted:
            change = self.changes[number]
            low_MR = x_NI.index_select(0, rows_M) @ change.down_RI.T
            out_NO.index_add_(0, rows_M, low_MR @ change.up_OR.T)
        return out_NO.view(out.shape)


class Adapters:
    """The adapters, read from their folders by name."""

    def __init__(self, folders: Mapping[str, Path], max_rank: int) -> None:
        self._files = [read_adapter(folder, max_rank) for folder in folders.values()]
        self._rows = AdapterRows()
        self._layers: dict[str, AdaptedLinear] = {}

    def attach(self, model: PreTrainedModel) -> None:
        """Put an AdaptedLinear in the place of every layer that some adapter changes."""
        self._layers = {}
        for number, files in enumerate(self._files, 1):
            with safe_open(files.weights, "pt") as opened:
                for layer in files.layers:
                    down_RI, up_OR = (opened.get_tensor(files.tensor_of(layer, part)) for part in (0, 1))
                    self._change(model, files, layer, number, down_RI, up_OR)

    def check_called(self) -> None:
        """Refuse a model that computes an adapted layer in another way, once a pass has gone through it."""
        for name, layer in self._layers.items():
            if not layer.was_called:
                raise LoadError(f"an adapter changes {name}, but the model computes without calling it")

    def begin(self, adapter_T: NDArray[np.int64] | None, device: torch.device) -> bool:
        """Say which rows of the next pass have which adapter; returns whether any has one."""
        numbers = [] if adapter_T is None else np.unique(adapter_T[adapter_T > 0]).tolist()
        self._rows.of_adapter = {
            number: torch.from_numpy(np.flatnonzero(adapter_T == number)).to(device) for number in numbers
        }
        return bool(numbers)

    def _change(
        self,
        model: PreTrainedModel,
        files: AdapterFiles,
        layer: str,
        number: int,
        down_RI: Tensor,
        up_OR: Tensor,
    ) -> None:
        adapted = self._layers.get(layer) or self._replace(model, files.folder, layer)
        num_outputs, num_inputs = _shape(adapted.base)
        rank = down_RI.shape[0]
        if tuple(down_RI.shape) != (rank, num_inputs) or tuple(up_OR.shape) != (num_outputs, rank):
            raise LoadError(
                f"{files.folder} is of another model: {layer} takes {num_inputs} inputs to {num_outputs},"
                f" its lora_A is {list(down_RI.shape)} and its lora_B {list(up_OR.shape)}"
            )
        scaled_OR = up_OR.float() * files.config.scale(layer, rank)
        device, dtype = model.device, model.dtype
        adapted.changes[number] = Change(down_RI.to(device, dtype), scaled_OR.to(device, dtype))

    def _replace(self, model: PreTrainedModel, folder: Path, layer: str) -> AdaptedLinear:
        above, _, own = layer.rpartition(".")
        try:
            parent, base = model.get_submodule(above), model.get_submodule(layer)
        except AttributeError as error:
            raise LoadError(f"{folder} is of another model: there is no layer {layer}") from error
        if base is model.get_output_embeddings():  # type: ignore[no-untyped-call]  # the library's gap
            raise LoadError(f"{folder} is not supported: it changes {layer}, which turns rows into logits")
        if not isinstance(base, nn.Linear | Conv1D):
            raise LoadError(
                f"{folder} is not supported: {layer} is no linear layer but a {type(base).__name__}"
            )
        adapted = AdaptedLinear(base, self._rows)
        setattr(parent, own, adapted)
        self._layers[layer] = adapted
        return adapted


def _shape(base: nn.Module) -> tuple[int, int]:
    """Outputs and inputs of a layer; the weights of GPT-2's are the other way round."""
    assert isinstance(base, nn.Linear | Conv1D)
    rows, columns = base.weight.shape
    return (columns, rows) if isinstance(base, Conv1D) else (rows, columns)
