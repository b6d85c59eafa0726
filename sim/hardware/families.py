"""Known families of models, each by its differences from a Llama.

A family is transformers' `model_type`. Sources: the model classes of transformers 4.57 and the config.json of
each family's checkpoints.
"""

from collections.abc import Callable
from dataclasses import field, replace
from typing import Any

from sundog.actors.core.config import ConfigError
from sundog.actors.core.records import dataclass
from sundog.sim.hardware.attention import GatedDelta, Heads, Indexer, Latent
from sundog.sim.hardware.fields import (
    Fields,
    attention_in_all_layers,
    by_pattern,
    chunks_where_rope,
    deepseek_experts,
    dense,
    ernie_experts,
    every_nth_is_full,
    every_other,
    from_layer,
    from_layer_if_any,
    granite_experts,
    in_all_layers,
    indexed_in_all_layers,
    linear_layers,
    llama4_experts,
    minimax_experts,
    mixtral_experts,
    no_window,
    qwen_experts,
)
from sundog.sim.hardware.formats import DTYPE_BYTES, dtype_name
from sundog.sim.hardware.shape import Experts, Layer, Mlp


@dataclass(frozen=True, slots=True)
class Family:
    """Differences between the layers of a model family and Llama's.

    `num_norms` counts the norms of hidden size per layer (`norm_bias`: each has a bias). `query_key_norms`
    are per `head`, over all heads (`full`), or `no`; with `norms_key` only if that field is set. `qkv_bias`
    and `output_bias` None follow `attention_bias`, a name follows that field. `gated`: queries have gates.
    `norms_all`: norms need the sums of all ranks. `indexed`: latents have an indexer. `linear`: most layers
    use a gated delta rule. `renames` maps the family's names of fields to Llama's; `defaults` replace fields
    that its configs omit, `nested` those that its text_config omits. `chunked`: windows begin at multiples of
    their size.
    """

    mlp: Callable[[Fields, int], Mlp | Experts] = dense
    windows: Callable[[Fields], list[int | None]] = no_window
    num_norms: int = 2
    norm_bias: bool = False
    query_key_norms: str = "no"
    norms_key: str | None = None
    qkv_bias: bool | None = None
    output_bias: bool | str = True
    expert_bias: bool = False
    latent: bool = False
    indexed: bool = False
    linear: bool = False
    gated: bool = False
    norms_all: bool = False
    chunked: bool = False
    defaults: dict[str, Any] = field(default_factory=dict)
    nested: dict[str, Any] = field(default_factory=dict)
    renames: dict[str, str] = field(default_factory=dict)

    @property
    def has_experts(self) -> bool:
        """Whether layers of this family may have experts."""
        return self.mlp is not dense


TIED = {"tie_word_embeddings": True}
GEMMA = {**TIED, "max_position_embeddings": 8192, "vocab_size": 256000}
GEMMA3 = {
    **TIED,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "vocab_size": 262208,
    "max_position_embeddings": 131072,
    "sliding_window": 4096,
}
LLAMA4 = {"num_experts_per_tok": 1, "intermediate_size_mlp": 16384}
SEVEN_B = {"hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32, "vocab_size": 32000}
LLAMA_NESTED = {**SEVEN_B, "intermediate_size": 11008, "max_position_embeddings": 2048}
MISTRAL_NESTED = {
    **SEVEN_B,
    "intermediate_size": 14336,
    "num_key_value_heads": 8,
    "max_position_embeddings": 131072,
}
"""Fields that transformers leaves out of a text_config when they have the class's defaults."""
COHERE = {**TIED, "max_position_embeddings": 8192}
PATTERN_OF_FOUR = {"sliding_window": 4096, "sliding_window_pattern": 4}
CHATGLM = {
    "num_layers": "num_hidden_layers",
    "ffn_hidden_size": "intermediate_size",
    "multi_query_group_num": "num_key_value_heads",
    "padded_vocab_size": "vocab_size",
    "seq_length": "max_position_embeddings",
    "kv_channels": "head_dim",
    "add_qkv_bias": "attention_bias",
    "add_bias_linear": "mlp_bias",
}
DEEPSEEK = Family(deepseek_experts, latent=True)
INDEXED = {"index_topk": 2048, "index_head_dim": 128, "first_k_dense_replace": 3}
SPARSE = Family(
    deepseek_experts,
    indexed_in_all_layers,
    latent=True,
    indexed=True,
    defaults={**INDEXED, "index_n_heads": 64},
)
SPARSE_GLM = replace(SPARSE, defaults={**INDEXED, "index_n_heads": 32})
NEXT = Family(qwen_experts, query_key_norms="head", linear=True, gated=True, output_bias=False)
NEXT_DENSE = Family(query_key_norms="head", linear=True, gated=True, output_bias=False)
GEMMA3_FAMILY = Family(windows=every_nth_is_full, num_norms=4, query_key_norms="head", defaults=GEMMA3)
QWEN2 = Family(windows=from_layer, qkv_bias=True, output_bias=False)
QWEN3 = Family(windows=from_layer, query_key_norms="head")
QWEN3_MOE = Family(qwen_experts, from_layer, query_key_norms="head")
GRANITE_MOE = Family(granite_experts)

FAMILIES: dict[str, Family] = {
    "llama": Family(nested=LLAMA_NESTED),
    "mistral": Family(windows=in_all_layers, nested=MISTRAL_NESTED),
    "ministral": Family(windows=in_all_layers),
    "ministral3": Family(windows=in_all_layers),
    "qwen2": QWEN2,
    "qwen2_vl_text": QWEN2,
    "qwen2_5_vl_text": QWEN2,
    "mimo": QWEN2,
    "qwen3": QWEN3,
    "qwen3_vl_text": QWEN3,
    "qwen2_moe": Family(qwen_experts, from_layer, qkv_bias=True, output_bias=False),
    "qwen3_moe": QWEN3_MOE,
    "qwen3_vl_moe_text": QWEN3_MOE,
    "mixtral": Family(mixtral_experts, in_all_layers),
    "minimax_m2": Family(minimax_experts, query_key_norms="full", norms_all=True),
    "olmoe": Family(mixtral_experts, query_key_norms="full"),
    "phimoe": Family(mixtral_experts, in_all_layers, norm_bias=True),
    "deepseek_v2": DEEPSEEK,
    "deepseek_v3": DEEPSEEK,
    "kimi_k2": DEEPSEEK,
    "glm4_moe_lite": DEEPSEEK,
    "deepseek_v32": SPARSE,
    "glm_moe_dsa": SPARSE_GLM,
    "qwen3_next": NEXT,
    "qwen3_5_moe_text": NEXT,
    "qwen3_5_text": NEXT_DENSE,
    "gpt_oss": Family(
        mixtral_experts,
        every_other,
        expert_bias=True,
        defaults={"sliding_window": 128, "attention_bias": True},
    ),
    "gemma": Family(defaults=GEMMA),
    "gemma2": Family(windows=every_other, num_norms=4, defaults={**GEMMA, "sliding_window": 4096}),
    "gemma3_text": GEMMA3_FAMILY,
    "phi3": Family(windows=in_all_layers),
    "olmo2": Family(query_key_norms="full"),
    "olmo3": Family(windows=every_nth_is_full, query_key_norms="full", defaults=PATTERN_OF_FOUR),
    "granite": Family(),
    "granitemoe": GRANITE_MOE,
    "granitemoeshared": GRANITE_MOE,
    "granitemoehybrid": Family(granite_experts, attention_in_all_layers),
    "llama4_text": Family(llama4_experts, chunks_where_rope, chunked=True, defaults=LLAMA4),
    "glm": Family(output_bias=False),
    "glm4": Family(num_norms=4, output_bias=False),
    "glm4_moe": Family(deepseek_experts, query_key_norms="head", norms_key="use_qk_norm", output_bias=False),
    "solar_open": Family(deepseek_experts, output_bias=False),
    "dots1": Family(deepseek_experts, from_layer_if_any, query_key_norms="head"),
    "ernie4_5": Family(defaults=TIED, renames={"use_bias": "attention_bias"}),
    "ernie4_5_moe": Family(ernie_experts, defaults=TIED, renames={"use_bias": "attention_bias"}),
    "hunyuan_v1_dense": Family(query_key_norms="head", norms_key="use_qk_norm"),
    "seed_oss": Family(output_bias="attention_out_bias", defaults={"attention_bias": True}),
    "smollm3": Family(windows=from_layer, defaults=TIED),
    "exaone4": Family(windows=by_pattern, query_key_norms="head"),
    "cohere": Family(num_norms=1, query_key_norms="full", norms_key="use_qk_norm", defaults=COHERE),
    "cohere2": Family(windows=every_nth_is_full, num_norms=1, defaults={**COHERE, **PATTERN_OF_FOUR}),
    "stablelm": Family(norm_bias=True, output_bias=False, renames={"use_qkv_bias": "attention_bias"}),
    "internlm2": Family(renames={"bias": "attention_bias"}),
    "internlm3": Family(output_bias="bias", renames={"qkv_bias": "attention_bias"}),
    "baichuan": Family(renames={"model_max_length": "max_position_embeddings"}),
    "chatglm": Family(output_bias=False, renames=CHATGLM),
}


def layers_of(family: Family, fields: Fields) -> list[Layer]:
    """Return every layer in order."""
    if family.linear:
        full, rest = _heads(family, fields), _gated_delta(fields)
        kinds = [rest if is_linear else full for is_linear in linear_layers(fields)]
        return [_layer(family, fields, kind, index, None) for index, kind in enumerate(kinds)]
    windows = family.windows(fields)
    heads = _latent(family, fields) if family.latent else _heads(family, fields)
    return [_layer(family, fields, heads, index, window) for index, window in enumerate(windows)]


def _layer(
    family: Family, fields: Fields, attention: Heads | Latent | GatedDelta, index: int, window: int | None
) -> Layer:
    hidden = fields.count("hidden_size")
    mlp = family.mlp(fields, index)
    small = family.num_norms * hidden * (2 if family.norm_bias else 1)
    if isinstance(attention, GatedDelta):
        return Layer(attention, mlp, small + attention.num_small)
    if isinstance(attention, Latent):
        query_rank = attention.query_rank or 0
        small += attention.kv_rank + query_rank + (attention.indexer.num_small if attention.indexer else 0)
        if fields.flag("attention_bias"):
            small += query_rank + attention.kv_rank + attention.rope_dim + hidden
        return Layer(attention, mlp, small)
    dim, kv_width = attention.head_dim, attention.num_kv_heads * attention.head_dim
    if attention.has_norms:
        small += 2 * dim if family.query_key_norms != "full" else attention.num_heads * dim + kv_width
    if fields.flag("attention_bias") if family.qkv_bias is None else family.qkv_bias:
        small += attention.num_heads * dim + 2 * kv_width
        small += hidden if _has_output_bias(family, fields) else 0
    if fields.flag("mlp_bias"):
        small += 2 * mlp.inner + hidden
    if family.expert_bias:
        small += attention.num_heads + mlp.num_experts * (2 * mlp.inner + hidden + 1)
    if window is not None:
        attention = replace(attention, window=window, is_chunked=family.chunked)
    return Layer(attention, mlp, small)


def _has_output_bias(family: Family, fields: Fields) -> bool:
    asked = family.output_bias
    return fields.flag(asked) if isinstance(asked, str) else asked


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
    asked = family.norms_key is None or fields.flag(family.norms_key)
    has_norms = family.query_key_norms != "no" and asked
    dim = fields.count("head_dim", max(hidden // heads, 1))
    options = {"has_norms": has_norms, "has_gate": family.gated, "norms_all": family.norms_all}
    return Heads(heads, kv_heads, dim, **options)


def _gated_delta(fields: Fields) -> GatedDelta:
    state = fields.get("mamba_ssm_dtype")
    return GatedDelta(
        fields.count("linear_num_key_heads"),
        fields.count("linear_num_value_heads"),
        key_dim=fields.count("linear_key_head_dim"),
        value_dim=fields.count("linear_value_head_dim"),
        kernel=fields.count("linear_conv_kernel_dim", 4),
        # vLLM keeps states as activations where the config names no type for them.
        state_bytes=None if state is None else DTYPE_BYTES[dtype_name(str(state))],
    )


def _latent(family: Family, fields: Fields) -> Latent:
    indexer = None
    if family.indexed:
        sizes = ("index_n_heads", "index_head_dim", "index_topk")
        indexer = Indexer(*(fields.count(name) for name in sizes))
    return Latent(
        fields.count("num_attention_heads"),
        fields.maybe("q_lora_rank"),
        kv_rank=fields.count("kv_lora_rank"),
        nope_dim=fields.count("qk_nope_head_dim"),
        rope_dim=fields.count("qk_rope_head_dim"),
        value_dim=fields.count("v_head_dim"),
        indexer=indexer,
    )
