"""A folder that cannot be served ends `sundog serve` in one line, with exit code 2."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from sundog.runtime.serve import EMBEDDED_MODEL
from tests import warm
from tests.runtime.every_model import build


def lose_a_weight(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    del tensors["model.layers.1.mlp.up_proj.weight"]
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def miscount_heads(folder: Path) -> None:
    """The library's message has two lines, and says in the second what is wrong."""
    path = folder / "config.json"
    path.write_text(path.read_text().replace('"num_attention_heads": 4', '"num_attention_heads": 5'))


def leave(folder: Path) -> None:
    """The folder as it was made."""


@pytest.mark.parametrize(
    ("model_type", "spoil", "reason"),
    [
        ("mamba", leave, "(mamba) is not supported: layer 0 is linear_attention"),
        ("nemotron", leave, "nemotron is not supported: its layers do not pass the step on"),
        ("llama", miscount_heads, "(64) is not a multiple of the number of attention heads (5)"),
        ("llama", lose_a_weight, "lacks weights: model.layers.1.mlp.up_proj.weight"),
    ],
)
def test_a_refusal_at_load_is_one_line(
    model_type: str, spoil: Callable[[Path], None], reason: str, tmp_path: Path
) -> None:
    """Found before the weights, with them, or in the first pass: no traceback, no exception group."""
    build(model_type, tmp_path)
    spoil(tmp_path)
    for file in EMBEDDED_MODEL.glob("tokenizer*"):
        (tmp_path / file.name).write_bytes(file.read_bytes())
    done = warm.run("sundog", "serve", tmp_path, "--port", "0", "--max-model-len", "64")
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1 and done.stderr.startswith("sundog: ") and reason in done.stderr
    assert not done.stdout


def test_a_gpu_that_is_not_there_is_one_line() -> None:
    """Which says what else to do; `--device auto`, the default of every other test, takes the CPU."""
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    done = warm.run("sundog", "serve", "--device", "cuda", "--port", "0")
    assert done.returncode == 2 and not done.stdout
    assert "sees no CUDA device; give --device cpu" in done.stderr and done.stderr.count("\n") == 1
