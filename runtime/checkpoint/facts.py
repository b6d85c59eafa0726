"""Facts of a model folder, read without torch: its `config.json` and its weights' names.

Every folder that cannot be served ends in one `LoadError` with the reason and a remedy.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from shlex import quote

from sundog.actors.core.config import ConfigError
from sundog.runtime.checkpoint.fields import FieldError, fields_of

DECODERS = ("ForCausalLM", "LMHeadModel", "ModelWithLMHead", "GenerationDecoder", "unknown")
"""Suffixes of the class names of the library's causal language models."""

PICKLES = (".bin", ".ckpt", ".pkl", ".pt", ".pth")
"""Pickled weight files: reading one runs the code in it, so none is read."""
ENCODERS = ("ForMaskedLM", "ForPreTraining")
CLASSIFIERS = ("Classification", "QuestionAnswering", "MultipleChoice")


class LoadError(ConfigError):
    """Model folder that cannot be served."""


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """Facts of a model's `config.json` that are needed before torch is imported.

    `max_position_embeddings` is the longest context in tokens, None if the file has none.
    """

    model_type: str
    architecture: str
    vocab_size: int
    max_position_embeddings: int | None


@dataclass(frozen=True, slots=True)
class _Rope:
    rope_type: str | None = None
    type: str | None = None
    original_max_position_embeddings: int | None = None


@dataclass(frozen=True, slots=True)
class _ConfigFile:
    model_type: str = "unknown"
    architectures: list[str] | None = None
    vocab_size: int | None = None
    max_position_embeddings: int | None = None
    n_positions: int | None = None
    original_max_position_embeddings: int | None = None
    rope_parameters: _Rope | None = None
    rope_scaling: _Rope | None = None
    is_encoder_decoder: bool = False
    vision_config: object = None
    audio_config: object = None
    text_config: object = None
    quantization_config: dict[str, object] | None = None


def read_json(path: Path) -> dict[str, object]:
    """Return the JSON object in a file, empty if there is no such file; LoadError for other content."""
    value = _read(path, {})
    if not isinstance(value, dict):
        raise LoadError(f"cannot read {path}: it holds no JSON object")
    return value


def read_list(path: Path) -> list[object]:
    """Return the JSON list in a file, empty if there is no such file; LoadError for other content."""
    value = _read(path, [])
    if not isinstance(value, list):
        raise LoadError(f"cannot read {path}: it holds no JSON list")
    return value


def _read(path: Path, absent: object) -> object:
    if not path.is_file():
        return absent
    try:
        value: object = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise LoadError(f"cannot read {path}: {error}") from error
    return value


def _read_config(folder: Path) -> _ConfigFile:
    path = folder / "config.json"
    try:
        return fields_of(_ConfigFile, read_json(path))
    except FieldError as error:
        raise LoadError(f"cannot read {path}: {error}") from error


def read_facts(model_dir: str | Path, *, embeds: bool = False, has_weights: bool = True) -> ModelFacts:
    """Return the facts of a folder; LoadError unless it holds a text decoder, or a model that `embeds` text.

    With `has_weights` false the weights need not be there yet.
    """
    folder = Path(model_dir)
    if folder.suffix == ".gguf":
        raise LoadError(f"{folder}: a GGUF file is served by itself: `sundog serve {quote(str(folder))}`")
    if not folder.is_dir():
        raise LoadError(
            f"model folder {folder} does not exist; give a folder, or OWNER/NAME of a model on the Hugging"
            " Face hub"
        )
    if not (folder / "config.json").is_file() and (folder / "adapter_config.json").is_file():
        raise LoadError(
            f"{folder}: it is a LoRA adapter: serve its base model with --lora-modules NAME={folder}"
        )
    if not (folder / "config.json").is_file():
        raise LoadError(f"{folder} has no config.json: not a Hugging Face model folder")
    config = _read_config(folder)
    facts = ModelFacts(
        model_type=config.model_type,
        architecture=(config.architectures or ["unknown"])[0],
        vocab_size=config.vocab_size or 0,
        max_position_embeddings=config.max_position_embeddings or config.n_positions,
    )
    _check_kind(folder, config, facts, embeds)
    if has_weights and not any(next(folder.glob(kind), None) for kind in ("*.safetensors", "model.gguf")):
        raise without_weights(str(folder), [path.name for path in folder.iterdir()])
    return facts


def without_weights(model: str, files: Sequence[str]) -> LoadError:
    """Return the error of a model with these files, none of which contains weights in a supported format."""
    others = sorted(name for name in files if name.endswith(PICKLES))
    return LoadError(
        f"{model} has no *.safetensors weights"
        + (f" (only {_listed(others)}, which run code as they are read);" if others else "")
        + (" convert them with safetensors where you trust them" if others else "")
    )


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _check_kind(folder: Path, config: _ConfigFile, facts: ModelFacts, embeds: bool) -> None:
    reason = None
    is_decoder = facts.architecture.endswith(DECODERS)
    if config.is_encoder_decoder:
        reason = "it is an encoder-decoder"
    elif not (config.vision_config is config.audio_config is config.text_config is None):
        reason = "it is multimodal"
    elif not (is_decoder or embeds):
        reason = "it is not a causal language model"
    elif embeds and facts.architecture.endswith(CLASSIFIERS):
        reason = "it classifies"
    if reason is not None:
        more = (
            ""
            if embeds or not facts.architecture.endswith(ENCODERS)
            else "; for its vectors, add --runner pooling"
        )
        raise LoadError(
            f"{folder} ({facts.architecture}, {facts.model_type}) is not supported: {reason};"
            f" Sundog serves decoder-only text models and models that make vectors{more}"
        )


def check_context(model_dir: str | Path, max_model_len: int) -> None:
    """Raise LoadError for lengths at which the model would reinterpret cached keys.

    "dynamic" rotary embeddings change with the longest current sequence, which would invalidate cached keys.
    """
    config = _read_config(Path(model_dir))
    rope = config.rope_parameters or config.rope_scaling or _Rope()
    limit = rope.original_max_position_embeddings or config.original_max_position_embeddings
    limit = limit or config.max_position_embeddings
    if "dynamic" in (rope.rope_type, rope.type) and limit is not None and max_model_len > limit:
        raise LoadError(
            f"--max-model-len {max_model_len}: rotary embeddings of kind dynamic change beyond"
            f" {limit} tokens, which a kept cache cannot follow; use --max-model-len {limit}"
        )


def check_blocks(num_blocks: int, block_size: int, max_model_len: int) -> None:
    """Raise LoadError for a pool that cannot hold one request of full length."""
    needed = -(-max_model_len // block_size) + 1
    if num_blocks < needed:
        raise ConfigError(
            f"--num-gpu-blocks {num_blocks} cannot hold one request of --max-model-len {max_model_len}:"
            f" it needs {needed}, the null block included"
        )


def first_line(error: Exception) -> str:
    """Return the message of an error as one line: its first, and the next if that ends with a colon."""
    first, _, rest = str(error).strip().partition("\n")
    reason = rest.strip().partition("\n")[0] if first.endswith(":") else ""
    return f"{first} {reason}".strip() or type(error).__name__
