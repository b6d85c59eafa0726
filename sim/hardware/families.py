"""The families of models whose layers are known, each as what it adds to a Llama.

A family is what transformers calls `model_type`. Sources: the model classes of transformers 4.57 and
the config.json of each family's checkpoints.
"""

from collections.abc import Callable
from dataclasses import field
from typing import Any

from actors.core.config import ConfigError
from actors.core.records import dataclass
from sim.hardware.fields import Fields
from sim.hardware.layers import Experts, Heads, Latent, Layer, Mlp
from sim.hardware.windows import (
    chunks_where_rope,
    every_other,
    every_sixth_is_full,
    from_layer,
    in_all_layers,
    no_window,
)


def dense(fields: Fields, index: int) -> Mlp | Experts:
    """A gated MLP."""
    return Mlp(fields.count("intermediate_size"))


def mixtral_experts(fields: Fields, index: int) -> Mlp | Experts:
    """Experts in every layer (Mixtral, gpt-oss)."""
    return _experts(fields, fields.count("intermediate_size"), "num_local_experts")


def qwen_experts(fields: Fields, index: int) -> Mlp | Experts:
    """Experts in every n-th layer, with one that all tokens share in Qwen2-MoE."""
    only_dense = fields.get("mlp_only_layers") or []
    if not isinstance(only_dense, list):
        raise ConfigError(f"{fields.source}: mlp_only_layers must be a list of layers")
    if index in only_dense or (index + 1) % fields.count("decoder_sparse_step", 1):
        return dense(fields, index)
    inner = fields.count("moe_intermediate_size")
    shared = fields.maybe("shared_expert_intermediate_size") or 0
    return _experts(fields, inner, "num_experts", shared, gates_shared=shared > 0)


def deepseek_experts(fields: Fields, index: int) -> Mlp | Experts:
    """Dense layers first, then routed experts beside shared ones (DeepSeek, Kimi, GLM)."""
    if index < fields.count("first_k_dense_replace", 0, least=0) or index % fields.count("moe_layer_freq", 1):
        return dense(fields, index)
    inner = fields.count("moe_intermediate_size")
    return _experts(fields, inner, "n_routed_experts", inner * fields.count("n_shared_experts", 0, least=0))


def llama4_experts(fields: Fields, index: int) -> Mlp | Experts:
    """In every n-th layer routed experts beside one of the same width that all share, else a wider MLP."""
    step, listed = fields.count("interleave_moe_layer_step", 1, least=0), fields.get("moe_layers")
    if listed is not None and not isinstance(listed, list):
        raise ConfigError(f"{fields.source}: moe_layers must be a list of layers")
    if not (step and (index + 1) % step == 0 if listed is None else index in listed):
        return Mlp(fields.count("intermediate_size_mlp"))
    inner = fields.count("intermediate_size")
    return _experts(fields, inner, "num_local_experts", inner)


def _experts(fields: Fields, inner: int, key: str, shared: int = 0, *, gates_shared: bool = False) -> Experts:
    num = fields.count(key, most=100_000)
    return Experts(inner, num, fields.count("num_experts_per_tok", most=num), shared, gates_shared)


@dataclass(frozen=True, slots=True)
class Family:
    """How the layers of a family differ from those of Llama.

    `num_norms` of the hidden size in a layer; `query_key_norms` of each `head`, of all heads
    together (`full`), of a head where `use_qk_norm` is set (`asked`), or `no`. `qkv_bias` None has it
    as `attention_bias` says, and `output_bias` the same. `defaults` stand for fields that the
    family's configs leave out. Windows that are `chunked` begin at whole multiples of themselves.
    """

    mlp: Callable[[Fields, int], Mlp | Experts] = dense
    windows: Callable[[Fields], list[int | None]] = no_window
    num_norms: int = 2
    query_key_norms: str = "no"
    qkv_bias: bool | None = None
    output_bias: bool = True
    expert_bias: bool = False
    latent: bool = False
    chunked: bool = False
    defaults: dict[str, Any] = field(default_factory=dict)


GEMMA = {"tie_word_embeddings": True, "max_position_embeddings": 8192, "vocab_size": 256000}
GEMMA3 = {
    "tie_word_embeddings": True,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "vocab_size": 262208,
    "max_position_embeddings": 131072,
    "sliding_window": 4096,
}
LLAMA4 = {"num_experts_per_tok": 1, "intermediate_size_mlp": 16384}
DEEPSEEK = Family(deepseek_experts, latent=True)
GEMMA3_FAMILY = Family(windows=every_sixth_is_full, num_norms=4, query_key_norms="head", defaults=GEMMA3)

FAMILIES: dict[str, Family] = {
    "llama": Family(),
    "mistral": Family(windows=in_all_layers),
    "qwen2": Family(windows=from_layer, qkv_bias=True, output_bias=False),
    "qwen3": Family(windows=from_layer, query_key_norms="head"),
    "qwen2_moe": Family(qwen_experts, from_layer, qkv_bias=True, output_bias=False),
    "qwen3_moe": Family(qwen_experts, from_layer, query_key_norms="head"),
    "mixtral": Family(mixtral_experts, in_all_layers),
    "deepseek_v2": DEEPSEEK,
    "deepseek_v3": DEEPSEEK,
    "kimi_k2": DEEPSEEK,
    "gpt_oss": Family(
        mixtral_experts, every_other, qkv_bias=True, expert_bias=True, defaults={"sliding_window": 128}
    ),
    "gemma2": Family(windows=every_other, num_norms=4, defaults={**GEMMA, "sliding_window": 4096}),
    "gemma3_text": GEMMA3_FAMILY,
    "phi3": Family(windows=in_all_layers),
    "olmo2": Family(query_key_norms="full"),
    "granite": Family(),
    "llama4_text": Family(llama4_experts, chunks_where_rope, chunked=True, defaults=LLAMA4),
    "glm": Family(output_bias=False),
    "glm4": Family(num_norms=4, output_bias=False),
    "glm4_moe": Family(deepseek_experts, query_key_norms="asked", output_bias=False),
}


def layers_of(family: Family, fields: Fields) -> list[Layer]:
    """Every layer in order."""
    windows = family.windows(fields)
    heads = _latent(fields) if family.latent else _heads(family, fields)
    return [_layer(family, fields, heads, index, window) for index, window in enumerate(windows)]


def _layer(
    family: Family, fields: Fields, attention: Heads | Latent, index: int, window: int | None
) -> Layer:
    hidden = fields.count("hidden_size")
    mlp = family.mlp(fields, index)
    small = family.num_norms * hidden
    if isinstance(attention, Latent):
        small += attention.kv_rank + (attention.query_rank or 0)
        return Layer(attention, mlp, small)
    dim, kv_width = attention.head_dim, attention.num_kv_heads * attention.head_dim
    if attention.has_norms:
        small += 2 * dim if family.query_key_norms != "full" else attention.num_heads * dim + kv_width
    if fields.flag("attention_bias") if family.qkv_bias is None else family.qkv_bias:
        small += attention.num_heads * dim + 2 * kv_width
        small += hidden if family.output_bias else 0
    if fields.flag("mlp_bias"):
        small += 2 * mlp.inner + hidden
    if family.expert_bias:
        small += attention.num_heads + mlp.num_experts * (2 * mlp.inner + hidden + 1)
    if window is not None:
        heads, kv_heads = attention.num_heads, attention.num_kv_heads
        attention = Heads(heads, kv_heads, dim, window, attention.has_norms, family.chunked)
    return Layer(attention, mlp, small)


def _heads(family: Family, fields: Fields) -> Heads:
    heads, hidden = fields.count("num_attention_heads"), fields.count("hidden_size")
    kv_heads = fields.count("num_key_value_heads", heads)
    if heads % kv_heads:
        raise ConfigError(
            f"{fields.source}: num_key_value_heads is {kv_heads}: it must divide the {heads} attention heads"
        )
    if fields.get("head_dim") is None and hidden % heads:
        raise ConfigError(
            f"{fields.source}: num_attention_heads is {heads}: it must divide hidden_size ({hidden}),"
            " or head_dim must be given"
        )
    norms = family.query_key_norms
    has_norms = fields.flag("use_qk_norm") if norms == "asked" else norms != "no"
    return Heads(heads, kv_heads, fields.count("head_dim", max(hidden // heads, 1)), None, has_norms)


def _latent(fields: Fields) -> Latent:
    return Latent(
        fields.count("num_attention_heads"),
        fields.maybe("q_lora_rank"),
        fields.count("kv_lora_rank"),
        fields.count("qk_nope_head_dim"),
        fields.count("qk_rope_head_dim"),
        fields.count("v_head_dim"),
    )
