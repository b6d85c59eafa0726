"""From a Hugging Face config.json to the shape of the model in it.

Law: what is not known is refused by name. A family that is not in `families.py`, or a field that
gives a model layers of another kind, is never priced as something like it.
"""

from collections import Counter
from typing import Any

from actors.core.config import ConfigError
from sim.hardware.families import FAMILIES, layers_of
from sim.hardware.fields import Fields, config_of
from sim.hardware.formats import dtype_name
from sim.hardware.quantization import format_in
from sim.hardware.shape import ModelShape

INHERITED = ("torch_dtype", "dtype", "quantization_config", "tie_word_embeddings")
"""What a config around a `text_config` says of both."""
TOWERS = ("vision_config", "audio_config", "speech_config")

UNPRICED = {
    "is_encoder_decoder": "an encoder and cross-attention",
    "cross_attention_layers": "cross-attention layers",
    "linear_attn_config": "linear-attention layers",
    "linear_num_key_heads": "linear-attention layers",
    "full_attention_interval": "linear-attention layers",
    "attn_type_list": "layers of several kinds of attention",
    "hybrid_override_pattern": "state-space layers",
    "layers_block_type": "state-space layers",
    "attn_layer_period": "state-space layers",
    "mamba_d_state": "state-space layers",
    "mamba_d_ssm": "state-space layers",
    "ssm_cfg": "state-space layers",
    "state_size": "state-space layers",
    "block_types": "recurrent layers",
    "num_kv_shared_layers": "layers that share keys and values",
    "num_kv_shared_layer": "layers that share keys and values",
    "index_topk": "sparse attention that chooses its keys",
    "sparse_attention_config": "sparse attention that chooses its keys",
    "attention_chunk_size": "chunked local attention",
    "block_configs": "layers of different sizes",
    "n_routed_experts": "routed experts",
    "num_local_experts": "routed experts",
    "num_experts": "routed experts",
    "kv_lora_rank": "latent attention",
}
"""Fields that give a model layers of another kind, where its family does not have them."""
OWN = {
    "qwen2_moe": {"num_experts"},
    "qwen3_moe": {"num_experts"},
    "mixtral": {"num_local_experts"},
    "gpt_oss": {"num_local_experts", "num_experts"},
    "deepseek_v2": {"n_routed_experts", "kv_lora_rank"},
    "deepseek_v3": {"n_routed_experts", "kv_lora_rank"},
    "kimi_k2": {"n_routed_experts", "kv_lora_rank"},
    "glm4_moe": {"n_routed_experts"},
    "llama4_text": {"num_local_experts", "attention_chunk_size"},
}
NONE_IF_NULL = ("attention_chunk_size",)
"""Where null stands for none, and not for the default."""
REASONS = {
    "llama4": "its layers are those of its text_config, which is missing",
    "qwen3_next": "three of four layers have linear attention",
    "deepseek_v32": "its attention chooses the keys it reads",
    "bert": "it is an encoder",
    "t5": "it has an encoder and cross-attention",
    "whisper": "it has an encoder and cross-attention",
    **dict.fromkeys(("mamba", "mamba2", "falcon_mamba"), "its layers are state-space layers"),
    **dict.fromkeys(
        ("jamba", "bamba", "nemotron_h", "zamba2", "granitemoehybrid"), "it has state-space layers"
    ),
    **dict.fromkeys(("rwkv", "recurrent_gemma"), "it has recurrent layers"),
    **dict.fromkeys(("minimax", "minimax_text_01"), "it has linear-attention layers"),
}
"""Why a family that may be asked for is not priced."""


def shape_of(text: str, source: str, name: str | None = None) -> ModelShape:
    """The shape in the text of a config.json; `source` names it in errors."""
    outer = config_of(text, source)
    config, remarks = _text_part(outer, source)
    kind = _kind(config, source)
    family = FAMILIES[kind]
    fields = Fields({**family.defaults, **_present(config)}, source)
    _refuse_unpriced(fields, kind)
    layers = layers_of(family, fields)
    if fields.get("num_nextn_predict_layers"):
        remarks.append(
            "its layers for predicting further tokens are left out: they are not served by default"
        )
    weights, left_out = format_in(fields)
    kinds = Counter(layers)
    places = {layer: place for place, layer in enumerate(kinds)}
    return ModelShape(
        name=name or _own_name(outer) or source,
        layers=tuple(kinds.items()),
        hidden_size=fields.count("hidden_size"),
        vocab_size=fields.count("vocab_size"),
        max_positions=fields.count("max_position_embeddings"),
        tied_embeddings=fields.flag("tie_word_embeddings"),
        dtype=dtype_name(_dtype(fields)),
        weights=weights,
        remarks=tuple(remarks + left_out),
        order=tuple(places[layer] for layer in layers) if len(kinds) > 1 else (),
    )


def _text_part(config: dict[str, Any], source: str) -> tuple[dict[str, Any], list[str]]:
    """The decoder of a model that also sees or hears, and what is left out of it."""
    inner = config.get("text_config")
    if inner is None:
        if any(config.get(key) is not None for key in TOWERS):
            raise ConfigError(
                f"{source}: it has {_first(config, TOWERS)} and no text_config: models that see or hear"
                " are priced by their text_config"
            )
        return config, []
    if not isinstance(inner, dict):
        raise ConfigError(f"{source}: text_config is not an object")
    if "text_config" in inner:
        raise ConfigError(f"{source}: text_config holds another text_config: give the inner one")
    if config.get("is_encoder_decoder"):
        raise ConfigError(f"{source}: is_encoder_decoder: the cost model does not know an encoder")
    inherited = {key: config[key] for key in INHERITED if config.get(key) is not None}
    remarks = []
    if any(config.get(key) is not None for key in TOWERS):
        remarks.append(f"only its text model is priced: {_first(config, TOWERS)} is left out")
    return {**inherited, **_present(inner)}, remarks


def _first(config: dict[str, Any], keys: tuple[str, ...]) -> str:
    return next(key for key in keys if config.get(key) is not None)


def _present(config: dict[str, Any]) -> dict[str, Any]:
    nones = {key: 0 for key in NONE_IF_NULL if key in config}
    return nones | {key: value for key, value in config.items() if value is not None}


def _kind(config: dict[str, Any], source: str) -> str:
    kind = config.get("model_type")
    if kind is None:
        raise ConfigError(f"{source}: model_type is missing: known are {', '.join(sorted(FAMILIES))}")
    if isinstance(kind, str) and kind in FAMILIES:
        return kind
    why = REASONS.get(kind) if isinstance(kind, str) else None
    raise ConfigError(
        f"{source}: model_type is {kind!r}, which the cost model does not know"
        + (f": {why}; " if why else "; if its layers are those of a known family, write that one there; ")
        + f"known are {', '.join(sorted(FAMILIES))}"
    )


def _refuse_unpriced(fields: Fields, kind: str) -> None:
    for key, what in UNPRICED.items():
        value = fields.get(key)
        if key in OWN.get(kind, ()) or not value:
            continue
        if key in ("num_local_experts", "num_experts", "n_routed_experts") and value == 1:
            continue
        raise ConfigError(
            f"{fields.source}: {key} is {value!r:.60}: {what} are not known of model_type {kind!r},"
            " and the cost model would take them for something else"
        )


def _own_name(config: dict[str, Any]) -> str | None:
    name = config.get("_name_or_path")
    return name if isinstance(name, str) and name else None


def _dtype(fields: Fields) -> str:
    return str(fields.get("torch_dtype") or fields.get("dtype") or "bfloat16")
