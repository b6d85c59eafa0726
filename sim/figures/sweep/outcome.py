"""What a sweep runs, and what comes of it; plain values, for they cross processes."""

from typing import Any, NamedTuple

Settings = dict[str, Any]
Job = tuple[Settings, int]
"""A cell's settings and a seed."""
Measures = dict[str, float]


class Failed(NamedTuple):
    """A run that there is not: why, in one line, and where in the code if that is a bug of ours."""

    reason: str
    traceback: str | None = None


def label(settings: Settings) -> str:
    """The setting as people read it."""
    return ", ".join(f"{name}={value}" for name, value in settings.items()) or "as given"
