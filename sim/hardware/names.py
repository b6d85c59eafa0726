"""Finding a data file by the name a person types, and suggesting the nearest when there is none."""

import difflib
import re
from collections.abc import Iterable

from actors.core.config import ConfigError


def normal(name: str) -> str:
    """The name in lower case with runs of blanks, underscores and hyphens as one hyphen."""
    return re.sub(r"[\s_-]+", "-", name.strip().lower())


def unknown(kind: str, name: str, known: Iterable[str], also: str = "") -> ConfigError:
    """The error for a name that is not among `known`: the nearest one, then all of them."""
    names = sorted(known)
    near = difflib.get_close_matches(normal(name), names, n=1, cutoff=0.5)
    hint = f" Did you mean {near[0]}?" if near else ""
    return ConfigError(f"unknown {kind} {name!r}.{hint} Known: {', '.join(names)}{also}.")
