"""Adapter files in peft's format: `adapter_config.json` and `adapter_model.safetensors`.

Law: anything in an adapter beyond a pair of matrices for a linear layer is refused by name, never ignored.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from sundog.runtime.checkpoint.facts import PICKLES, LoadError, read_json
from sundog.runtime.checkpoint.fields import FieldError, fields_of
from sundog.runtime.checkpoint.weights import FLOATS, StoredTensor, file_tensors

V = TypeVar("V")
PREFIX = "base_model.model."
PARTS = (".lora_A.weight", ".lora_B.weight")
PLAIN_STARTS = (True, False, None, "gaussian", "orthogonal", "eva")
"""Initialisations of training that left the model's own weights unchanged."""
UNSUPPORTED = (
    "use_dora",
    "use_qalora",
    "lora_bias",
    "modules_to_save",
    "target_parameters",
    "trainable_token_indices",
    "layer_replication",
    "alora_invocation_tokens",
)


@dataclass(frozen=True, slots=True)
class AdapterConfig:
    """Fields of an `adapter_config.json` that determine the meaning of its matrices."""

    peft_type: str = "LORA"
    r: int | None = None
    rank_pattern: dict[str, int] | None = None
    lora_alpha: float = 8
    alpha_pattern: dict[str, float] | None = None
    use_rslora: bool = False
    bias: str = "none"
    init_lora_weights: bool | str | None = True
    use_dora: bool = False
    use_qalora: bool = False
    lora_bias: bool = False
    modules_to_save: object = None
    target_parameters: object = None
    trainable_token_indices: object = None
    layer_replication: object = None
    alora_invocation_tokens: object = None

    def scale(self, layer: str, rank: int) -> float:
        """Return the factor of a layer's product; a pattern that its name ends in has its own alpha."""
        alpha = _of_layer(self.alpha_pattern, layer, self.lora_alpha)
        return alpha / (math.sqrt(rank) if self.use_rslora else rank)

    def rank(self, layer: str) -> int | None:
        """Return the configured rank of a layer; None if unknown."""
        return _of_layer(self.rank_pattern, layer, self.r)

    def unsupported(self) -> str | None:
        """Return what the adapter has beyond low-rank changes of linear layers, if anything."""
        if self.peft_type != "LORA":
            return f"peft_type is {self.peft_type}, and only LORA is served"
        for name in UNSUPPORTED:
            if value := getattr(self, name):
                return f"{name} is {value}"
        if self.bias != "none":
            return f"bias is {self.bias}"
        if self.init_lora_weights not in PLAIN_STARTS:
            return f"init_lora_weights is {self.init_lora_weights}, which changes the model's own weights"
        return None


def _of_layer(pattern_values: Mapping[str, V] | None, layer: str, otherwise: V) -> V:
    for pattern, value in (pattern_values or {}).items():
        if re.match(rf"(.*\.)?({pattern})$", layer):
            return value
    return otherwise


@dataclass(frozen=True, slots=True)
class AdapterFiles:
    """Configuration of an adapter, and the names of the layers that it changes."""

    folder: Path
    config: AdapterConfig
    layers: tuple[str, ...]

    @property
    def weights(self) -> Path:
        return _weights(self.folder)

    def tensor_of(self, layer: str, part: int) -> str:
        """Return the name of a layer's tensor: part 0 maps inputs to the rank, part 1 the rank to outputs."""
        return PREFIX + layer + PARTS[part]


def read_adapter(folder: Path, max_rank: int) -> AdapterFiles:
    """Read the adapter in a folder; LoadError names what is missing or unsupported."""
    config = check_adapter(folder)
    if not _weights(folder).is_file():
        pickles = sorted(path.name for path in folder.iterdir() if path.suffix in PICKLES)
        raise LoadError(
            f"{folder} has no adapter_model.safetensors"
            + (f" (only {pickles[0]}, which runs code as it is read): convert it" if pickles else "")
        )
    tensors = file_tensors(_weights(folder))
    layers = _layers(folder, tensors, max_rank)
    _check_tensors(folder, config, tensors, layers)
    return AdapterFiles(folder, config, layers)


def check_adapter(folder: Path) -> AdapterConfig:
    """Return the configuration of an adapter; LoadError names what is missing or unsupported in it."""
    config = _read_config(folder)
    if reason := config.unsupported():
        raise LoadError(f"{folder} is not supported: {reason}")
    return config


def _weights(folder: Path) -> Path:
    return folder / "adapter_model.safetensors"


def _read_config(folder: Path) -> AdapterConfig:
    path = folder / "adapter_config.json"
    if not path.is_file():
        raise LoadError(f"{folder} has no adapter_config.json: not the folder of a LoRA adapter")
    try:
        return fields_of(AdapterConfig, read_json(path))
    except FieldError as error:
        raise LoadError(f"cannot read {path}: {error}") from error


def _layers(folder: Path, tensors: Mapping[str, StoredTensor], max_rank: int) -> tuple[str, ...]:
    layers = [name.removeprefix(PREFIX).removesuffix(PARTS[0]) for name in tensors if name.endswith(PARTS[0])]
    expected = {PREFIX + layer + part for layer in layers for part in PARTS}
    for name in sorted(expected ^ tensors.keys()):
        verb = "has" if name in tensors else "lacks"
        raise LoadError(f"{folder} is not supported: it {verb} {name}; pairs of lora_A and lora_B are served")
    if not layers:
        raise LoadError(f"{folder} changes no layer")
    rank = max(tensors[PREFIX + layer + PARTS[0]].shape[0] for layer in layers)
    if rank > max_rank:
        raise LoadError(f"{folder} has rank {rank}: give --max-lora-rank {rank}, or more")
    return tuple(layers)


def _check_tensors(
    folder: Path, config: AdapterConfig, tensors: Mapping[str, StoredTensor], layers: tuple[str, ...]
) -> None:
    for layer in layers:
        for part in PARTS:
            if (stored := tensors[PREFIX + layer + part]).dtype not in FLOATS:
                raise LoadError(
                    f"{folder} is not supported: {PREFIX + layer + part} is stored as {stored.dtype};"
                    f" {', '.join(FLOATS)} are read"
                )
        rank, said = tensors[PREFIX + layer + PARTS[0]].shape[0], config.rank(layer)
        if said is not None and rank != said:
            raise LoadError(
                f"{folder}: the rank of {layer} is {rank}, and adapter_config.json says {said} (r,"
                " rank_pattern)"
            )
