"""A calibrated cost model on disk: five coefficients in TOML, and where they come from."""

from dataclasses import asdict, fields
from pathlib import Path

from actors.core.config import ConfigError
from sim.cost.calibrated import Calibrated
from sim.cost.in_range import InRange, Range
from sim.files.toml import read_toml
from sim.files.whole_file import write_whole

TITLE, RANGE = "calibrated", "range"


def write_cost(path: Path | str, model: Calibrated, source: str, measured: Range | None = None) -> None:
    """Write the coefficients, seconds per unit, and their range; raises ConfigError if it cannot."""
    lines = [f"# {source}", f"[{TITLE}]"]
    lines += [f"{name} = {value!r}" for name, value in asdict(model).items()]
    if measured is not None:
        lines += ["", "# the largest step that was observed", f"[{RANGE}]"]
        lines += [f"{name} = {value!r}" for name, value in asdict(measured).items()]
    try:
        write_whole(path, "\n".join([*lines, ""]))
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror or error}") from None


def read_cost(path: Path | str) -> Calibrated | InRange:
    """The model that `sundog calibrate` wrote; raises ConfigError naming file and field."""
    values = read_toml(path)
    table = values.get(TITLE)
    if not isinstance(table, dict):
        raise ConfigError(f"cost {path}: the table [{TITLE}] is missing: is it of calibrate?")
    names = [field.name for field in fields(Calibrated)]
    model = Calibrated(*(_number(path, table, name, 1e9, "seconds of at least 0") for name in names))
    measured = values.get(RANGE)
    if measured is None:
        return model
    if not isinstance(measured, dict):
        raise ConfigError(f"cost {path}: {RANGE} is {measured!r}: give a table [{RANGE}]")
    sizes = [field.name for field in fields(Range)]
    return InRange(
        model, Range(*(_number(path, measured, name, 1e18, "a size of at least 0") for name in sizes))
    )


def _number(path: Path | str, table: dict[str, object], name: str, most: float, what: str) -> float:
    value = table.get(name)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < most:
        raise ConfigError(f"cost {path}: {name} is {value!r}: give {what}")
    return float(value)
