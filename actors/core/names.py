"""Names that people type: normalised comparison, and suggestions for misspelt ones."""

import re
from collections.abc import Iterable

from sundog.actors.core.config import ConfigError


def normal(name: str) -> str:
    """Return the name in lower case with runs of blanks, underscores and hyphens as one hyphen."""
    return re.sub(r"[\s_-]+", "-", name.strip().lower())


def did_you_mean(name: str, known: Iterable[str], most: int = 1, cutoff: float = 0.5) -> str:
    """Return ` Did you mean NAME?` with the nearest known names; empty if none is near."""
    import difflib  # A wrong name is rare, and this a module that every command would load.

    near = difflib.get_close_matches(name, list(known), n=most, cutoff=cutoff)
    return f" Did you mean {', '.join(near)}?" if near else ""


def unknown(kind: str, name: str, known: Iterable[str], also: str = "") -> ConfigError:
    """Return the error for a name that is not in `known`: the nearest name, then all."""
    names = list(known)
    hint = did_you_mean(normal(name), names)
    return ConfigError(f"unknown {kind} {name!r}.{hint} Known: {', '.join(names)}{also}.")
