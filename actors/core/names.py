"""Names that people type: how they are compared, and which known one was probably meant."""

import difflib
import re
from collections.abc import Iterable

from sundog.actors.core.config import ConfigError


def normal(name: str) -> str:
    """The name in lower case with runs of blanks, underscores and hyphens as one hyphen."""
    return re.sub(r"[\s_-]+", "-", name.strip().lower())


def did_you_mean(name: str, known: Iterable[str], most: int = 1, cutoff: float = 0.5) -> str:
    """` Did you mean NAME?` with the nearest of the known names; empty where none is near."""
    near = difflib.get_close_matches(name, list(known), n=most, cutoff=cutoff)
    return f" Did you mean {', '.join(near)}?" if near else ""


def unknown(kind: str, name: str, known: Iterable[str], also: str = "") -> ConfigError:
    """The error for a name that is not among `known`: the nearest one, then all of them."""
    names = list(known)
    hint = did_you_mean(normal(name), names)
    return ConfigError(f"unknown {kind} {name!r}.{hint} Known: {', '.join(names)}{also}.")
