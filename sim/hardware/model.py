"""Models by name, by Hugging Face id, or by the folder or file of their config.json.

Law: an unknown model is refused by name. A family that is not in `families.py`, or a field that gives a model
layers of another kind, is never priced as something similar.
"""

import re
from collections import Counter
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Any

from sundog.actors.config.generation import settings_in
from sundog.actors.config.speculative import SpeculativeConfig
from sundog.actors.core.config import ConfigError
from sundog.actors.core.names import normal, unknown
from sundog.sim.hardware.families import FAMILIES, Family, layers_of
from sundog.sim.hardware.fields import EXPERT_KEYS, Fields, config_of
from sundog.sim.hardware.formats import dtype_name
from sundog.sim.hardware.quantization import format_in, modelopt_of
from sundog.sim.hardware.shape import ModelShape

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
    "use_cla": "layers that share keys and values",
    "index_topk": "layers with sparse attention",
    "index_topk_freq": "layers that share the keys they chose",
    "sparse_attention_config": "layers with sparse attention",
    "attention_chunk_size": "chunked local attention",
    "block_configs": "layers of different sizes",
    "moe_num_experts": "routed experts",
    "n_routed_experts": "routed experts",
    "num_local_experts": "routed experts",
    "num_experts": "routed experts",
    "kv_lora_rank": "latent attention",
}
"""Fields of a config that give a model layers of another kind, unless its family is known to have them."""
LINEAR_KEYS = {"linear_num_key_heads", "full_attention_interval"}
OWN = {
    "deepseek_v32": {"index_topk"},
    "glm_moe_dsa": {"index_topk"},
    **dict.fromkeys(("qwen3_next", "qwen3_5_text", "qwen3_5_moe_text"), LINEAR_KEYS),
    "ernie4_5_moe": {"moe_num_experts"},
    "llama4_text": {"attention_chunk_size"},
    "granitemoehybrid": {"mamba_d_state"},
}
"""Fields among these that certain families do have, in addition to experts and latents, which `Family` lists.
"""
NONE_IF_NULL = ("attention_chunk_size",)
"""Fields for which null means none, not the default."""

WRITE_CHAT_THEMSELVES = ("gpt_oss",)
"""Families whose conversations are written by a library of their own, not by a chat template."""
LINEAR = "most of its layers have linear attention"
STATE_SPACE = "it has state-space layers"
SPARSE = "it has sparse attention"
NO_GATE = "its MLPs have no gate"
REASONS = {
    "llama4": "its layers are those of its text_config, which is missing",
    "bert": "it is an encoder",
    "t5": "it has an encoder and cross-attention",
    "whisper": "it has an encoder and cross-attention",
    "longcat_flash": "each of its layers holds two attentions",
    "step3_text": "its attention factorises queries",
    "dbrx": "its sizes stand in attn_config and ffn_config",
    "grok-1": "it has no config.json of the usual fields",
    "arctic": "its experts stand beside a dense MLP of another width",
    **dict.fromkeys(("mllama", "mllama_text_model"), "it has cross-attention layers"),
    **dict.fromkeys(("deepseek_v4", "minimax_m3", "minimax_m3_vl_text"), SPARSE),
    **dict.fromkeys(("gemma3n", "gemma3n_text"), "some of its layers share keys and values"),
    **dict.fromkeys(("gemma4", "gemma4_text"), "its layers have heads of two sizes"),
    **dict.fromkeys(("mimo_v2_flash", "mimo_v2"), "its keys and values have heads of different sizes"),
    "step3p5": "its windowed layers have another number of heads",
    **dict.fromkeys(("deci", "nemotron-nas"), "its layers are of different sizes"),
    **dict.fromkeys(("lfm2", "lfm2_moe"), "it has convolution layers"),
    **dict.fromkeys(("mamba", "mamba2", "falcon_mamba"), "its layers are state-space layers"),
    **dict.fromkeys(("jamba", "bamba", "nemotron_h", "zamba", "zamba2", "falcon_h1", "plamo2"), STATE_SPACE),
    **dict.fromkeys(("phi4flash", "hymba"), STATE_SPACE),
    **dict.fromkeys(("rwkv", "recurrent_gemma"), "it has recurrent layers"),
    **dict.fromkeys(("minimax", "minimax_text_01", "minimax_m1"), "it has linear-attention layers"),
    **dict.fromkeys(("qwen3_5", "qwen3_5_moe"), "its layers are those of its text_config, which is missing"),
    "kimi_linear": LINEAR,
    **dict.fromkeys(("gpt2", "gptj", "gpt_neo", "gpt_neox", "gpt_bigcode", "opt", "bloom", "mpt"), NO_GATE),
    **dict.fromkeys(("falcon", "phi", "starcoder2", "nemotron", "arcee", "apertus", "persimmon"), NO_GATE),
}
"""Reasons why certain families are not priced."""


INHERITED = ("torch_dtype", "dtype", "quantization_config", "tie_word_embeddings")
"""Fields that a config sets for both itself and the `text_config` inside it."""
TOWERS = ("vision_config", "audio_config", "speech_config")
NO_TOWERS = ("text_config", "quantization_config", "generation_config")
FLAT = {"qwen2_vl": "qwen2_vl_text", "qwen2_5_vl": "qwen2_5_vl_text"}
"""Families whose older configs hold the text model's fields beside the vision tower."""


def shape_of(
    text: str, source: str, name: str | None = None, beside: str | None = None, generation: str = "{}"
) -> ModelShape:
    """Return the shape in the text of a config.json; `source` names it in errors.

    `beside` is the text of the hf_quant_config.json in the same folder, used if the config has no format.
    `generation` is the text of its generation_config.json, which configs of this package include.
    """
    outer = config_of(text, source)
    config, remarks = _text_part(outer, source)
    kind = _kind(config, source)
    family = FAMILIES[kind]
    defaults = {**(family.nested if "text_config" in outer else {}), **family.defaults}
    fields = Fields({**defaults, **_renamed(family, _present(config))}, source)
    if beside is not None and fields.get("quantization_config") is None:
        fields.values["quantization_config"] = modelopt_of(beside, source)
    _refuse_unpriced(fields, kind, family)
    layers = layers_of(family, fields)
    if fields.get("num_nextn_predict_layers"):
        remarks.append("its multi-token-prediction layers are ignored: they are not served by default")
    weights, unquantised, left_out = format_in(fields, layers)
    layers = [replace(layer, unquantised=parts) for layer, parts in zip(layers, unquantised, strict=True)]
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
        generation=tuple(_settings(outer, generation, source).items()),
        order=tuple(places[layer] for layer in layers) if len(kinds) > 1 else (),
        writes_chat_itself=kind in WRITE_CHAT_THEMSELVES,
    )


def _settings(config: dict[str, Any], generation: str, source: str) -> dict[str, float]:
    place = f"{source}: generation_config"
    return settings_in(config.get("generation_config") or config_of(generation, place), place)


def _text_part(config: dict[str, Any], source: str) -> tuple[dict[str, Any], list[str]]:
    inner = config.get("text_config")
    if inner is None:
        if not any(config.get(key) is not None for key in TOWERS):
            return config, []
        flat = FLAT.get(str(config.get("model_type")))
        if flat is None:
            raise ConfigError(
                f"{source}: it has {_first(config)} and no text_config: multimodal models"
                " are priced by their text_config"
            )
        return {**config, "model_type": flat}, [_tower_left_out(config)]
    if not isinstance(inner, dict):
        raise ConfigError(f"{source}: text_config is not an object")
    if "text_config" in inner:
        raise ConfigError(f"{source}: text_config holds another text_config: give the inner one")
    if config.get("is_encoder_decoder"):
        raise ConfigError(f"{source}: is_encoder_decoder: the cost model does not know an encoder")
    inherited = {key: config[key] for key in INHERITED if config.get(key) is not None}
    return {**inherited, **_present(inner)}, [_tower_left_out(config)] if _towers(config) else []


def _towers(config: dict[str, Any]) -> list[str]:
    known = [key for key in TOWERS if config.get(key) is not None]
    others = [key for key, value in config.items() if key.endswith("_config") and isinstance(value, dict)]
    return known or [key for key in others if key not in NO_TOWERS]


def _tower_left_out(config: dict[str, Any]) -> str:
    return f"only its text model is priced: {_first(config)} is left out"


def _first(config: dict[str, Any]) -> str:
    return _towers(config)[0]


def _renamed(family: Family, config: dict[str, Any]) -> dict[str, Any]:
    return {usual: config[own] for own, usual in family.renames.items() if own in config} | config


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


def _refuse_unpriced(fields: Fields, kind: str, family: Family) -> None:
    for key, what in UNPRICED.items():
        value = fields.get(key)
        if not value or key in OWN.get(kind, ()) or (key == "kv_lora_rank" and family.latent):
            continue
        if key in EXPERT_KEYS and (family.has_experts or value == 1):
            continue
        if key == "attn_type_list" and isinstance(value, list) and all(each == 1 for each in value):
            continue  # MiniMax-M2: full attention in each layer
        if key == "index_topk_freq" and value == 1:
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


MODEL_ALIASES = {
    "meta-llama-3.1-8b": "llama-3.1-8b",
    "meta-llama-3.1-70b": "llama-3.1-70b",
    "meta-llama-3.1-405b": "llama-3.1-405b",
    "llama-3.3-70b": "llama-3.1-70b",
    "deepseek-r1": "deepseek-v3",
    "deepseek-v3-0324": "deepseek-v3",
    "deepseek-v3.1": "deepseek-v3",
    "deepseek-v3.2-exp": "deepseek-v3.2",
    "minimax-m2.1": "minimax-m2",
    "glm-5-fp8": "glm-5",
    "glm-5.1": "glm-5",
    "glm-5.1-fp8": "glm-5",
    "qwen3.6-27b": "qwen3.5-27b",
    "qwen3.6-35b-a3b": "qwen3.5-35b-a3b",
}
VARIANTS = re.compile(
    r"-(instruct|it|chat|hf|base|chat-hf|v0\.1|instruct-v0\.1|thinking|2507|instruct-2507|thinking-2507)$"
)
"""Checkpoints that differ from their base model in the weights alone."""


def known_models() -> list[str]:
    """Return the names of the models described in this package, sorted."""
    entries = (files("sundog.sim.hardware") / "models").iterdir()
    return sorted(entry.name[:-5] for entry in entries if entry.name.endswith(".json"))


def load_model(name: str) -> ModelShape:
    """Return the model of that name or Hugging Face id, or from a folder or file with a config.json.

    A path is what exists or looks like one (starts with `.`, `/` or `~`, ends in `.json`). Raises ConfigError
    which suggests the nearest name and lists all.
    """
    if _is_path(name):
        path = Path(name).expanduser()
        path = path / "config.json" if path.is_dir() else path
        formats = path.parent / "hf_quant_config.json" if path.name == "config.json" else None
        beside = _text_of(formats) if formats is not None and formats.exists() else None
        settings = path.parent / "generation_config.json"
        generation = _text_of(settings) if path.name == "config.json" and settings.exists() else "{}"
        return shape_of(_text_of(path), str(path), None, beside, generation)
    key = described_name(name)
    if key is None:
        raise unknown("model", name, known_models(), also=", or a folder with a config.json")
    text = (files("sundog.sim.hardware") / "models" / f"{key}.json").read_text("utf-8")
    return shape_of(text, key, key)


def is_known(name: str) -> bool:
    """Return whether `load_model` treats the name as a path, or as a model described in this package."""
    return _is_path(name) or described_name(name) is not None


def _is_path(name: str) -> bool:
    return Path(name).expanduser().exists() or name.startswith((".", "/", "~")) or name.endswith(".json")


def described_name(name: str) -> str | None:
    """Return the name under which this package describes a model, given that name or its Hugging Face id;
    else None.
    """
    known = known_models()
    return next((key for key in _spellings(name) if key in known), None)


def _text_of(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read the model's config {path}: {error}") from None


def _spellings(name: str) -> list[str]:
    tail = normal(name.rsplit("/", 1)[-1])
    plain = VARIANTS.sub("", tail)
    return [tail, MODEL_ALIASES.get(tail, tail), plain, MODEL_ALIASES.get(plain, plain)]


def draft_of(asked: SpeculativeConfig | None, model: ModelShape) -> ModelShape | None:
    """Return the draft model, if drafts come from one; ConfigError if its vocabulary differs from the
    model's.
    """
    if asked is None or asked.model is None:
        return None
    draft = load_model(asked.model)
    if draft.vocab_size != model.vocab_size:
        raise ConfigError(
            f"--speculative-config: the draft model {draft.name} has a vocabulary of {draft.vocab_size}"
            f" tokens, {model.name} one of {model.vocab_size}: a draft model needs the same tokens; "
            "choose another"
        )
    return draft
