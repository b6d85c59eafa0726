"""From a Hugging Face config.json to the shape of the model in it.

Law: what is not known is refused by name. A family that is not in `families.py`, or a field that
gives a model layers of another kind, is never priced as something like it.
"""

from collections import Counter
from dataclasses import replace
from typing import Any

from actors.core.config import ConfigError
from sim.hardware.families import FAMILIES, Family, layers_of
from sim.hardware.fields import Fields, config_of
from sim.hardware.formats import dtype_name
from sim.hardware.mlps import EXPERT_KEYS
from sim.hardware.quantization import format_in, modelopt_of
from sim.hardware.refusals import NONE_IF_NULL, OWN, REASONS, UNPRICED
from sim.hardware.shape import ModelShape

INHERITED = ("torch_dtype", "dtype", "quantization_config", "tie_word_embeddings")
"""What a config around a `text_config` says of both."""
TOWERS = ("vision_config", "audio_config", "speech_config")
NO_TOWERS = ("text_config", "quantization_config", "generation_config")
FLAT = {"qwen2_vl": "qwen2_vl_text", "qwen2_5_vl": "qwen2_5_vl_text"}
"""Families whose older configs hold the text model's fields beside the vision tower."""


def shape_of(text: str, source: str, name: str | None = None, beside: str | None = None) -> ModelShape:
    """The shape in the text of a config.json; `source` names it in errors.

    `beside` is the text of the hf_quant_config.json in the same folder, which counts where the config says
    nothing of formats.
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
        remarks.append(
            "its layers for predicting further tokens are left out: they are not served by default"
        )
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
        order=tuple(places[layer] for layer in layers) if len(kinds) > 1 else (),
    )


def _text_part(config: dict[str, Any], source: str) -> tuple[dict[str, Any], list[str]]:
    """The decoder of a model that also sees or hears, and what is left out of it."""
    inner = config.get("text_config")
    if inner is None:
        if not any(config.get(key) is not None for key in TOWERS):
            return config, []
        flat = FLAT.get(str(config.get("model_type")))
        if flat is None:
            raise ConfigError(
                f"{source}: it has {_first(config)} and no text_config: models that see or hear"
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
    """The parts that see or hear, or whatever else has a config of its own beside the text model's."""
    known = [key for key in TOWERS if config.get(key) is not None]
    others = [key for key, value in config.items() if key.endswith("_config") and isinstance(value, dict)]
    return known or [key for key in others if key not in NO_TOWERS]


def _tower_left_out(config: dict[str, Any]) -> str:
    return f"only its text model is priced: {_first(config)} is left out"


def _first(config: dict[str, Any]) -> str:
    return _towers(config)[0]


def _renamed(family: Family, config: dict[str, Any]) -> dict[str, Any]:
    """With the usual words for what the family calls otherwise; a usual word that is there stays."""
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
        raise ConfigError(
            f"{fields.source}: {key} is {value!r:.60}: {what} are not known of model_type {kind!r},"
            " and the cost model would take them for something else"
        )


def _own_name(config: dict[str, Any]) -> str | None:
    name = config.get("_name_or_path")
    return name if isinstance(name, str) and name else None


def _dtype(fields: Fields) -> str:
    return str(fields.get("torch_dtype") or fields.get("dtype") or "bfloat16")
