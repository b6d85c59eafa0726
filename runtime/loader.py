"""Opening a model folder: its configuration without torch, its weights with it.

Every folder that cannot be served ends in one `LoadError` that says why and what would help.
"""

import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from actors.core.config import ConfigError

if TYPE_CHECKING:
    from transformers import PreTrainedModel

# Rotary embeddings that change with the longest sequence at hand: every key kept so far would be
# wrong from then on.
LENGTH_DEPENDENT_ROPE = ("dynamic", "longrope")
DTYPES = ("auto", "float32", "bfloat16", "float16")


class LoadError(ConfigError):
    """A model folder that cannot be served."""


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What a model's `config.json` says that is needed before torch is imported.

    `max_position_embeddings` is the longest context in tokens, None where the file has none.
    """

    model_type: str
    architecture: str
    vocab_size: int
    max_position_embeddings: int | None


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file, empty if there is no such file; LoadError if it is not one."""
    if not path.is_file():
        return {}
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise LoadError(f"cannot read {path}: {error}") from error
    if not isinstance(value, dict):
        raise LoadError(f"cannot read {path}: it holds no JSON object")
    return value


def read_facts(model_dir: str | Path) -> ModelFacts:
    """The facts of a folder, checked for being a text decoder with safetensors weights."""
    folder = Path(model_dir)
    if not folder.is_dir():
        raise LoadError(
            f"model folder {folder} does not exist; --model takes a local folder,"
            " for example one made by `hf download NAME --local-dir FOLDER`"
        )
    if not (folder / "config.json").is_file():
        raise LoadError(f"{folder} has no config.json: not a Hugging Face model folder")
    config = read_json(folder / "config.json")
    facts = ModelFacts(
        model_type=str(config.get("model_type", "unknown")),
        architecture=str((config.get("architectures") or ["unknown"])[0]),
        vocab_size=int(config.get("vocab_size") or 0),
        max_position_embeddings=config.get("max_position_embeddings") or config.get("n_positions"),
    )
    _check_kind(folder, config, facts)
    if not any(folder.glob("*.safetensors")):
        others = sorted(path.name for path in folder.glob("*.bin"))
        raise LoadError(
            f"{folder} has no *.safetensors weights"
            + (f" (only {', '.join(others)}); convert them with safetensors" if others else "")
        )
    return facts


def _check_kind(folder: Path, config: dict[str, Any], facts: ModelFacts) -> None:
    reason = None
    if config.get("is_encoder_decoder"):
        reason = "it is an encoder-decoder"
    elif any(key in config for key in ("vision_config", "audio_config", "text_config")):
        reason = "it is multimodal"
    elif not facts.architecture.endswith(("ForCausalLM", "LMHeadModel", "unknown")):
        reason = "it is not a causal language model"
    if reason is not None:
        raise LoadError(
            f"{folder} ({facts.architecture}, {facts.model_type}) is not supported: {reason};"
            " Sundog serves decoder-only text models"
        )


def check_context(model_dir: str | Path, max_model_len: int) -> None:
    """Refuse lengths at which the model would change the meaning of the keys it keeps."""
    config = read_json(Path(model_dir) / "config.json")
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    kind = rope.get("rope_type") or rope.get("type")
    limit = rope.get("original_max_position_embeddings") or config.get("original_max_position_embeddings")
    limit = limit or (config.get("max_position_embeddings") if kind == "dynamic" else None)
    if kind in LENGTH_DEPENDENT_ROPE and limit is not None and max_model_len > limit:
        raise LoadError(
            f"--max-model-len {max_model_len}: rotary embeddings of kind {kind} change beyond"
            f" {limit} tokens, which a kept cache cannot follow; use --max-model-len {limit}"
        )


def load_model(model_dir: str | Path, *, device: str = "cpu", dtype: str = "auto") -> "PreTrainedModel":
    """The model with its weights on `device`, its attention ours, ready to infer.

    Raises LoadError for a folder that cannot be served; takes as long as reading the weights.
    """
    folder = Path(model_dir)
    if dtype not in DTYPES:
        raise LoadError(f"dtype {dtype!r} is unknown: use one of {', '.join(DTYPES)}")
    read_facts(folder)
    import_torch()
    import torch
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    from runtime.attention import register

    if device.startswith("cuda") and not torch.cuda.is_available():
        raise LoadError(f"--device {device}: torch {torch.__version__} sees no CUDA device")
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]  # the library's own gap
    _check_attention(folder)
    loaded: Any
    try:
        loaded = AutoModelForCausalLM.from_pretrained(
            folder,
            dtype=dtype,
            attn_implementation=register(),
            use_safetensors=True,
            trust_remote_code=False,
            local_files_only=True,
            output_loading_info=True,
        )
    except Exception as error:  # the library raises a dozen kinds, each for a folder at fault
        raise LoadError(f"cannot load {folder}: {_first_line(error)}") from error
    model: PreTrainedModel
    model, found = loaded
    if missing := sorted(found["missing_keys"]):
        raise LoadError(
            f"{folder} lacks weights: {', '.join(missing[:3])}"
            + (f" and {len(missing) - 3} more" if len(missing) > 3 else "")
        )
    model.to(device).eval().requires_grad_(False)  # type: ignore[arg-type]  # decorated upstream
    return model


def _check_attention(folder: Path) -> None:
    """Refuse a model whose layers do not let anybody else attend for them."""
    from transformers import AutoConfig
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

    try:
        config = AutoConfig.from_pretrained(folder, trust_remote_code=False, local_files_only=True)
    except Exception as error:  # the library raises a dozen kinds, each for a folder at fault
        raise LoadError(f"cannot load {folder}: {_first_line(error)}") from error
    if type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING:
        raise LoadError(f"{folder} ({config.model_type}) is not supported: it is not a causal language model")
    built = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
    if not getattr(built, "_supports_attention_backend", False):
        raise LoadError(
            f"{folder} ({config.model_type}) is not supported: in transformers its layers do not attend"
            " through a function that can be replaced, or keep more than keys and values"
        )


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0] or type(error).__name__


def import_torch() -> None:
    """Import torch with OpenMP threads that wait without burning the cores they wait for.

    libgomp spins for milliseconds at the end of each parallel region by default. When anything
    else needs a core, such as the event loop, a region then costs a scheduler's time slice: on two
    busy cores a decode step of a 41 M Llama took 142 ms with its default and 34 with 1,000 spins,
    which cost next to nothing on idle ones. libgomp reads the variable once, when it is loaded.
    """
    if "torch" not in sys.modules:
        os.environ.setdefault("GOMP_SPINCOUNT", "1000")
    import torch  # noqa: F401
