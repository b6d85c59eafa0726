"""All adapters of a server in one model: a step may mix them freely.

Adapters are numbered from 1 in the order in which they were given; 0 is the model itself. Each row of a layer
gets the low-rank changes of its own adapter, or none. If adapters may be loaded at run time, every linear
layer is an AdaptedLinear from the start, so that a later one computes the same.

Shapes: N rows of a pass in all, M of them with one adapter; I inputs, O outputs, R rank.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from sundog.actors.core.params.sampling import Adapter
from sundog.runtime.checkpoint.facts import LoadError
from sundog.runtime.lora.peft import AdapterFiles, read_adapter


@dataclass(slots=True)
class AdapterRows:
    """Rows of the current pass by adapter number, shared by all adapted layers."""

    of_adapter: dict[int, Tensor] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Change:
    """Changes of every adapter to one layer: `up @ (down @ x)` for each, with its scale in `up`."""

    down_RI: Tensor
    up_OR: Tensor


class AdaptedLinear(nn.Module):
    """Linear layer of any kind, with the changes of every adapter for it.

    Rows without an adapter get exactly the layer's result; those with one are independent of each other.
    """

    def __init__(self, base: nn.Module, rows: AdapterRows) -> None:
        super().__init__()
        self.base = base
        self.shape = _shape(base)
        """Numbers of outputs and inputs; the base may be packed later."""
        self.changes: dict[int, Change] = {}
        self.was_called = False
        self._rows = rows

    @property
    def weight(self) -> object:
        """Weight of the base layer, for library code that reads its type."""
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
    """Adapters read from their folders, by name; with `takes_more` also at run time."""

    def __init__(self, folders: Mapping[str, Path], max_rank: int, *, takes_more: bool = False) -> None:
        self._files = [read_adapter(folder, max_rank) for folder in folders.values()]
        self._max_rank, self._takes_more = max_rank, takes_more
        self._rows = AdapterRows()
        self._layers: dict[str, AdaptedLinear] = {}
        self._model: PreTrainedModel | None = None
        self.numbers = {(name, 0): number for number, name in enumerate(folders, 1)}
        """Number of each loaded adapter, by name and version."""
        self._last_number = len(folders)
        self._unloaded: list[int] = []
        """Numbers of unloaded adapters that running requests may still use."""

    def attach(self, model: PreTrainedModel) -> None:
        """Replace every layer that some adapter changes by an AdaptedLinear."""
        self._layers, self._model = {}, model
        for number, files in enumerate(self._files, 1):
            for layer, change in self._read(model, files).items():
                self._layers[layer].changes[number] = change
        if self._takes_more:
            head = model.get_output_embeddings()  # type: ignore[no-untyped-call]  # the library's gap
            for name, module in list(model.named_modules()):
                if isinstance(module, nn.Linear | Conv1D) and module is not head and not _is_inner(name):
                    self._replace(model, name)

    def load(self, adapter: Adapter) -> None:
        """Read an adapter from its folder; raises LoadError, without changes, if it cannot be used."""
        key = (adapter.name, adapter.version)
        if key in self.numbers:
            return
        assert self._model is not None and self._takes_more, "adapters come while it runs"
        files = read_adapter(Path(adapter.path), self._max_rank)
        changes = self._read(self._model, files)
        for layer in changes:
            if not self._layers[layer].was_called:
                raise LoadError(f"{files.folder} changes {layer}, but the model computes without calling it")
        self._last_number += 1
        for layer, change in changes.items():
            self._layers[layer].changes[self._last_number] = change
        self.numbers[key] = self._last_number

    def unload(self, adapter: Adapter) -> None:
        """Drop an adapter at the next change at which no request runs with it."""
        key = (adapter.name, adapter.version)
        if key in self.numbers and self.numbers[key] not in self._unloaded:
            self._unloaded.append(self.numbers[key])

    def drop_unloaded(self, used: Collection[int]) -> None:
        """Free the memory of unloaded adapters that are not `used`."""
        gone = {number for number in self._unloaded if number not in used}
        self._unloaded = [number for number in self._unloaded if number in used]
        for key in [key for key, number in self.numbers.items() if number in gone]:
            del self.numbers[key]
        for layer in self._layers.values():
            for number in gone:
                layer.changes.pop(number, None)

    def _read(self, model: PreTrainedModel, files: AdapterFiles) -> dict[str, Change]:
        """Return an adapter's change to each layer, after making each an AdaptedLinear."""
        try:
            with safe_open(files.weights, "pt") as opened:
                return {
                    layer: self._change(
                        model,
                        files,
                        layer,
                        *(opened.get_tensor(files.tensor_of(layer, part)) for part in (0, 1)),
                    )
                    for layer in files.layers
                }
        except (OSError, SafetensorError) as error:
            raise LoadError(
                f"cannot read {files.weights}: it was changed while it was read ({error})"
            ) from None

    def check_called(self) -> None:
        """Raise LoadError, after a pass, if the model did not call an adapted layer."""
        for name, layer in self._layers.items():
            if layer.changes and not layer.was_called:
                raise LoadError(f"an adapter changes {name}, but the model computes without calling it")

    def begin(self, adapter_T: NDArray[np.int64] | None, device: torch.device) -> bool:
        """Set the adapters of the next pass's rows; return whether any has one."""
        numbers = [] if adapter_T is None else np.unique(adapter_T[adapter_T > 0]).tolist()
        self._rows.of_adapter = {
            number: torch.from_numpy(np.flatnonzero(adapter_T == number)).to(device) for number in numbers
        }
        return bool(numbers)

    def _change(
        self, model: PreTrainedModel, files: AdapterFiles, layer: str, down_RI: Tensor, up_OR: Tensor
    ) -> Change:
        adapted = self._layers.get(layer) or self._adapted(model, files.folder, layer)
        num_outputs, num_inputs = adapted.shape
        rank = down_RI.shape[0]
        if tuple(down_RI.shape) != (rank, num_inputs) or tuple(up_OR.shape) != (num_outputs, rank):
            raise LoadError(
                f"{files.folder} is of another model: {layer} takes {num_inputs} inputs to {num_outputs},"
                f" its lora_A is {list(down_RI.shape)} and its lora_B {list(up_OR.shape)}"
            )
        scaled_OR = up_OR.float() * files.config.scale(layer, rank)
        device, dtype = model.device, model.dtype
        return Change(down_RI.to(device, dtype), scaled_OR.to(device, dtype))

    def _adapted(self, model: PreTrainedModel, folder: Path, layer: str) -> AdaptedLinear:
        """Check that a layer can be changed, and replace it."""
        try:
            base = model.get_submodule(layer)
        except AttributeError as error:
            raise LoadError(f"{folder} is of another model: there is no layer {layer}") from error
        if base is model.get_output_embeddings():  # type: ignore[no-untyped-call]  # the library's gap
            raise LoadError(f"{folder} is not supported: it changes {layer}, which turns rows into logits")
        if not isinstance(base, nn.Linear | Conv1D):
            raise LoadError(
                f"{folder} is not supported: {layer} is no linear layer but a {type(base).__name__}"
            )
        return self._replace(model, layer)

    def _replace(self, model: PreTrainedModel, layer: str) -> AdaptedLinear:
        above, _, own = layer.rpartition(".")
        adapted = AdaptedLinear(model.get_submodule(layer), self._rows)
        setattr(model.get_submodule(above), own, adapted)
        self._layers[layer] = adapted
        return adapted


def _is_inner(name: str) -> bool:
    return name.endswith(".base")


def _shape(base: nn.Module) -> tuple[int, int]:
    """Return outputs and inputs of a layer; GPT-2's weights are transposed."""
    assert isinstance(base, nn.Linear | Conv1D)
    rows, columns = base.weight.shape
    return (columns, rows) if isinstance(base, Conv1D) else (rows, columns)
