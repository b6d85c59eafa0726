"""A LoRA adapter, as requests name it and as their blocks are keyed by it."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Adapter:
    """Low-rank changes to a model's layers; `path` is where it came from, and in the keys of its blocks."""

    name: str
    path: str
