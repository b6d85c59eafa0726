"""Models that a paged cache can serve, decided from a folder's configuration alone.

Law: an unsupported model is refused by name with the true reason, before its weights are read. What only a
pass can show, such as a layer that attends twice, is found by `sundog.runtime.model.model.probe_layers`.
"""

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from sundog.runtime.checkpoint.facts import LoadError, first_line, read_json

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

KEPT_KINDS = ("full_attention", "sliding_attention")
"""Kinds of layers whose whole state is a key and a value per token."""
ENCODER_DECODER = "it is the decoder of an encoder-decoder"
ENCODER = "it is an encoder: its tokens attend to later ones"
RECURRENT = "it keeps a recurrent state, where a paged cache holds keys and values"
OWN_ATTENTION = "in transformers its layers attend by code of their own, which cannot be replaced"


def check_supported(folder: Path) -> None:
    """Raise LoadError if a model's layers cannot attend over a paged cache."""
    config = read_config(folder)
    if reason := why_not(config):
        raise LoadError(f"{folder} ({config.model_type}) is not supported: {reason}")


def read_config(folder: Path) -> "PreTrainedConfig":
    """Return the library's own configuration of a folder; LoadError if it cannot read `config.json`."""
    from transformers import AutoConfig

    # It would say of a type that it does not know, in a line before ours, that it cannot check it.
    logging.getLogger("transformers.modeling_rope_utils").setLevel(logging.ERROR)
    try:
        config: PreTrainedConfig = AutoConfig.from_pretrained(
            folder, trust_remote_code=False, local_files_only=True
        )
    except Exception as error:  # the library raises a dozen kinds, each for a folder at fault
        raise cannot_load(folder, error) from error
    return config


def choose_rotary(config: "PreTrainedConfig", max_model_len: int) -> None:
    """Fix the rotary factors of a "longrope" model (Phi-3-128k): the long ones if its context may be long.

    The library switches from short to long factors when a sequence exceeds the original training length,
    which would invalidate cached keys. vLLM, too, chooses once, by max_model_len.
    """
    rope = getattr(config, "rope_parameters", None) or {}
    first_trained = rope.get("original_max_position_embeddings")
    if rope.get("rope_type") == "longrope" and first_trained and max_model_len > first_trained:
        rope["short_factor"] = rope["long_factor"]


def cannot_load(folder: Path, error: Exception) -> LoadError:
    """Return the error of a folder that the library cannot load, with the field of an unknown name."""
    from transformers import __version__

    in_vain: object = None
    if isinstance(error, KeyError) and error.args:
        in_vain = error.args[0]
    elif isinstance(error, AttributeError):
        in_vain = error.name
    for field, value in _fields(read_json(folder / "config.json")):
        if value == in_vain and isinstance(value, str):
            return LoadError(
                f"cannot load {folder}: {field} of config.json is {value!r}, which transformers"
                f" {__version__} does not know"
            )
    return LoadError(f"cannot load {folder}: {first_line(error)}")


def _fields(value: dict[str, object], under: str = "") -> Iterator[tuple[str, object]]:
    for name, each in value.items():
        yield under + name, each
        if isinstance(each, dict):
            yield from _fields(each, f"{under}{name}.")


def why_not(config: "PreTrainedConfig") -> str | None:
    """Return why the model of this configuration is not served, by its kind; None otherwise."""
    from transformers.models.auto import modeling_auto as auto

    kind = type(config)
    # A decoder that was saved by itself no longer says so, but its kind does.
    if config.is_encoder_decoder or getattr(kind, "is_encoder_decoder", False):
        return ENCODER_DECODER
    if kind in auto.MODEL_FOR_MASKED_LM_MAPPING and not getattr(config, "is_decoder", False):
        return ENCODER
    if kind not in auto.MODEL_FOR_CAUSAL_LM_MAPPING:
        return "it is not a causal language model"
    if (num_layers := getattr(config, "num_hidden_layers", 1)) < 1:
        return f"num_hidden_layers of config.json is {num_layers}"
    layers = getattr(config, "layer_types", None) or ()
    for number, layer in enumerate(layers):
        if layer not in KEPT_KINDS:
            return f"layer {number} is {layer}, and a paged cache serves only full and sliding attention"
    built = auto.MODEL_FOR_CAUSAL_LM_MAPPING[kind]
    if not layers and getattr(built, "_is_stateful", False):
        return RECURRENT
    if not getattr(built, "_supports_attention_backend", False):
        return OWN_ATTENTION
    return None
