"""Axes of a sweep: `--vary NAME=VALUE,…`, each value as the option of that name takes it."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from sundog.actors.config import ConfigError
from sundog.actors.core.names import did_you_mean
from sundog.options.engine import EngineOptions
from sundog.options.row import OptionRow, rows
from sundog.options.simulation import ROLE, LoadOptions, TargetOptions

WORKLOAD = "workload."
VARIED: dict[str, OptionRow] = {
    row.name: row for record in (EngineOptions, TargetOptions, LoadOptions) for row in rows(record)
}
"""Options that a sweep may vary."""
NAMED = ("policy", "router")
"""Options whose values have parameters, or name a file."""


def axes(texts: Sequence[str]) -> dict[str, Sequence[Any]]:
    """Return the values to try, by the name of the option or by `workload.TABLE.KEY`; raises ConfigError."""
    found: dict[str, Sequence[Any]] = {}
    for text in texts:
        name, equals, values = text.partition("=")
        if not name or not equals or not values:
            raise ConfigError(f"--vary is {text!r}: give NAME=VALUE,VALUE,…")
        name = name if name.startswith(WORKLOAD) else name.removeprefix("--").replace("-", "_")
        if name in found:
            raise ConfigError(f"--vary has {name} twice: give all its values at once")
        if name == "seed":
            raise ConfigError(
                "--vary cannot have seed, since settings are compared on the same requests: leave it out"
            )
        found[name] = _values(name, values)
        for value in found[name]:
            if found[name].count(value) > 1:
                raise ConfigError(f"--vary has {name}={value} twice")
    return found


def _values(name: str, text: str) -> list[Any]:
    if name.startswith(WORKLOAD):
        return [_plain(_unescaped(value)) for value in split_values(text)]
    row = VARIED.get(name)
    if row is None:
        hint = did_you_mean(name, VARIED)
        raise ConfigError(
            f"--vary has {name}: give an option of engines or targets, or a field as workload.NAME.{hint}"
        )
    if row.many:  # One value of the axis is several of the option's, with a plus between two.
        return [one_text(row.take_all(value.split("+"), "--vary")) for value in text.split(",")]
    values = split_values(text)
    if name not in NAMED:  # Their own reader takes the backslashes (actors/core/policies/arguments.py).
        values = [_unescaped(value) for value in values]
    return [row.take(value, "--vary") for value in values]


def one_text(value: object) -> object:
    """Return the value of a cell for display: the text of several values with a plus between two."""
    return "+".join(map(str, value)) if isinstance(value, tuple) else value


def split_values(text: str) -> list[str]:
    """Split at commas, keeping the values' spelling.

    A comma after a backslash separates nothing, nor does one between the parameters of a policy or a router:
    `fcfs,vtc:input_weight=1,output_weight=2` has two values. The scalers of one fleet's pools are separated
    by a plus, as its pools are.
    """
    found = [""]
    for token in re.findall(r"\\.|,|[^,\\]+|\\$", text, re.DOTALL):
        if token == ",":
            found.append("")
        elif (
            found[-1] == ""
            and len(found) > 1
            and ":" in found[-2]
            and re.match(r"\w+=", token)
            and not re.match(ROLE, token)
        ):
            found.pop()
            found[-1] += f",{token}"
        else:
            found[-1] += token
    if not all(found):
        raise ConfigError(f"--vary has an empty value in {text!r}")
    return found


def _unescaped(text: str) -> str:
    return re.sub(r"\\(.)", r"\1", text)


def _plain(text: str) -> int | float | str:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def with_fields(workload: dict[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the description of a workload with the cell's settings `workload.TABLE.KEY` applied."""
    for name, value in settings.items():
        if name.startswith(WORKLOAD):
            *path, last = name.removeprefix(WORKLOAD).split(".")
            workload = dict(workload)
            table: Any = workload
            for part in path:
                table = _copied(table, part, name)
            if isinstance(table, list):
                raise ConfigError(f"--vary has {name}, which names no key: {path[-1]} is a list of tables")
            table[last] = value
    return workload


def _copied(table: Any, part: str, name: str) -> Any:
    """Replace `part` by a copy in its table and return the copy: the value of a key, or the table of that
    name in a list.
    """
    where: dict[str, Any] = table if isinstance(table, dict) else {}
    if isinstance(table, list):
        where = {each["name"]: number for number, each in enumerate(table) if "name" in each}
    key = part if isinstance(table, dict) else where.get(part)
    found = None if key is None or part not in where else table[key]
    if not isinstance(found, dict | list):
        raise ConfigError(f"--vary has {name}, but the workload has no table {part}")
    table[key] = copy = found.copy()
    return copy
