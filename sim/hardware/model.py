"""Models by name, by Hugging Face id, or by the folder or file of their config.json."""

import re
from importlib.resources import files
from pathlib import Path

from actors.core.config import ConfigError
from actors.core.names import normal, unknown
from sim.hardware.config_json import shape_of
from sim.hardware.shape import ModelShape

MODEL_ALIASES = {
    "meta-llama-3.1-8b": "llama-3.1-8b",
    "meta-llama-3.1-70b": "llama-3.1-70b",
    "meta-llama-3.1-405b": "llama-3.1-405b",
    "llama-3.3-70b": "llama-3.1-70b",
    "deepseek-r1": "deepseek-v3",
    "deepseek-v3-0324": "deepseek-v3",
    "deepseek-v3.1": "deepseek-v3",
}
VARIANTS = re.compile(
    r"-(instruct|it|chat|hf|base|chat-hf|v0\.1|instruct-v0\.1|2507|instruct-2507|thinking-2507)$"
)
"""Checkpoints that differ from their base model in the weights alone."""


def known_models() -> list[str]:
    """Names of the models described in this package, sorted."""
    entries = (files("sim.hardware") / "models").iterdir()
    return sorted(entry.name[:-5] for entry in entries if entry.name.endswith(".json"))


def load_model(name: str) -> ModelShape:
    """The model of that name or Hugging Face id, or from a folder or file with a config.json.

    A path is what exists or looks like one (starts with `.`, `/` or `~`, ends in `.json`).
    Raises ConfigError which suggests the nearest name and lists all.
    """
    path = Path(name).expanduser()
    if path.exists() or name.startswith((".", "/", "~")) or name.endswith(".json"):
        path = path / "config.json" if path.is_dir() else path
        formats = path.parent / "hf_quant_config.json" if path.name == "config.json" else None
        beside = _text_of(formats) if formats is not None and formats.exists() else None
        return shape_of(_text_of(path), str(path), beside=beside)
    known = known_models()
    key = next((key for key in _spellings(name) if key in known), None)
    if key is None:
        raise unknown("model", name, known, also=", or a folder with a config.json")
    text = (files("sim.hardware") / "models" / f"{key}.json").read_text("utf-8")
    return shape_of(text, key, key)


def _text_of(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read the model's config {path}: {error}") from None


def _spellings(name: str) -> list[str]:
    """The part behind the slash as it is, and without what names a variant."""
    tail = normal(name.rsplit("/", 1)[-1])
    plain = VARIANTS.sub("", tail)
    return [tail, MODEL_ALIASES.get(tail, tail), plain, MODEL_ALIASES.get(plain, plain)]
