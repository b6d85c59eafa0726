"""Files that a command writes: none is also read by it, or written twice."""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from sundog.actors.config import ConfigError

WRITTEN = {
    "output": "-o",
    "manifest": "--manifest",
    "llm_d": "--llm-d",
    "kustomize": "--kustomize",
    "dynamo": "--dynamo",
    "figure": "--figure",
    "page": "--page",
    "step_log": "--step-log",
}
"""Parameters that name a file to write, and their flags."""
IN_FOLDER = {"kustomize": "kustomization.yaml"}
"""File that a parameter with a folder writes there."""


def check_apart(values: Mapping[str, object]) -> None:
    """Raise ConfigError if a file to write is another one to write, or one to read.

    Args:
        values: Parameters of a command by name. Texts may contain several files, as in `a.toml,b.toml`, or
            more than a file, as in `FILE.py:NAME`.

    Example:
        >>> check_apart({"output": "a.jsonl", "trace": "a.csv"})
    """
    read = {
        os.path.realpath(path): path
        for name, value in values.items()
        if name not in WRITTEN
        for path in _files(value)
    }
    written: dict[str, str] = {}
    for name, flag in WRITTEN.items():
        value = values.get(name)
        # What is written to a device, or to stdout by its name, may be a file, and replaces nothing.
        if not isinstance(value, str | Path) or str(value).startswith("/dev/"):
            continue
        place = os.path.realpath(Path(value, IN_FOLDER.get(name, "")))
        if (path := read.get(place)) is not None:
            raise ConfigError(f"{flag} would replace {path}, which is read: give another file")
        if (other := written.setdefault(place, flag)) is not flag:
            raise ConfigError(f"{other} and {flag} name one file, {value}: give each its own")


def _files(value: object) -> Iterator[str]:
    """Yield the existing files that a value names."""
    if isinstance(value, list | tuple):
        for each in value:
            yield from _files(each)
    elif isinstance(value, str | Path):
        text = str(value)
        parts = (text, *text.split(","), text.rpartition(":")[0], text.partition(".py:")[0] + ".py")
        yield from (part for part in dict.fromkeys(parts) if part and os.path.isfile(part))
