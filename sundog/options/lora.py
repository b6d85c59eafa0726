"""A value of `--lora-modules` in vLLM's forms: NAME=DIR, or a JSON object with a base model, perhaps."""

import json
from dataclasses import dataclass

from actors.core.params.adapter import Adapter

KEYS = ("name", "path", "base_model_name")
FORMS = 'give NAME=DIR, or {"name": "NAME", "path": "DIR", "base_model_name": "MODEL"}'


@dataclass(frozen=True, slots=True)
class LoraModule:
    """An adapter, and the model that it says it changes."""

    adapter: Adapter
    base: str | None = None


def parse_lora_module(text: str) -> LoraModule:
    """The module that a text names; ValueError says what would be right."""
    if not text.lstrip().startswith("{"):
        name, _, path = text.partition("=")
        if not (name and path):
            raise ValueError(FORMS)
        return LoraModule(Adapter(name, path))
    try:
        given = json.loads(text)
    except (ValueError, RecursionError):
        raise ValueError(FORMS) from None
    given = {key: value for key, value in given.items() if value is not None}
    unknown = [key for key in given if key not in KEYS]
    if unknown:
        raise ValueError(f"{unknown[0]} is unknown; {FORMS}")
    if not all(isinstance(value, str) and value for value in given.values()) or not {"name", "path"} <= set(
        given
    ):
        raise ValueError(FORMS)
    return LoraModule(Adapter(given["name"], given["path"]), given.get("base_model_name"))
