"""Reader of workload descriptions; every key is checked when the file is read."""

from pathlib import Path
from typing import Any

from sundog.actors.core.config import ConfigError
from sundog.sim.files.toml import checked, read_toml
from sundog.sim.workload.mixture import Mixture
from sundog.sim.workload.spec import Scaled, Workload

PATHS = ("trace", "tokenizer")
"""Keys, in any table, whose values are files."""

Source = Workload | Mixture | Scaled


def read_spec(path: str | Path) -> Source:
    """Read the workload described by a TOML file; raises ConfigError, which names the field.

    With a table `scaled` it is a recorded trace, with `populations` a mixture, else one kind of requests.
    """
    return parse_spec(read_values(path), path)


def read_values(path: str | Path) -> dict[str, Any]:
    """Read the values in a file; traces in it are relative to the file."""
    return _rooted(read_toml(path), Path(path).parent)


def parse_spec(values: dict[str, Any], path: str | Path) -> Source:
    """Return the workload of these values; errors name `path`."""
    if "scaled" in values:
        if extra := values.keys() - {"scaled"}:
            raise ConfigError(f"{path}: {min(extra)} cannot be combined with the table scaled")
        return checked(Scaled, values["scaled"], path, ("scaled",))
    if "populations" in values:
        return checked(Mixture, values, path)
    return checked(Workload, values, path)


def _rooted(values: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Resolve every path in the values relative to the folder of their file."""
    found: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, dict):
            found[name] = _rooted(value, folder)
        elif isinstance(value, list):
            found[name] = [_rooted(each, folder) if isinstance(each, dict) else each for each in value]
        else:
            is_path = name in PATHS and isinstance(value, str)
            found[name] = str(folder / Path(value).expanduser()) if is_path else value
    return found
