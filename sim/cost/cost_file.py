"""A calibrated cost model on disk: five coefficients in TOML, and where they come from."""

from dataclasses import asdict, fields
from pathlib import Path

from actors.core.config import ConfigError
from sim.cost.calibrated import Calibrated
from sim.files.toml import read_toml
from sim.files.whole_file import write_whole

TITLE = "calibrated"


def write_cost(path: Path | str, model: Calibrated, source: str) -> None:
    """Write the coefficients, seconds per unit; raises ConfigError if it cannot."""
    lines = [f"# {source}", f"[{TITLE}]"]
    lines += [f"{name} = {value!r}" for name, value in asdict(model).items()]
    try:
        write_whole(path, "\n".join([*lines, ""]))
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror or error}") from None


def read_cost(path: Path | str) -> Calibrated:
    """The model that `sundog calibrate` wrote; raises ConfigError naming file and field."""
    values = read_toml(path)
    table = values.get(TITLE)
    if not isinstance(table, dict):
        raise ConfigError(f"cost {path}: the table [{TITLE}] is missing: is it of calibrate?")
    names = [field.name for field in fields(Calibrated)]
    for name in names:
        value = table.get(name)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < 1e9:
            raise ConfigError(f"cost {path}: {name} is {value!r}: give seconds of at least 0")
    return Calibrated(*(float(table[name]) for name in names))
