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


def lie_of_the_type(folder: Path) -> None:
    """A header that was written to harm its reader."""
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes().replace(b'"dtype":"F32"', b'"dtype":"F99"', 1))


def cut_off(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-5])


def pickled(folder: Path) -> None:
    """Weights whose reading runs code, in the place of those that are only numbers."""
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(b"cos\nabort\n(tR.")


def spoiled_adapter(folder: Path) -> None:
    """Beside a sound model: an adapter whose header promises what is not there."""
    adapter = folder / "adapter"
    adapter.mkdir()
    (adapter / "adapter_config.json").write_text('{"peft_type": "LORA", "r": 4}')
    (adapter / "adapter_model.safetensors").write_bytes((99).to_bytes(8, "little") + b"{}")


def leave(folder: Path) -> None:
    """The folder as it was made."""


@pytest.mark.long(keep=1, reason="more cases of the law whose first `make test` runs", moderate=True)
@pytest.mark.parametrize(
    ("model_type", "spoil", "reason"),
    [
        ("mamba", leave, "(mamba) is not supported: layer 0 is linear_attention"),
        ("nemotron", leave, "nemotron is not supported: its layers do not pass the step on"),
        ("llama", miscount_heads, "(64) is not a multiple of the number of attention heads (5)"),
        ("llama", lose_a_weight, "lacks weights: model.layers.1.mlp.up_proj.weight"),
        ("llama", lie_of_the_type, "is stored as F99, no type of the format"),
        ("llama", cut_off, "its header promises "),
        ("llama", pickled, "no *.safetensors weights (only pytorch_model.bin, which run code"),
        ("llama", spoiled_adapter, "adapter_model.safetensors: it is cut off or no safetensors file"),
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
    lora = (
        ("--enable-lora", "--lora-modules", f"a={tmp_path / 'adapter'}") if spoil is spoiled_adapter else ()
    )
    done = warm.run("sundog", "serve", tmp_path, "--port", "0", "--max-model-len", "64", *lora)
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
