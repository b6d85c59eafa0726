"""Conversion of a GGUF file's metadata to `config.json`, for the supported families.

Law: an unknown family, type of tensor, or field that changes the computation is refused by name before any
weight is read.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

from sundog.runtime.checkpoint.gguf.header import GgufFile

SERVED_KINDS = (
    "F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K",
)  # fmt: skip
"""Supported types of tensors; mixtures like Q4_K_M contain several."""
EMBEDDING, HEAD, FACTORS = "token_embd.weight", "output.weight", "rope_freqs.weight"
MOST_LAYERS, MOST_WIDTH, MOST_HEADS, MOST_CONTEXT = 10_000, 2**20, 2**16, 2**27
GEMMA_27B = {"gemma2": 46, "gemma3": 62}
"""Number of layers by which llama.cpp recognises models that scale queries by hidden width over heads."""
THETA, THETA_OF_LONG = 10_000.0, 1_000_000.0
Config = dict[str, object]


def config_of(file: GgufFile) -> Config:
    """Return the configuration; LoadError names what is not supported."""
    family = file.architecture
    if family not in FAMILIES:
        raise file.wrong(f"its architecture is {family}; {', '.join(FAMILIES)} are served")
    for tensor in file.tensors.values():
        if "_exps." in tensor.name:
            raise file.wrong(f"{tensor.name} belongs to experts, which are not supported in GGUF files")
        if tensor.kind not in SERVED_KINDS:
            raise file.wrong(f"{tensor.name} is stored as {tensor.kind}; {', '.join(SERVED_KINDS)} are read")
    if EMBEDDING not in file.tensors:
        raise file.wrong(f"it has no {EMBEDDING}")
    shape = FAMILIES[family]
    config = _common(file, family) | {
        "model_type": shape.model_type,
        "architectures": [shape.architecture],
        "rope_parameters": _rope(file, family, shape.theta),
    }
    return config | shape.more(file, config)


def _common(file: GgufFile, family: str) -> Config:
    def whole(name: str, most: int, default: int | None = None) -> int:
        return file.whole(f"{family}.{name}", 1, most, default)

    width, heads = whole("embedding_length", MOST_WIDTH), whole("attention.head_count", MOST_HEADS)
    head_dim = whole("attention.key_length", MOST_WIDTH, width // heads or None)
    if whole("attention.value_length", MOST_WIDTH, head_dim) != head_dim:
        raise file.wrong("its keys and values have heads of two sizes")
    if whole("rope.dimension_count", MOST_WIDTH, head_dim) != head_dim:
        raise file.wrong("rotary embeddings cover only a part of each head")
    return {
        "hidden_size": width,
        "num_hidden_layers": whole("block_count", MOST_LAYERS),
        "num_attention_heads": heads,
        "num_key_value_heads": whole("attention.head_count_kv", MOST_HEADS, heads),
        "head_dim": head_dim,
        "intermediate_size": whole("feed_forward_length", 2**24),
        "max_position_embeddings": whole("context_length", MOST_CONTEXT),
        "rms_norm_eps": file.real(f"{family}.attention.layer_norm_rms_epsilon"),
        "vocab_size": file.tensors[EMBEDDING].shape[0],
        "tie_word_embeddings": HEAD not in file.tensors,
        "dtype": _dtype(file),
    }


def _dtype(file: GgufFile) -> str:
    """Return the type of all matrices if they share one of 16 or 32 bits; else bfloat16, to which they are
    converted.
    """
    kinds = {tensor.kind for tensor in file.tensors.values() if len(tensor.shape) > 1}
    return {frozenset({"F16"}): "float16", frozenset({"F32"}): "float32"}.get(frozenset(kinds), "bfloat16")


def _rope(file: GgufFile, family: str, theta: float) -> Config:
    theta = file.real(f"{family}.rope.freq_base", theta)
    scaling = file.fields.get(f"{family}.rope.scaling.type", "none")
    found: Config = {"rope_type": "default", "rope_theta": theta}
    if scaling in ("linear", "yarn"):
        found["rope_type"] = scaling
        found["factor"] = file.real(f"{family}.rope.scaling.factor")
    elif scaling != "none":
        raise file.wrong(f"{family}.rope.scaling.type is {scaling}; linear and yarn are served")
    if scaling == "yarn":
        original = f"{family}.rope.scaling.original_context_length"
        found["original_max_position_embeddings"] = file.whole(original, 1, MOST_CONTEXT)
    return found


def _llama(file: GgufFile, config: Config) -> Config:
    if "llama.attention.sliding_window" in file.fields:
        raise file.wrong("llama.attention.sliding_window is not served")
    return {"attention_bias": "blk.0.attn_q.bias" in file.tensors}


def _qwen2(file: GgufFile, config: Config) -> Config:
    head_dim = int(str(config["hidden_size"])) // int(str(config["num_attention_heads"]))
    if config["head_dim"] != head_dim:
        raise file.wrong(f"its heads have {config['head_dim']} numbers, and those of Qwen2 {head_dim}")
    return _qwen3(file, config)


def _qwen3(file: GgufFile, config: Config) -> Config:
    return {"use_sliding_window": False}


def _gemma(file: GgufFile, config: Config) -> Config:
    return {"hidden_act": "gelu_pytorch_tanh"}


def _query_scale(family: str, config: Config) -> int:
    width, heads = int(str(config["hidden_size"])), int(str(config["num_attention_heads"]))
    is_27b = config["num_hidden_layers"] == GEMMA_27B[family]
    return width // heads if is_27b else int(str(config["head_dim"]))


def _layer_types(config: Config, every: int) -> list[str]:
    layers = range(1, int(str(config["num_hidden_layers"])) + 1)
    return ["full_attention" if layer % every == 0 else "sliding_attention" for layer in layers]


def _gemma2(file: GgufFile, config: Config) -> Config:
    return {
        "hidden_activation": "gelu_pytorch_tanh",
        "attn_logit_softcapping": file.real("gemma2.attn_logit_softcapping", 50.0),
        "final_logit_softcapping": file.real("gemma2.final_logit_softcapping", 30.0),
        "sliding_window": file.whole("gemma2.attention.sliding_window", 1, MOST_CONTEXT, 4096),
        "layer_types": _layer_types(config, 2),
        "query_pre_attn_scalar": _query_scale("gemma2", config),
    }


def _gemma3(file: GgufFile, config: Config) -> Config:
    near = file.real("gemma3.rope.freq_base_swa", THETA)
    found: Config = {
        "hidden_activation": "gelu_pytorch_tanh",
        "sliding_window": file.whole("gemma3.attention.sliding_window", 1, MOST_CONTEXT),
        "layer_types": _layer_types(config, 6),
        "query_pre_attn_scalar": _query_scale("gemma3", config),
        "rope_parameters": {
            "sliding_attention": {"rope_type": "default", "rope_theta": near},
            "full_attention": config["rope_parameters"],
        },
    }
    if "gemma3.final_logit_softcapping" in file.fields:
        found["final_logit_softcapping"] = file.real("gemma3.final_logit_softcapping")
    return found


@dataclass(frozen=True, slots=True)
class GgufFamily:
    """What distinguishes a family's configuration; `theta` is the base of rotary frequencies by default."""

    model_type: str
    architecture: str
    theta: float
    more: Callable[[GgufFile, Config], Config]


FAMILIES = {
    "llama": GgufFamily("llama", "LlamaForCausalLM", THETA, _llama),
    "qwen2": GgufFamily("qwen2", "Qwen2ForCausalLM", THETA_OF_LONG, _qwen2),
    "qwen3": GgufFamily("qwen3", "Qwen3ForCausalLM", THETA_OF_LONG, _qwen3),
    "gemma": GgufFamily("gemma", "GemmaForCausalLM", THETA, _gemma),
    "gemma2": GgufFamily("gemma2", "Gemma2ForCausalLM", THETA, _gemma2),
    "gemma3": GgufFamily("gemma3_text", "Gemma3ForCausalLM", THETA_OF_LONG, _gemma3),
}


def with_factors(config: Config, factors: list[float]) -> Config:
    """Return the configuration with these divisors of rotary frequencies, as type "longrope"."""
    rope = config["rope_parameters"]
    assert isinstance(rope, dict)
    wanted, context = int(str(config["head_dim"])) // 2, config["max_position_embeddings"]
    if len(factors) != wanted or not all(0 < each < math.inf for each in factors):
        raise ValueError(f"{FACTORS} has not {wanted} positive numbers")
    turned = {
        "rope_type": "longrope",
        "rope_theta": rope["rope_theta"],
        "short_factor": factors,
        "long_factor": factors,
        "attention_factor": 1.0,
        "original_max_position_embeddings": context,
    }
    return config | {"rope_parameters": turned}
