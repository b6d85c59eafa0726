"""Small random LoRA adapters in peft's files, and the models that they are merged into."""

import json
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

Changes = dict[str, Tensor]
"""By layer, what is added to its weight, in the layer's own orientation."""


def make_adapter(
    model: PreTrainedModel,
    folder: Path,
    targets: tuple[str, ...],
    *,
    rank: int = 4,
    seed: int = 1,
    **config: object,
) -> Changes:
    """An adapter of every layer whose name ends in one of `targets`; returns what it changes."""
    torch.manual_seed(seed)
    alpha = 2 * rank
    scale = alpha / (rank**0.5 if config.get("use_rslora") else rank)
    tensors: dict[str, Tensor] = {}
    changes: Changes = {}
    for name, layer in model.named_modules():
        if not name.endswith(targets):
            continue
        weight = layer.weight
        assert isinstance(weight, Tensor)
        shape = weight.T.shape if isinstance(layer, Conv1D) else weight.shape
        down, up = torch.randn(rank, shape[1]) * 0.2, torch.randn(shape[0], rank) * 0.2
        tensors[f"base_model.model.{name}.lora_A.weight"] = down
        tensors[f"base_model.model.{name}.lora_B.weight"] = up
        change = scale * up @ down
        changes[name] = change.T if isinstance(layer, Conv1D) else change
    folder.mkdir(exist_ok=True)
    save_file(tensors, folder / "adapter_model.safetensors")
    facts = {
        "peft_type": "LORA",
        "r": rank,
        "lora_alpha": alpha,
        "target_modules": list(targets),
        "bias": "none",
    }
    (folder / "adapter_config.json").write_text(json.dumps(facts | config))
    return changes


def merge(model: PreTrainedModel, changes: Changes, sign: int = 1) -> None:
    """Add an adapter to the model's own weights; with `sign` -1 take it away again."""
    with torch.no_grad():
        for name, change in changes.items():
            model.get_submodule(name).weight += sign * change  # type: ignore[operator]  # nn.Module's loose type
