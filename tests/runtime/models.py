"""Small random models whose greedy answers vary, of every architecture that is served."""

import random
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

VOCAB_SIZE = 256

# An untied head with a large init gives varied tokens with clear gaps between the best two.
COMMON: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "tie_word_embeddings": False,
    "initializer_range": 0.12,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": None,
}
NARROW = {"head_dim": 16}
WINDOW = {"sliding_window": 12}
YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 128}
LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "short_factor": [1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.7],
    "long_factor": [1.0, 1.5, 2.5, 4.0, 6.0, 8.0, 12.0, 16.0],
    "original_max_position_embeddings": 64,
}
LATENT = {
    "q_lora_rank": 32,
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 16,
    "num_key_value_heads": 4,
}
ARCHITECTURES: dict[str, dict[str, Any]] = {
    "llama": {},
    "qwen3": NARROW,
    "mistral": WINDOW,
    "qwen2": {},
    "gemma2": {**NARROW, **WINDOW, "query_pre_attn_scalar": 16},
    "gemma3_text": {**NARROW, **WINDOW, "query_pre_attn_scalar": 16},
    "phi3": {},
    "olmo2": {},
    "granite": {},
    "mixtral": {"num_local_experts": 4},
    "qwen3_moe": {**NARROW, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32},
    "gpt_oss": {
        **NARROW,
        **WINDOW,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "rope_parameters": YARN,
    },
    "starcoder2": {},
    "glm4": NARROW,
    "cohere2": WINDOW,
    "smollm3": {},
    "gpt2": {"n_embd": 64, "n_layer": 3, "n_head": 4, "n_positions": 512},
    "gpt_neox": {},
    "deepseek_v3": {
        **LATENT,
        "n_routed_experts": 4,
        "n_shared_experts": 1,
        "num_experts_per_tok": 2,
        "n_group": 1,
        "topk_group": 1,
        "first_k_dense_replace": 1,
        "moe_intermediate_size": 32,
    },
}


def build_model(architecture: str, folder: Path, **changed: Any) -> PreTrainedModel:
    """A float32 model with random weights, saved to `folder` too, with these fields of its configuration."""
    settings = {**COMMON, **ARCHITECTURES[architecture], **changed}
    if architecture == "gpt2":
        for name in ("hidden_size", "num_hidden_layers", "num_attention_heads"):
            del settings[name]
        del settings["intermediate_size"], settings["max_position_embeddings"]
    torch.manual_seed(0)
    config = AutoConfig.for_model(architecture, **settings)
    model = AutoModelForCausalLM.from_config(config).float().eval()
    model.generation_config.eos_token_id = None
    model.save_pretrained(folder)
    return model


def stir_choices(model: PreTrainedModel) -> None:
    """Give routers a bias that only chooses, where they have one: at first it is 0."""
    with torch.no_grad():
        for name, buffer in model.named_buffers():
            if name.endswith("correction_bias"):
                buffer.normal_(0, 0.1)


def random_prompt(seed: int, num_tokens: int) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(3, VOCAB_SIZE) for _ in range(num_tokens)]


def generate(model: PreTrainedModel, prompt: list[int], num_tokens: int) -> list[int]:
    """What the library's own greedy loop answers."""
    ids = torch.tensor([prompt])
    out = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=num_tokens,
        min_new_tokens=num_tokens,
        do_sample=False,
    )
    return out[0, len(prompt) :].tolist()
