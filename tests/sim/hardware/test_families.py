"""Every family of models: published counts, and refusals of unknown families."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from sundog.actors.core.config import ConfigError
from sundog.sim.cost.roofline import Roofline
from sundog.sim.cost.work import StepWork
from sundog.sim.hardware.attention import Latent
from sundog.sim.hardware.gpu import load_gpu
from sundog.sim.hardware.model import known_models, load_model, shape_of
from sundog.sim.hardware.quantization import quantised
from tests.sim.hardware.params import num_active_params, num_params

WHOLE, NO_INPUT, LAYERS = "with both tables", "without the input table", "without either table"
PUBLISHED: dict[str, tuple[float, float, str]] = {
    "deepseek-v2": (236, 21, NO_INPUT),
    "deepseek-v2-lite": (15.7, 2.4, NO_INPUT),
    "deepseek-v3": (671, 37, NO_INPUT),
    "kimi-k2-instruct": (1026, 32, NO_INPUT),
    "mixtral-8x7b": (46.7, 12.9, WHOLE),
    "mixtral-8x22b": (141, 39, WHOLE),
    "qwen3-30b-a3b": (30.5, 3.3, WHOLE),
    "qwen3-235b-a22b": (235, 22, WHOLE),
    "qwen2-57b-a14b": (57.4, 14.2, WHOLE),
    "qwen1.5-moe-a2.7b": (14.3, 2.7, WHOLE),
    "gpt-oss-120b": (116.83, 5.13, NO_INPUT),
    "gpt-oss-20b": (20.91, 3.61, NO_INPUT),
    "glm-4.5": (355, 32, LAYERS),
    "glm-4.5-air": (106, 12, LAYERS),
    "llama-2-7b": (6.74, 6.74, WHOLE),
    "llama-2-70b": (68.98, 68.98, WHOLE),
    "llama-3.1-8b": (8.03, 8.03, WHOLE),
    "llama-3.1-70b": (70.6, 70.6, WHOLE),
    "llama-3.1-405b": (405.9, 405.9, WHOLE),
    "llama-3.2-1b": (1.236, 1.236, WHOLE),
    "llama-3.2-3b": (3.213, 3.213, WHOLE),
    "mistral-7b-v0.3": (7.248, 7.248, WHOLE),
    "mistral-small-24b-instruct-2501": (23.6, 23.6, WHOLE),
    "qwen2.5-0.5b": (0.494, 0.494, WHOLE),
    "qwen2.5-1.5b": (1.54, 1.54, WHOLE),
    "qwen2.5-7b": (7.616, 7.616, WHOLE),
    "qwen2.5-14b": (14.77, 14.77, WHOLE),
    "qwen2.5-32b": (32.76, 32.76, WHOLE),
    "qwen2.5-72b": (72.7, 72.7, WHOLE),
    "qwen3-0.6b": (0.596, 0.596, WHOLE),
    "qwen3-1.7b": (1.72, 1.72, WHOLE),
    "qwen3-4b": (4.02, 4.02, WHOLE),
    "qwen3-8b": (8.19, 8.19, WHOLE),
    "qwen3-14b": (14.77, 14.77, WHOLE),
    "qwen3-32b": (32.76, 32.76, WHOLE),
    "llama-4-scout-17b-16e": (107.8, 17.2, WHOLE),
    "llama-4-maverick-17b-128e": (400.7, 17.2, WHOLE),
    "gemma-2-2b": (2.614, 2.614, WHOLE),
    "gemma-2-9b": (9.24, 9.24, WHOLE),
    "gemma-2-27b": (27.23, 27.23, WHOLE),
    "gemma-3-1b": (1.0, 1.0, WHOLE),
    "gemma-3-4b": (3.88, 3.88, WHOLE),
    "gemma-3-12b": (11.77, 11.77, WHOLE),
    "gemma-3-27b": (27.0, 27.0, WHOLE),
    "phi-3-mini-4k": (3.82, 3.82, WHOLE),
    "phi-4": (14.66, 14.66, WHOLE),
    "olmo-2-1124-7b": (7.3, 7.3, WHOLE),
    "olmo-2-1124-13b": (13.7, 13.7, WHOLE),
    "granite-3.1-8b": (8.17, 8.17, WHOLE),
    "glm-4-9b-0414": (9.4, 9.4, WHOLE),
    "qwen3-coder-480b-a35b": (480, 35, WHOLE),
    "minimax-m2": (230, 10, LAYERS),
    "minimax-m2.5": (230, 10, LAYERS),
    "deepseek-v3.2": (671, 37, NO_INPUT),
    "glm-5": (744, 40, NO_INPUT),
    "qwen3-next-80b-a3b": (80, 3.25, LAYERS),  # published as 3
    "qwen3.5-9b": (8.95, 8.95, WHOLE),
    "qwen3.5-27b": (27, 27, WHOLE),
    "qwen3.5-35b-a3b": (34.7, 2.95, NO_INPUT),
    "qwen3.5-397b-a17b": (397, 17, WHOLE),
    "olmoe-1b-7b-0924": (6.9, 1.3, WHOLE),
    "phi-3.5-moe": (41.9, 6.6, WHOLE),
    "ernie-4.5-21b-a3b": (21.83, 3.1, NO_INPUT),
    "granite-3.0-3b-a800m": (3.3, 0.8, NO_INPUT),
    "dots.llm1": (142.8, 14, WHOLE),
    "seed-oss-36b": (36.15, 36.15, WHOLE),
    "smollm3-3b": (3.08, 3.08, WHOLE),
    "c4ai-command-r7b-12-2024": (8.03, 8.03, WHOLE),
    "c4ai-command-r-plus": (104, 104, WHOLE),
    "gemma-2b": (2.51, 2.51, WHOLE),
    "gemma-7b": (8.54, 8.54, WHOLE),
    "olmo-3-1025-7b": (7.3, 7.3, WHOLE),
    "exaone-4.0-32b": (32.0, 32.0, WHOLE),
    "granite-4.0-micro": (3.4, 3.4, WHOLE),
    "yi-34b": (34.4, 34.4, WHOLE),
    "internlm2-7b": (7.74, 7.74, WHOLE),
    "internlm3-8b": (8.8, 8.8, WHOLE),
    "baichuan2-7b": (7.51, 7.51, WHOLE),
    "chatglm3-6b": (6.24, 6.24, WHOLE),
}
"""Billions of parameters, total and active, from model cards and technical reports, which count the
tables of embeddings among the active ones or do not."""


@pytest.mark.parametrize("name", sorted(PUBLISHED))
def test_parameters_are_those_that_were_published(name: str) -> None:
    """Total and active within 2 %; a published 2.4 or 22 has that much rounding in it."""
    model, (total, active, counted) = load_model(name), PUBLISHED[name]
    assert num_params(model) / 1e9 == pytest.approx(total, rel=0.01)
    left_out = [WHOLE, NO_INPUT, LAYERS].index(counted) * model.embedding_params
    assert (num_active_params(model) - left_out) / 1e9 == pytest.approx(active, rel=0.022)


def test_every_model_that_ships_has_a_published_count() -> None:
    """No model file without a checked number."""
    assert known_models() == sorted(PUBLISHED)


@pytest.mark.parametrize(
    ("name", "total"), [("llama-4-scout-17b-16e", 109), ("llama-4-maverick-17b-128e", 400)]
)
def test_llama_4_has_its_published_parameters_with_its_eyes(name: str, total: int) -> None:
    """Meta counts the vision tower, which is not priced: of 34 layers 0.81 billion, and a projector."""
    model, vision = load_model(name), config_of(name)["vision_config"]
    hidden, inner = vision["hidden_size"], vision["intermediate_size"]
    tower = vision["num_hidden_layers"] * (4 * hidden**2 + 2 * hidden * inner)
    assert (num_params(model) + tower) / 1e9 == pytest.approx(total, rel=0.005)
    assert round(num_active_params(model) / 1e9) == 17
    assert "vision_config is left out" in model.remarks[0]


def test_llama_4_has_experts_in_every_layer_or_in_every_other() -> None:
    """Sixteen in each of Scout's, 128 in each second of Maverick's, whose others are wider and dense."""
    kinds = {
        name: sorted({(layer.mlp.num_experts, layer.mlp.inner) for layer, _ in load_model(name).layers})
        for name in ("llama-4-scout-17b-16e", "llama-4-maverick-17b-128e")
    }
    assert list(kinds.values()) == [[(16, 8192)], [(1, 16384), (128, 8192)]]
    maverick = load_model("meta-llama/Llama-4-Maverick-17B-128E-Instruct").layers_in_order
    assert [layer.mlp.num_experts for layer in maverick[:4]] == [1, 128, 1, 128]
    assert [layer.attention.window for layer in maverick[:4]] == [8192, 8192, 8192, None]


LLAMA4_ODD = [
    ({"no_rope_layers": [1, 0]}, "no_rope_layers must be a list of 48"),
    ({"no_rope_layers": [2] * 48}, "no_rope_layers must be a list of 48 zeros and ones"),
    ({"layer_types": ["full_attention"] * 48}, "layer_types and no_rope_layers name other layers"),
    ({"layer_types": ["sliding_attention"] * 48}, "'sliding_attention', which the cost model does not know"),
    ({"attention_chunk_size": "8k"}, "attention_chunk_size is '8k'"),
    ({"moe_layers": 2}, "moe_layers must be a list"),
    ({"num_local_experts": None}, "num_local_experts is missing"),
]


@pytest.mark.parametrize(("changes", "words"), LLAMA4_ODD, ids=lambda value: str(value)[:40])
def test_an_odd_llama_4_is_refused_by_its_field(changes: dict[str, Any], words: str) -> None:
    """Never taken for something else."""
    config = config_of("llama-4-scout-17b-16e")
    config["text_config"] |= changes
    with pytest.raises(ConfigError, match=words):
        shape_of(json.dumps(config), "odd")


def test_layers_of_llama_4_may_be_listed() -> None:
    """`moe_layers` and `no_rope_layers` go before the rules; a chunk of 0 or null is none."""
    config = config_of("llama-4-scout-17b-16e")
    config["text_config"] |= {"num_hidden_layers": 3, "moe_layers": [2], "no_rope_layers": [0, 1, 1]}
    layers = shape_of(json.dumps(config), "listed").layers_in_order
    assert [layer.mlp.num_experts for layer in layers] == [1, 1, 16]
    assert [layer.attention.window for layer in layers] == [None, 8192, 8192]
    for none in (0, None):
        config["text_config"] |= {"attention_chunk_size": none}
        assert not shape_of(json.dumps(config), "whole").has_windows
    plain = config_of("llama-3.1-8b") | {"attention_chunk_size": None}
    assert shape_of(json.dumps(plain), "plain", "llama") == shape_of(
        json.dumps(config_of("llama-3.1-8b")), "plain", "llama"
    )


def test_latents_take_what_deepseek_says_they_take() -> None:
    """(512 + 64) numbers a token and layer, 61 layers, 2 bytes; every rank keeps them whole."""
    model = load_model("deepseek-ai/DeepSeek-V3")
    assert model.kv_bytes_per_token() == model.kv_bytes_per_token(ranks=8) == 576 * 2 * 61
    kinds = [(type(layer.attention), layer.mlp.num_experts, count) for layer, count in model.layers]
    assert kinds == [(Latent, 1, 3), (Latent, 256, 58)]


def test_windows_are_where_each_family_has_them() -> None:
    """Every other layer of gpt-oss and Gemma 2, five of six of Gemma 3, none of Mistral v0.3."""

    def windows(name: str) -> dict[int | None, int]:
        found: dict[int | None, int] = {}
        for layer, count in load_model(name).layers:
            found[layer.attention.window] = found.get(layer.attention.window, 0) + count
        return found

    assert windows("gpt-oss-120b") == {128: 18, None: 18}
    assert windows("gemma-2-9b") == {4096: 21, None: 21}
    assert windows("gemma-3-27b") == {1024: 52, None: 10}
    assert windows("llama-4-scout-17b-16e") == {8192: 36, None: 12}
    assert windows("mistral-7b-v0.3") == {None: 32}
    assert windows("phi-3-mini-4k") == {2047: 32}


def config_of(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(Path(f"sim/hardware/models/{name}.json").read_text())
    return found


def test_what_is_left_out_is_said() -> None:
    """Heads that predict further tokens, and a vision tower beside the text model."""
    assert "multi-token-prediction layers" in load_model("deepseek-v3").remarks[0]
    assert "vision_config is left out" in load_model("gemma-3-27b").remarks[0]
    assert load_model("llama-3.1-8b").remarks == ()


INT4 = {"num_bits": 4, "type": "int", "group_size": 128}
INT8 = {"num_bits": 8, "type": "int"}


def grouped(*weights_and_targets: Any, sparsity: str = "dense") -> dict[str, Any]:
    """A compressed-tensors config of weights and what they are of, in turn."""
    pairs = zip(weights_and_targets[::2], weights_and_targets[1::2], strict=True)
    groups = {f"group_{i}": {"weights": weights, "targets": [of]} for i, (weights, of) in enumerate(pairs)}
    method = {"quant_method": "compressed-tensors", "sparsity_config": {"format": sparsity}}
    return {"quantization_config": {**method, "config_groups": groups}}


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("llama-3.1-8b", {"model_type": None}, "model_type is missing: known are baichuan,"),
    ("llama-3.1-8b", {"model_type": "llamma"}, "model_type is 'llamma', which the cost model does not know"),
    ("llama-3.1-8b", {"model_type": ["llama"]}, r"model_type is \['llama'\]"),
    ("llama-3.1-8b", {"model_type": "mamba2"}, "its layers are state-space layers"),
    ("llama-3.1-8b", {"model_type": "llama4"}, "text_config, which is missing"),
    ("llama-3.1-8b", {"attention_chunk_size": 8192}, "chunked local attention are not known"),
    ("llama-3.1-8b", {"num_local_experts": 8}, "num_local_experts is 8: routed experts are not known"),
    ("llama-3.1-8b", {"kv_lora_rank": 512}, "kv_lora_rank is 512: latent attention"),
    ("llama-3.1-8b", {"mamba_d_state": 16}, "state-space layers"),
    ("qwen3-8b", {"linear_attn_config": {"a": 1}}, "linear-attention layers"),
    ("llama-3.1-8b", {"is_encoder_decoder": True}, "an encoder"),
    ("llama-3.1-8b", {"vision_config": {}}, "vision_config and no text_config"),
    ("gemma-3-27b", {"text_config": {"text_config": {}}}, "another text_config"),
    ("gemma-3-27b", {"text_config": []}, "text_config is not an object"),
    ("gpt-oss-20b", {"layer_types": ["full_attention"]}, "layer_types must be a list of 24"),
    ("gpt-oss-20b", {"layer_types": ["linear_attention"] * 24}, "'linear_attention', which the cost model"),
    ("qwen3-8b", {"layer_types": ["linear_attention"] * 36}, "'linear_attention', which the cost model"),
    (
        "llama-3.1-8b",
        {"quantization_config": {"quant_method": "awq", "group_size": 0}},
        "group_size is 0: give 128, say, or -1",
    ),
    ("llama-3.1-8b", {"num_attention_heads": None}, "num_attention_heads is missing"),
    ("llama-3.1-8b", {"num_attention_heads": 0}, "num_attention_heads is 0"),
    ("llama-3.1-8b", {"num_attention_heads": -8}, "num_attention_heads is -8"),
    ("llama-3.1-8b", {"num_attention_heads": "32"}, "num_attention_heads is '32'"),
    ("llama-3.1-8b", {"num_attention_heads": True}, "num_attention_heads is True"),
    ("llama-3.1-8b", {"hidden_size": 10**30}, "hidden_size is 1000.*at most"),
    ("llama-3.1-8b", {"num_hidden_layers": 10**6}, "num_hidden_layers is 1000000.*at most 2,000"),
    ("llama-3.1-8b", {"num_key_value_heads": 5}, "num_key_value_heads is 5: it must divide the 32"),
    ("llama-2-7b", {"hidden_size": 4097}, "must divide hidden_size"),
    ("llama-3.1-8b", {"tie_word_embeddings": "yes"}, "tie_word_embeddings is 'yes'"),
    ("mixtral-8x7b", {"num_experts_per_tok": 9}, "num_experts_per_tok is 9.*at most 8"),
    ("deepseek-v3", {"kv_lora_rank": None}, "kv_lora_rank is missing"),
    ("deepseek-v3", {"index_topk": 2048}, "sparse attention"),
    (
        "deepseek-v3",
        {"quantization_config": {"quant_method": "bitsandbytes"}},
        "bitsandbytes without load_in_4bit",
    ),
    ("llama-3.1-8b", {"quantization_config": {"quant_method": "hqq"}}, "quant_method 'hqq'"),
    (
        "llama-3.1-8b",
        {"quantization_config": {"quant_method": "gptq", "dynamic": {".*attn.*": {"bits": 8}}}},
        "a dynamic rule '.*attn.*'",
    ),
    (
        "llama-3.1-8b",
        {
            "quantization_config": {
                "quant_method": "auto-round",
                "extra_config": {"model.layers.0": {"bits": 8}},
            }
        },
        "extra_config in quantization_config has 'model.layers.0'",
    ),
    (
        "llama-3.1-8b",
        {"quantization_config": {"quant_method": "auto-round", "data_type": "nv_fp"}},
        "data_type",
    ),
    (
        "llama-3.1-8b",
        {"quantization_config": {"quant_method": "fp8", "weight_block_size": [128]}},
        "weight_block_size in quantization_config is",
    ),
    ("llama-3.1-8b", grouped(INT4, "re:.*down_proj"), "targets some projections of dense"),
    ("llama-3.1-8b", grouped(INT4, "re:.*(unclosed"), "names no projection that is known"),
    ("llama-3.1-8b", grouped(INT4, "LlamaMLP"), "targets 'LlamaMLP', which names no projection"),
    ("llama-3.1-8b", grouped(INT4, "re:.*attn.*", INT8, "re:.*mlp.*"), r"several formats \(int4, int8\)"),
    ("llama-3.1-8b", grouped(INT8, "Linear", sparsity="sparse-24-bitmask"), "sparse weights"),
    ("llama-3.1-8b", {"model_type": "kimi_linear"}, "most of its layers have linear attention"),
    ("glm-5", {"index_topk_freq": 4}, "layers that share the keys they chose"),
    ("glm-5", {"model_type": "deepseek_v3"}, "index_topk is 2048: layers with sparse attention"),
    ("qwen3-next-80b-a3b", {"model_type": "qwen3_moe"}, "linear-attention layers"),
    ("llama-3.1-8b", {"model_type": "falcon"}, "its MLPs have no gate"),
    ("llama-3.1-8b", {"model_type": "lfm2"}, "convolution layers"),
    ("qwen3-30b-a3b", {"num_local_experts": 64}, "num_local_experts is 64: they name the same experts"),
    ("minimax-m2", {"attn_type_list": [0, 1]}, "layers of several kinds of attention"),
    ("granite-4.0-micro", {"layer_types": ["mamba"] * 40}, "it has state-space layers"),
    ("exaone-4.0-32b", {"sliding_window_pattern": None}, "sliding_window is given without"),
    ("deepseek-v3", {"quantization_config": 8}, "quantization_config is not an object"),
    ("llama-3.1-8b", {"torch_dtype": "float12"}, "float12"),
]


@pytest.mark.parametrize(("name", "change", "words"), REFUSED, ids=lambda value: str(value)[:40])
def test_what_is_not_known_is_refused_by_name(
    tmp_path: Path, name: str, change: dict[str, Any], words: str
) -> None:
    """One field of a known config is changed; the refusal names file and field."""
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**config_of(name), **change}))
    with pytest.raises(ConfigError, match=words):
        load_model(str(tmp_path))


@pytest.mark.parametrize(
    ("text", "words"),
    [("{", "not JSON"), ("[]", "one object"), ("[" * 100_000, "not JSON"), ("{}", "model_type")],
)
def test_a_file_that_is_no_config_is_refused(tmp_path: Path, text: str, words: str) -> None:
    """The file is in the message."""
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(ConfigError, match=words):
        load_model(str(tmp_path / "config.json"))
    with pytest.raises(ConfigError, match="cannot read"):
        load_model(str(tmp_path / "nothing"))


FORMATS: list[tuple[dict[str, Any], float, tuple[bool, bool, bool]]] = [
    (grouped(INT4, "re:.*mlp.*")["quantization_config"], 4.125, (False, True, True)),
    (grouped(INT8, "re:.*self_attn.*")["quantization_config"], 8, (True, False, True)),
    ({"quant_method": "auto-round", "bits": 4, "group_size": 128}, 4.125, (True, True, True)),
    ({"quant_method": "fp8", "weight_block_size": [16, 16]}, 8.125, (True, True, True)),
    ({"quant_method": "fp8"}, 8, (True, True, True)),
    ({"quant_method": "fp8", "weight_block_size": [128, 128]}, 8.002, (True, True, True)),
    ({"quant_method": "awq", "bits": 4, "group_size": 128}, 4.156, (True, True, True)),
    ({"quant_method": "gptq", "bits": 8, "group_size": -1}, 8, (True, True, True)),
    ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, 4.5, (True, True, True)),
    ({"quant_method": "fp8", "modules_to_not_convert": ["lm_head", "self_attn"]}, 8, (False, True, True)),
    ({"quant_algo": "FP8", "producer": {"name": "modelopt"}, "ignore": ["lm_head"]}, 8, (True, True, True)),
    (
        {"quant_method": "fp8", "ignored_layers": [f"model.layers.{i}.self_attn*" for i in range(32)]},
        8,
        (False, True, True),
    ),
    ({"quant_method": "gptq", "dynamic": {"-:.*attn.*": {}}}, 4.125, (False, True, True)),
    ({"quant_method": "bitsandbytes", "load_in_4bit": True}, 4.5, (True, True, True)),
    (
        {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_use_double_quant": True},
        4.127,
        (True, True, True),
    ),
    (
        {
            "quant_method": "compressed-tensors",
            "config_groups": {"group_0": {"weights": {"num_bits": 4, "type": "int", "group_size": 32}}},
            "ignore": ["re:.*self_attn.*", "lm_head"],
        },
        4.5,
        (False, True, True),
    ),
]


@pytest.mark.parametrize(("config", "bits", "parts"), FORMATS, ids=lambda value: str(value)[:60])
def test_formats_of_weights_are_read(
    tmp_path: Path, config: dict[str, Any], bits: float, parts: tuple[bool, bool, bool]
) -> None:
    """Bits of a weight with its scales, and what is left in 16 bits."""
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**config_of("llama-3.1-8b"), "quantization_config": config}))
    model = load_model(str(path))
    form = model.weights
    assert form is not None and form.bits == pytest.approx(bits, rel=1e-3)
    assert tuple(part in form.parts for part in ("attention", "dense", "experts")) == parts
    plain = load_model("llama-3.1-8b")
    assert plain.weight_bytes() > model.weight_bytes() > plain.weight_bytes() * bits / 16


def test_published_checkpoints_have_their_size() -> None:
    """gpt-oss-120b is 65 GB in mxfp4, gpt-oss-20b 13.8, DeepSeek-V3 671 in fp8 (its files, less the
    layer that predicts further tokens)."""
    assert load_model("gpt-oss-120b").weight_bytes() / 1e9 == pytest.approx(65.2, rel=0.02)
    assert load_model("gpt-oss-20b").weight_bytes() / 1e9 == pytest.approx(13.8, rel=0.02)
    assert load_model("deepseek-v3").weight_bytes() / 1e9 == pytest.approx(674, rel=0.01)


def test_what_is_left_out_of_some_layers_is_priced_there(tmp_path: Path) -> None:
    """A part of single layers takes 16 bits in those; one named by some projections is left out whole."""
    config = config_of("deepseek-v3")
    config["quantization_config"] = {"quant_method": "fp8"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    whole = load_model(str(tmp_path))
    single = [f"model.layers.{index}.self_attn*" for index in range(5)]
    config["quantization_config"] = {"quant_method": "fp8", "ignored_layers": [*single, "model.layers.61*"]}
    (tmp_path / "config.json").write_text(json.dumps(config))
    model = load_model(str(tmp_path))
    assert model.weights is not None and "attention" in model.weights.parts
    assert [sorted(layer.unquantised) for layer in model.layers_in_order[4:6]] == [["attention"], []]
    attention = model.layers[0][0].attention.num_weights(7168)
    assert attention == pytest.approx(187.1e6, rel=1e-3)
    assert model.weight_bytes() - whole.weight_bytes() == 5 * attention
    assert model.remarks == whole.remarks and num_params(model) == num_params(whole)


@pytest.mark.parametrize(
    ("left", "names", "num_weights"),
    [
        (["q_proj", "k_proj", "v_proj"], ["attention.k", "attention.q", "attention.v"], 80 * 8192 * 10240),
        (["re:.*self_attn.qkv_proj"], ["attention.k", "attention.q", "attention.v"], 80 * 8192 * 10240),
        (["re:.*mlp.(gate|up)_proj"], ["dense.gate", "dense.up"], 80 * 2 * 8192 * 28672),
        (["model.layers.7.mlp.down_proj"], ["dense.down"], 8192 * 28672),
        (["down_proj", "mlp.gate_up_proj"], [], 80 * 3 * 8192 * 28672),
    ],
)
def test_projections_are_left_out_one_by_one(
    tmp_path: Path, left: list[str], names: list[str], num_weights: int
) -> None:
    """By their names wherever they are, fused or in one layer; all of a part are the part."""
    kept = {"quant_method": "fp8", "ignored_layers": left}
    (tmp_path / "config.json").write_text(
        json.dumps({**config_of("llama-3.1-70b"), "quantization_config": kept})
    )
    model, whole = load_model(str(tmp_path)), quantised(load_model("llama-3.1-70b"), "fp8")
    assert sorted(model.layers_in_order[7].unquantised) == names and not model.remarks
    assert model.weight_bytes() - whole.weight_bytes() == num_weights
    models = (whole, model, load_model("llama-3.1-70b"))
    for work in (StepWork(4, 64, num_samples=4), StepWork(0, 0, ((4096, 0),), num_samples=1)):
        quick, mixed, plain = (Roofline(each, load_gpu("h100")).step_s(work) for each in models)
        assert quick < mixed < plain


def test_a_latent_query_is_left_out_alone(tmp_path: Path) -> None:
    """What no layer has (`q_proj` beside two query projections) leaves out nothing."""
    config = config_of("deepseek-v3")
    sizes = {}
    for name in ("q_b_proj", "q_proj", "nothing"):
        config["quantization_config"] = {"quant_method": "fp8", "ignored_layers": [f"self_attn.{name}"]}
        (tmp_path / "config.json").write_text(json.dumps(config))
        sizes[name] = load_model(str(tmp_path)).weight_bytes()
    assert sizes["q_b_proj"] - sizes["q_proj"] == 61 * 1536 * 128 * 192


def test_formats_in_the_file_beside_a_config_count(tmp_path: Path) -> None:
    """TensorRT Model Optimizer once wrote them into hf_quant_config.json alone; vLLM reads it."""
    (tmp_path / "config.json").write_text(json.dumps(config_of("llama-3.1-70b")))
    beside = tmp_path / "hf_quant_config.json"
    beside.write_text(json.dumps({"quantization": {"quant_algo": "FP8", "exclude_modules": ["lm_head"]}}))
    for path in (tmp_path, tmp_path / "config.json"):
        model = load_model(str(path))
        assert model.weights is not None and model.weights.name == "fp8"
        assert model.weight_bytes() / 1e9 == pytest.approx(72.7, rel=0.01)
    beside.write_text("{}")
    with pytest.raises(ConfigError, match="hf_quant_config.json: quantization .* is missing"):
        load_model(str(tmp_path))


def test_a_vision_model_of_older_form_is_its_text_model(tmp_path: Path) -> None:
    """Qwen2.5-VL's first configs hold the text model's fields beside the vision tower."""
    flat = {**config_of("qwen2.5-7b"), "model_type": "qwen2_5_vl", "vision_config": {"depth": 32}}
    (tmp_path / "config.json").write_text(json.dumps(flat))
    model = load_model(str(tmp_path))
    assert num_params(model) == num_params(load_model("qwen2.5-7b"))
    assert "vision_config is left out" in model.remarks[0]


def test_a_text_model_inherits_what_the_config_around_it_says(tmp_path: Path) -> None:
    """`tie_word_embeddings` and `torch_dtype` stand outside of text_config."""
    config = copy.deepcopy(config_of("gemma-3-27b"))
    config["tie_word_embeddings"] = False
    config["torch_dtype"] = "float16"
    (tmp_path / "config.json").write_text(json.dumps(config))
    model = load_model(str(tmp_path))
    assert (model.tied_embeddings, model.dtype) == (False, "float16")


@pytest.mark.parametrize(
    ("name", "target", "parts"),
    [
        ("mixtral-8x7b", "re:.*block_sparse_moe.experts.*", {"experts"}),
        ("deepseek-v2-lite", r"re:.*mlp\.experts.*", {"experts"}),
        ("qwen3-30b-a3b", "re:.*self_attn.*", {"attention"}),
        ("qwen3-30b-a3b", "Linear", {"attention", "dense", "experts"}),
    ],
)
def test_groups_are_of_what_they_target(tmp_path: Path, name: str, target: str, parts: set[str]) -> None:
    """By the names that a family has for its modules."""
    (tmp_path / "config.json").write_text(json.dumps({**config_of(name), **grouped(INT4, target)}))
    form = load_model(str(tmp_path)).weights
    there = frozenset[str]().union(*(layer.parts for layer, _ in load_model(name).layers))
    assert form is not None and form.parts & there == parts & there
