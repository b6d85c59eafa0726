"""Quantised checkpoints equal the models that their numbers and scales multiply out to.

Each layout is packed here as its publisher packs it (AutoAWQ, GPTQ, DeepSeek, llm-compressor), from numbers
that are known before they are packed.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from sundog.runtime.checkpoint.facts import LoadError
from sundog.runtime.model.loader import load_model
from sundog.sim.clock import run_virtual
from tests.runtime.every_model import build, serve
from tests.runtime.models import generate, random_prompt

GROUP = 16
FP8_MAX = 448.0
Packed = tuple[dict[str, Tensor], Tensor]
"""A layer's tensors by their last name, and the weight that they stand for."""


def in_fp8(weight: Tensor, scale: Tensor) -> Tensor:
    return (weight / scale).to(torch.float8_e4m3fn)


def fp8_tensor(weight: Tensor) -> Packed:
    scale = weight.abs().max() / FP8_MAX
    numbers = in_fp8(weight, scale)
    parts = {"weight": numbers, "weight_scale": scale.reshape(1), "input_scale": torch.ones(1)}
    return parts, numbers.float() * scale


def fp8_channel(weight: Tensor) -> Packed:
    scale = weight.abs().amax(1, keepdim=True) / FP8_MAX
    numbers = in_fp8(weight, scale)
    return {"weight": numbers, "weight_scale": scale}, numbers.float() * scale


def fp8_blocks(weight: Tensor) -> Packed:
    """Blocks of 24 x 16, which divide no layer evenly."""
    rows, columns = -(-weight.shape[0] // 24), -(-weight.shape[1] // 16)
    scale = torch.rand(rows, columns) * 0.01 + 0.001
    whole = torch.kron(scale, torch.ones(24, 16))[: weight.shape[0], : weight.shape[1]]
    numbers = in_fp8(weight, whole)
    return {"weight": numbers, "weight_scale_inv": scale}, numbers.float() * whole


def int8_channel(weight: Tensor) -> Packed:
    scale = weight.abs().amax(1, keepdim=True) / 127
    numbers = (weight / scale).round().to(torch.int8)
    return {"weight": numbers, "weight_scale": scale}, numbers.float() * scale


def grouped(weight: Tensor, bits: int, group_I: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Numbers [I, O], zeros [G, O] and scales [G, O] with groups of inputs, and their weight [O, I]."""
    num_groups = int(group_I.max()) + 1
    scales = torch.rand(num_groups, weight.shape[0]) * 0.02 + 0.01
    zeros = torch.randint(0, 2**bits, scales.shape)
    numbers = (weight.T / scales[group_I] + zeros[group_I]).round().clamp(0, 2**bits - 1).long()
    return numbers, zeros, scales, ((numbers - zeros[group_I]) * scales[group_I]).T


def as_int32(value: Tensor) -> Tensor:
    return torch.where(value >= 2**31, value - 2**32, value).to(torch.int32)


def awq(weight: Tensor) -> Packed:
    def pack(numbers: Tensor) -> Tensor:
        packed = torch.zeros(numbers.shape[0], numbers.shape[1] // 8, dtype=torch.int64)
        for column in range(packed.shape[1]):
            for i, place in enumerate([0, 2, 4, 6, 1, 3, 5, 7]):
                packed[:, column] |= numbers[:, column * 8 + place] << (i * 4)
        return as_int32(packed)

    group_I = torch.arange(weight.shape[1]) // GROUP
    numbers, zeros, scales, plain = grouped(weight, 4, group_I)
    return {"qweight": pack(numbers), "qzeros": pack(zeros), "scales": scales}, plain


def gptq(weight: Tensor, *, bits: int = 4, shuffled: bool = False, first_version: bool = True) -> Packed:
    per_word = 32 // bits
    group_I = torch.arange(weight.shape[1]) // GROUP
    if shuffled:
        group_I = group_I[torch.randperm(len(group_I))]
    numbers, zeros, scales, plain = grouped(weight, bits, group_I)
    qweight = torch.zeros(weight.shape[1] // per_word, weight.shape[0], dtype=torch.int64)
    for row in range(weight.shape[1]):
        qweight[row // per_word] |= numbers[row] << (bits * (row % per_word))
    stored = (zeros - int(first_version)) & (2**bits - 1)
    qzeros = torch.zeros(len(zeros), weight.shape[0] // per_word, dtype=torch.int64)
    for column in range(weight.shape[0]):
        qzeros[:, column // per_word] |= stored[:, column] << (bits * (column % per_word))
    parts = {"qweight": as_int32(qweight), "qzeros": as_int32(qzeros), "scales": scales}
    return (parts | {"g_idx": group_I.int()} if shuffled else parts), plain


def compressed(kind: str) -> dict[str, Any]:
    weights = {"num_bits": 8, "type": "float", "strategy": "channel", "symmetric": True}
    groups = {"group_0": {"targets": ["Linear"], "weights": weights}}
    return {"quant_method": "compressed-tensors", "format": kind, "config_groups": groups}


AWQ = {"quant_method": "awq", "bits": 4, "group_size": GROUP, "version": "gemm", "zero_point": True}
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": GROUP, "desc_act": False}
LAYOUTS: dict[str, tuple[Callable[[Tensor], Packed], dict[str, Any]]] = {
    "fp8 for a tensor": (fp8_tensor, {"quant_method": "fp8", "activation_scheme": "static"}),
    "fp8 in blocks": (fp8_blocks, {"quant_method": "fp8", "weight_block_size": [24, 16]}),
    "fp8 for an output": (fp8_channel, compressed("float-quantized")),
    "int8 for an output": (int8_channel, compressed("int-quantized")),
    "awq": (awq, AWQ),
    "gptq": (gptq, GPTQ),
    "gptq by activation order": (lambda w: gptq(w, shuffled=True), GPTQ | {"desc_act": True}),
    "gptq of 8 bits": (lambda w: gptq(w, bits=8), GPTQ | {"bits": 8}),
    "gptq of the second version": (
        lambda w: gptq(w, first_version=False),
        GPTQ | {"checkpoint_format": "gptq_v2"},
    ),
}


def quantise(folder: Path, pack: Callable[[Tensor], Packed], settings: dict[str, Any]) -> dict[str, Tensor]:
    """Store the layers of the model in `folder` in a layout; returns the plain weights that it stands for."""
    torch.manual_seed(1)
    stored: dict[str, Tensor] = {}
    plain: dict[str, Tensor] = {}
    for name, tensor in load_file(folder / "model.safetensors").items():
        layer, _, last = name.rpartition(".")
        is_linear = "layers." in name and last == "weight" and tensor.ndim == 2 and "gate.weight" not in name
        parts, plain[name] = pack(tensor) if is_linear else ({last: tensor}, tensor)
        stored |= {f"{layer}.{part}": value.contiguous() for part, value in parts.items()}
    save_file(stored, folder / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"quantization_config": settings}))
    return plain


@pytest.mark.long(keep=1, reason="more cases of the law whose first `make test` runs", moderate=True)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_layer_is_what_its_numbers_and_scales_multiply_out_to(layout: str, tmp_path: Path) -> None:
    build("llama", tmp_path)
    plain = quantise(tmp_path, *LAYOUTS[layout])
    loaded = load_model(tmp_path, dtype="float32").state_dict()
    for name, tensor in plain.items():
        torch.testing.assert_close(loaded[name], tensor, rtol=1e-6, atol=1e-7)


def test_plain_weights_that_are_said_to_be_quantised_are_served_with_a_remark(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    build("llama", tmp_path)
    plain = quantise(tmp_path, lambda w: ({"weight": w}, w), AWQ)
    loaded = load_model(tmp_path, dtype="float32").state_dict()
    assert all(torch.equal(loaded[name], tensor) for name, tensor in plain.items())
    assert "config.json says that weights are quantised by awq, and none is" in caplog.text


def test_experts_are_multiplied_out_and_answer_as_the_plain_model(tmp_path: Path) -> None:
    """A checkpoint has each expert by itself, the library's layer all of them together."""
    build("qwen3_moe", tmp_path)
    plain = quantise(tmp_path, *LAYOUTS["fp8 in blocks"])
    prompts = {"a": random_prompt(1, 29), "b": random_prompt(2, 11)}
    outputs, _ = run_virtual(lambda: serve(tmp_path, prompts))
    config = json.loads((tmp_path / "config.json").read_text())
    del config["quantization_config"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    save_file(plain, tmp_path / "model.safetensors", metadata={"format": "pt"})
    model = load_model(tmp_path, dtype="float32")
    model.set_attn_implementation("eager")
    model.generation_config.eos_token_id = None
    for name, prompt in prompts.items():
        assert outputs[name] == generate(model, prompt, len(outputs[name]))


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "its weights are quantised by bitsandbytes"),
        (
            {"quant_method": "zebra"},
            "its weights are quantised by zebra; fp8, compressed-tensors, awq and gptq",
        ),
        (AWQ | {"version": "gemv"}, "awq with bits 4, version 'gemv'"),
        (GPTQ | {"bits": 3}, "gptq with bits 3"),
        (compressed("pack-quantized"), "compressed-tensors with format 'pack-quantized'"),
        (
            {"quant_method": "fp8", "weight_block_size": [32, 32]},
            "proj is not laid out as fp8 has it: weight",
        ),
    ],
)
def test_what_cannot_be_read_is_refused_by_name(
    settings: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    build("llama", tmp_path)
    quantise(tmp_path, fp8_blocks, settings)
    with pytest.raises(LoadError, match=reason) as caught:
        load_model(tmp_path)
    assert "\n" not in str(caught.value)


def test_numbers_without_scales_are_refused(tmp_path: Path) -> None:
    """They would be weights a hundred times too large."""
    build("llama", tmp_path)
    quantise(tmp_path, lambda w: ({"weight": fp8_tensor(w)[0]["weight"]}, w), {"quant_method": "fp8"})
    with pytest.raises(LoadError, match="is stored as F8_E4M3 without the scales it needs"):
        load_model(tmp_path)
