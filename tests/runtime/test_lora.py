"""A request with an adapter gets the answer of the merged model, whatever runs beside it."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, PreTrainedModel

from sundog.actors.core.config import ConfigError
from sundog.runtime.engine.backend import TorchBackend
from tests.runtime.adapters import Changes, make_adapter, merge
from tests.runtime.driver import Driver
from tests.runtime.every_model import build
from tests.runtime.models import generate, random_prompt

ATTENTION = ("q_proj", "v_proj")
ALL = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
NUM_TOKENS = 10


def backend(folder: Path, adapters: dict[str, Path], **settings: object) -> TorchBackend:
    sizes: dict[str, object] = {"block_size": 4, "num_gpu_blocks": 200, "max_model_len": 128}
    return TorchBackend(folder, adapters=adapters, **{"dtype": "float32"} | sizes | settings)  # type: ignore[arg-type]


def plain_model(folder: Path) -> PreTrainedModel:
    model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    model.generation_config.eos_token_id = None
    return model


def merged_answer(model: PreTrainedModel, changes: Changes, prompt: list[int], num_tokens: int) -> list[int]:
    merge(model, changes)
    try:
        return generate(model, prompt, num_tokens)
    finally:
        merge(model, changes, -1)


@pytest.mark.long(keep=1, reason="more cases of the law whose first `make test` runs", moderate=True)
@pytest.mark.parametrize(
    ("model_type", "targets"), [("llama", ALL), ("qwen3_moe", ATTENTION), ("gpt2", ("c_attn", "c_fc"))]
)
async def test_adapters_mixed_in_a_batch_answer_as_merged_ones(
    model_type: str, targets: tuple[str, ...], tmp_path: Path
) -> None:
    """Three adapters of other ranks, scales and layers beside no adapter; chunked, and one is preempted."""
    build(model_type, tmp_path / "model")
    model = plain_model(tmp_path / "model")
    changes: dict[str, Changes] = {"none": {}}
    changes["a"] = make_adapter(model, tmp_path / "a", targets)
    changes["b"] = make_adapter(model, tmp_path / "b", targets[:1], rank=7, seed=2, use_rslora=True)
    changes["c"] = make_adapter(model, tmp_path / "c", targets[1:], rank=1, seed=3)
    served = backend(tmp_path / "model", {name: tmp_path / name for name in "abc"})
    await served.load()
    driver = Driver(served, budget=32)
    prompts = {
        name: random_prompt(seed, n)
        for seed, (name, n) in enumerate(zip(changes, (9, 23, 30, 14), strict=True))
    }
    for name, prompt in prompts.items():
        driver.submit(name, prompt, adapter=None if name == "none" else name)
        await driver.step()
    for _ in range(4):
        await driver.step()
    driver.preempt("b")
    await driver.step()
    driver.admit("b")
    outputs = await driver.run(NUM_TOKENS)
    plain = {name: generate(model, prompt, len(outputs[name])) for name, prompt in prompts.items()}
    for name, prompt in prompts.items():
        assert outputs[name] == merged_answer(model, changes[name], prompt, len(outputs[name]))
        assert name == "none" or outputs[name] != plain[name]


async def test_packed_layers_are_adapted_too(tmp_path: Path) -> None:
    """In bf16 on a CPU linear layers are packed and merged; their adapters still get their rows."""
    build("llama", tmp_path / "model")
    changes = make_adapter(plain_model(tmp_path / "model"), tmp_path / "a", ALL)
    served = backend(tmp_path / "model", {"a": tmp_path / "a"}, dtype="bfloat16")
    await served.load()
    driver = Driver(served)
    prompt = random_prompt(1, 12)
    driver.submit("plain", prompt)
    driver.submit("adapted", prompt, adapter="a")
    outputs = await driver.run(1)
    model = plain_model(tmp_path / "model")
    assert outputs["plain"] == generate(model, prompt, 1)
    assert outputs["adapted"] == merged_answer(model, changes, prompt, 1) != outputs["plain"]


def set_config(**fields: object) -> Callable[[Path], None]:
    def spoil(folder: Path) -> None:
        path = folder / "adapter_config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | fields))

    return spoil


def rename(old: str, new: str) -> Callable[[Path], None]:
    def spoil(folder: Path) -> None:
        path = folder / "adapter_model.safetensors"
        save_file({name.replace(old, new): tensor for name, tensor in load_file(path).items()}, path)

    return spoil


def narrow(folder: Path) -> None:
    path = folder / "adapter_model.safetensors"
    save_file({name: tensor[:, :-1].contiguous() for name, tensor in load_file(path).items()}, path)


def as_integers(folder: Path) -> None:
    path = folder / "adapter_model.safetensors"
    save_file({name: tensor.to(torch.int8) for name, tensor in load_file(path).items()}, path)


def cut_off(folder: Path) -> None:
    path = folder / "adapter_model.safetensors"
    path.write_bytes(path.read_bytes()[:-1])


@pytest.mark.long(keep=1, reason="more cases of the law whose first `make test` runs", moderate=True)
@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (set_config(use_dora=True), "use_dora is True"),
        (set_config(modules_to_save=["lm_head"]), r"modules_to_save is \['lm_head'\]"),
        (set_config(target_parameters=["experts.up"]), "target_parameters is"),
        (set_config(bias="all"), "bias is all"),
        (set_config(peft_type="IA3"), "peft_type is IA3, and only LORA is served"),
        (set_config(init_lora_weights="pissa"), "init_lora_weights is pissa, which changes"),
        (set_config(r=5), r"the rank of model\.layers\.0\.self_attn\.q_proj is \d, and .* says 5"),
        (set_config(rank_pattern={"q_proj": 7}), r"q_proj is \d, and adapter_config\.json says 7"),
        (as_integers, r"q_proj\.lora_A\.weight is stored as I8; F64, F32, F16, BF16 are read"),
        (set_config(lora_alpha="much"), "lora_alpha is 'much'"),
        (
            rename("q_proj.lora_A", "q_proj.lora_magnitude_vector"),
            "it has base_model.*lora_pair|it (has|lacks) base_",
        ),
        (rename("layers.0", "layers.9"), r"is of another model: there is no layer model\.layers\.9"),
        (rename("layers.0.self_attn.q_proj", "norm"), r"model\.norm is no linear layer but a LlamaRMSNorm"),
        (rename("model.layers.0.self_attn.q_proj", "lm_head"), "it changes lm_head, which turns rows into"),
        (narrow, r"is of another model: model\.layers\.0\.self_attn\.q_proj takes 64 inputs to 64"),
        (cut_off, "download it again"),
        (lambda folder: (folder / "adapter_model.safetensors").unlink(), "has no adapter_model"),
        (lambda folder: (folder / "adapter_config.json").unlink(), "has no adapter_config.json"),
    ],
)
async def test_what_an_adapter_may_not_have_is_refused_by_name(
    spoil: Callable[[Path], None], reason: str, tmp_path: Path
) -> None:
    """Never served without it."""
    build("llama", tmp_path / "model")
    make_adapter(plain_model(tmp_path / "model"), tmp_path / "a", ATTENTION)
    spoil(tmp_path / "a")
    with pytest.raises(ConfigError, match=reason) as caught:
        await backend(tmp_path / "model", {"a": tmp_path / "a"}).load()
    assert "\n" not in str(caught.value) and str(tmp_path / "a") in str(caught.value)


async def test_a_rank_above_the_limit_is_refused(tmp_path: Path) -> None:
    build("llama", tmp_path / "model")
    make_adapter(plain_model(tmp_path / "model"), tmp_path / "a", ATTENTION, rank=9)
    with pytest.raises(ConfigError, match="has rank 9: give --max-lora-rank 9, or more"):
        await backend(tmp_path / "model", {"a": tmp_path / "a"}, max_lora_rank=8).load()
