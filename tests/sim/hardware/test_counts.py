"""Parameters of every family, at random sizes, equal those of transformers' models without weights."""

import json
import random
from typing import Any

import pytest

from sundog.sim.hardware.families import FAMILIES
from sundog.sim.hardware.model import shape_of
from tests.sim.hardware.params import num_params

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

NOT_THERE = {"mimo", "kimi_k2", "internlm2", "internlm3", "baichuan", "chatglm"}
"""Families whose classes come with their checkpoints."""
WITH_EYES = {"qwen2_vl_text", "qwen2_5_vl_text", "qwen3_vl_text", "qwen3_vl_moe_text"}
"""Text models that transformers does not build alone: their layers are those of the plain families."""
NOT_COUNTED = {"phimoe": 1200, "stablelm": 1200, "ernie4_5_moe": 64}
"""A bias of the last norm and of the output head; one number for each expert."""


def drawn(kind: str, seed: int) -> dict[str, Any]:
    """The fields of a small model: those that all families share, and the experts of those that route."""
    rng = random.Random(f"{kind} {seed}")
    heads = rng.choice([4, 8])
    experts = rng.choice([4, 8])
    config = {
        "hidden_size": 64 * rng.choice([1, 2, 3]),
        "num_hidden_layers": rng.choice([4, 8]),
        "num_attention_heads": heads,
        "num_key_value_heads": rng.choice([2, 4]),
        "head_dim": rng.choice([16, 32]),
        "intermediate_size": rng.choice([96, 160]),
        "intermediate_size_mlp": 192,
        "vocab_size": 1000,
        "moe_intermediate_size": 48,
        "num_experts_per_tok": rng.choice([1, 2]),
        "shared_expert_intermediate_size": 40,
        "shared_intermediate_size": rng.choice([40, 56]),
        "n_shared_experts": rng.choice([1, 2]),
        "first_k_dense_replace": rng.choice([0, 1, 2]),
        "q_lora_rank": rng.choice([None, 24]),
        "kv_lora_rank": 32,
        "qk_nope_head_dim": 16,
        "qk_rope_head_dim": 8,
        "v_head_dim": 16,
        "n_group": 1,
        "topk_group": 1,
        "moe_num_experts": experts,
        "moe_k": 2,
        "moe_layer_start_index": 1,
        "moe_layer_end_index": -1,
        "tie_word_embeddings": rng.random() < 0.5,
        "attention_bias": rng.random() < 0.5,
        "use_qk_norm": kind == "hunyuan_v1_dense" or rng.random() < 0.5,
    }
    if kind == "granitemoehybrid":
        config["layer_types"] = ["attention"] * config["num_hidden_layers"]
    key = {"qwen2_moe": "num_experts", "qwen3_moe": "num_experts", "olmoe": "num_experts"}.get(kind)
    routed = "n_routed_experts" if FAMILIES[kind].latent else key or "num_local_experts"
    if kind in ("qwen3_next", "qwen3_5_moe_text", "qwen3_5_text"):
        routed = "num_experts"
        config |= {"linear_num_key_heads": 2, "linear_num_value_heads": rng.choice([2, 4])}
        config |= {"linear_key_head_dim": 16, "linear_value_head_dim": 24, "attention_bias": False}
    if FAMILIES[kind].indexed:
        config |= {"q_lora_rank": 24, "index_topk": 16, "index_n_heads": 4, "index_head_dim": 16}
    if kind in ("glm4_moe", "dots1", "solar_open"):
        routed = "n_routed_experts"
    config[routed] = experts
    for unused in ("head_dim",) if kind in ("mixtral", "phimoe", "olmoe", "qwen2_moe", "stablelm") else ():
        del config[unused]
    return config


@pytest.mark.long(keep=12, reason="more models of the law that `make test` states of some")
@pytest.mark.parametrize("kind", sorted(set(FAMILIES) - NOT_THERE - WITH_EYES))
def test_parameters_are_those_of_the_model_in_transformers(kind: str) -> None:
    """Exactly, in models of a few sizes each."""
    known = set(transformers.AutoConfig.for_model(kind).to_dict())
    for seed in range(3):
        fields = {
            key: value for key, value in drawn(kind, seed).items() if key in known or key == "use_qk_norm"
        }
        fields |= {key: 0 for key in ("pad_token_id", "bos_token_id", "eos_token_id")}
        config = transformers.AutoConfig.for_model(kind, **fields)
        with torch.device("meta"):
            model = transformers.AutoModelForCausalLM.from_config(config)
        counted = sum(parameter.numel() for parameter in model.parameters())
        shape = shape_of(json.dumps({"model_type": kind, **config.to_dict()}, default=str), kind)
        assert 0 <= counted - num_params(shape) <= NOT_COUNTED.get(kind, 0), fields
