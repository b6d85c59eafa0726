"""Every causal model type that the library knows: a small random one, served, against `generate`.

`python -m tests.runtime.every_model` prints the table of docs/served.md; with names, one line each.
"""

import json
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from transformers import CONFIG_MAPPING, AutoConfig, AutoModelForCausalLM, PreTrainedModel
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from sundog.actors.core.config import ConfigError
from sundog.runtime.engine.backend import TorchBackend
from sundog.sim.clock import run_virtual
from tests.runtime.driver import Driver
from tests.runtime.models import VOCAB_SIZE, generate, random_prompt, stir_choices

EQUAL = "equal to `generate`"
WHOLE = f"{EQUAL}; on a CPU a step is one compiled call"
NUM_TOKENS = 8
LEAST_VARIED = 4
"""Tokens that answers must have between them, or equality would say little."""

SMALL: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "tie_word_embeddings": False,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": None,
    "sliding_window": 12,
    "query_pre_attn_scalar": 16,
    "rotary_dim": 8,
    # Widths, under every name that a configuration has for them.
    **dict.fromkeys(("hidden_size", "d_model", "n_embd", "embedding_size"), 64),
    **dict.fromkeys(("intermediate_size", "d_ff", "ffn_dim", "dff"), 96),
    **dict.fromkeys(("decoder_ffn_dim", "encoder_ffn_dim"), 96),
    **dict.fromkeys(("head_dim", "d_kv", "v_head_dim", "qk_nope_head_dim", "kv_lora_rank"), 16),
    **dict.fromkeys(("moe_intermediate_size", "shared_expert_intermediate_size", "q_lora_rank"), 32),
    "qk_rope_head_dim": 8,
    **dict.fromkeys(("max_position_embeddings", "n_positions"), 512),
    # Counts.
    **dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers", "num_layers"), 3),
    **dict.fromkeys(("decoder_layers", "encoder_layers"), 2),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "num_heads", "attention_heads"), 4),
    **dict.fromkeys(("decoder_attention_heads", "encoder_attention_heads"), 4),
    "num_key_value_heads": 2,
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"), 4),
    **dict.fromkeys(("num_experts_per_tok", "moe_k", "moe_topk"), 2),
    **dict.fromkeys(("topk_group", "first_k_dense_replace"), 1),
    "n_group": 2,
}
ONLY_IF_SET = ("sliding_window", "q_lora_rank", "num_key_value_heads", "head_dim")
"""None says something of its own in these fields, and stays."""
WINDOWED = ["sliding_attention", "full_attention", "sliding_attention"]

SHARED_KEYS = {"num_kv_shared_layers": 1, "layer_types": WINDOWED[:2] * 2, "num_hidden_layers": 4}
OWN: dict[str, dict[str, Any]] = {
    "cohere_compass_text": {
        "rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 10_000.0}}
    },
    "dots1": {"num_key_value_heads": 2, "n_shared_experts": 1},
    "gemma3n_text": SHARED_KEYS,
    "gemma4_text": SHARED_KEYS,
    "dbrx": {
        "d_model": 64,
        "attn_config": {"rope_theta": 10_000.0, "kv_n_heads": 2, "clip_qkv": 8},
        "ffn_config": {"hidden_size": 64, "ffn_hidden_size": 64, "moe_top_k": 2},
    },
    "glm4_moe_lite": {"num_key_value_heads": 4},
    "gpt_neo": {"attention_types": [[["global", "local"], 2]], "num_layers": 4, "num_hidden_layers": ...},
    "hunyuan_v1_dense": {"head_dim": 16},
    "hunyuan_v1_moe": {"head_dim": 16},
    "lfm2_moe": {"layer_types": ["conv", "full_attention", "conv"]},
    "lfm2": {"layer_types": ["conv", "full_attention", "conv"]},
    "longcat_flash": {"head_dim": 8},
    "minimax_m3_vl_text": {"layer_types": ["full_attention", "minimax_m3_sparse", "full_attention"]},
    "mamba2": {"num_heads": 8, "head_dim": 16},
    "ministral": {"head_dim": 16},
    "nemotron": {"num_key_value_heads": 2},
    "reformer": {"is_decoder": True, "axial_pos_embds": False},
    "xlnet": {"d_head": 16},
    "zamba2": {"layer_types": ["linear_attention", "hybrid", "linear_attention"]},
    "zaya": {"num_experts_per_tok": 1},
}
"""What a type needs besides, or instead."""


BUILT_WHOLE = ("dbrx", "moshi")
"""Made of several parts, and yet one decoder of text."""


def settings(model_type: str) -> dict[str, Any]:
    """Fields that make a small model of this type."""
    default = AutoConfig.for_model(model_type)
    known = default.to_dict()
    other_names = {own for name, own in default.attribute_map.items() if name in SMALL}
    names = (set(known) | set(default.attribute_map)) - other_names
    given = {name: value for name, value in SMALL.items() if name in names}
    for name in ONLY_IF_SET:
        if name in given and known.get(name) is None and name not in default.attribute_map:
            del given[name]
    if "qk_rope_head_dim" in given:
        given.pop("head_dim", None)
        given["num_key_value_heads"] = given["num_attention_heads"]
    if {"full_attention", "sliding_attention"} == set(known.get("layer_types") or ()):
        given["layer_types"] = WINDOWED
    given |= OWN.get(model_type, {})
    return {name: value for name, value in given.items() if value is not ...}


def build(model_type: str, folder: Path) -> PreTrainedModel | None:
    """A random model in `folder`; only its configuration if it is made of several models."""
    parts = CONFIG_MAPPING[model_type].sub_configs
    if parts and model_type not in BUILT_WHOLE:
        config = {"model_type": model_type, **{part: {} for part in parts}}
        (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
        (folder / "model.safetensors").write_bytes(b"")
        return None
    torch.manual_seed(0)
    config = AutoConfig.for_model(model_type, **settings(model_type))
    model: PreTrainedModel = AutoModelForCausalLM.from_config(config).float().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.normal_(0, 0.12)
            else:
                parameter += torch.randn_like(parameter) * 0.05
        stir_choices(model)
    model.generation_config.eos_token_id = None
    model.save_pretrained(folder)
    return model


async def serve(folder: Path, prompts: dict[str, list[int]]) -> tuple[dict[str, list[int]], str]:
    """Greedy answers, chunked, batched and preempted; and EQUAL or WHOLE, by how steps are computed."""
    backend = TorchBackend(folder, dtype="float32", block_size=4, num_gpu_blocks=200, max_model_len=128)
    await backend.load()
    driver = Driver(backend)
    for name, prompt in prompts.items():
        driver.submit(name, prompt)
    for _ in range(5):
        await driver.step()
    driver.preempt("a")
    await driver.step()
    driver.admit("a")
    answers = await driver.run(NUM_TOKENS)
    assert backend._loaded is not None
    model = backend._loaded.model
    return answers, WHOLE if model.is_whole else EQUAL


def verdict(model_type: str, folder: Path) -> str:
    """EQUAL, WHOLE or why the type is refused; AssertionError if it answers wrongly or always the same."""
    model = build(model_type, folder)
    prompts = {"a": random_prompt(1, 29), "b": random_prompt(2, 11)}
    try:
        outputs, equal = run_virtual(lambda: serve(folder, prompts))
    except ExceptionGroup as group:
        return _refusal(group, folder)
    assert model is not None
    for name, prompt in prompts.items():
        assert outputs[name] == generate(model, prompt, len(outputs[name])), f"{model_type} answers wrongly"
    assert len(set().union(*outputs.values())) >= LEAST_VARIED, f"{model_type} always answers the same"
    return equal


def _refusal(error: BaseException, folder: Path) -> str:
    """The reason that people are shown, without the folder; raises what is no refusal."""
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    if not isinstance(error, ConfigError):
        raise error
    text = str(error).replace(str(folder), "DIR")
    return text.partition("is not supported: ")[2].partition("; Sundog")[0] or text


def table(model_types: Iterable[str]) -> str:
    """The table of docs/served.md: types by what becomes of them."""
    found: defaultdict[str, list[str]] = defaultdict(list)
    for model_type in model_types:
        with tempfile.TemporaryDirectory() as folder:
            found[verdict(model_type, Path(folder))].append(model_type)
    lines = ["| model types | |", "|---|---|"]
    for reason, names in sorted(
        found.items(), key=lambda row: (not row[0].startswith(EQUAL), -len(row[1]), row[0])
    ):
        lines.append(f"| {', '.join(names)} | {reason} |")
    return "\n".join(lines)


def main(names: list[str]) -> None:
    """Print the table, or what becomes of these types."""
    torch.set_num_threads(1)
    if not names:
        print(table(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES))
    for name in names:
        with tempfile.TemporaryDirectory() as folder:
            print(f"{name}: {verdict(name, Path(folder))}")


if __name__ == "__main__":
    main(sys.argv[1:])
