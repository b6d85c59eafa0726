"""Cost files: a calibrated cost model in TOML.

A cost file has the coefficients of the model, their range, and their origin. `[measured]` is for people. The
file of a measured engine has further tables (`sundog.sim.cost.profile`).
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, fields
from itertools import pairwise
from pathlib import Path

from sundog.actors.core.config import ConfigError
from sundog.sim.cost.calibrated import Bends, Calibrated, InRange, ObservedRange
from sundog.sim.files.run_files import write_whole
from sundog.sim.files.toml import read_toml

TITLE, RANGE, MEASURED, HOST = "calibrated", "range", "measured", "host"
BENDS = ("bends", "context_bends")
LOADS_ERROR, DRIFT = "left_out_error", "drift"
ERRORS = ("held_out_error_median", "trial_error_tpot", LOADS_ERROR, DRIFT)
"""Fields of [measured] that contain errors of steps; the largest one counts."""
MOST_DOUBT = 0.9
NOT_IN_LOGS = {"per_chunk": 0.0, "per_chunk_context_token": 0.0, "chunked_floor": 0.0, "mixed_floor": 0.0}
COMMENTS = {
    TITLE: "seconds for each; bends: [beyond so many, seconds for each more]",
    RANGE: "the largest step that was observed",
    HOST: "seconds that a server adds to a step, to a token sampled in it, and in front of a request",
}


def write_cost(
    path: Path | str,
    model: Calibrated,
    source: str,
    measured: ObservedRange | None = None,
    more: Mapping[str, Mapping[str, object]] | None = None,
) -> None:
    """Write the coefficients, their range, and `more` tables; raises ConfigError if it cannot."""
    tables: dict[str, Mapping[str, object]] = {TITLE: asdict(model)}
    if measured is not None:
        tables[RANGE] = asdict(measured)
    tables.update(more or {})
    lines = [f"# {source}"]
    for title, table in tables.items():
        lines += ["", *([f"# {COMMENTS[title]}"] if title in COMMENTS else []), f"[{title}]"]
        # What JSON writes of numbers, texts and lists is TOML, too.
        lines += [f"{name} = {json.dumps(value)}" for name, value in table.items()]
    try:
        write_whole(path, "\n".join([*lines, ""]))
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror or error}") from None


def read_cost(path: Path | str) -> Calibrated | InRange:
    """Read a model written by `sundog calibrate`; raises ConfigError naming file and field."""
    return cost_of(read_toml(path), path)


def cost_of(values: Mapping[str, object], path: Path | str) -> Calibrated | InRange:
    """Return the model in the file's values."""
    table = values.get(TITLE)
    if not isinstance(table, dict):
        raise ConfigError(
            f"cost {path}: the table [{TITLE}] is missing: was it written by `sundog calibrate`?"
        )
    names = [field.name for field in fields(Calibrated) if field.name not in BENDS]
    given = {**NOT_IN_LOGS, **table}
    seconds = [_number(path, given, name, 1e9, "seconds of at least 0") for name in names]
    model = Calibrated(*seconds, *(_bends(path, table, name) for name in BENDS))  # type: ignore[arg-type]
    measured = values.get(RANGE)
    if measured is None:
        return model
    if not isinstance(measured, dict):
        raise ConfigError(f"cost {path}: {RANGE} is {measured!r}: give a table [{RANGE}]")
    sizes = [field.name for field in fields(ObservedRange)]
    largest = ObservedRange(*(_number(path, measured, name, 1e18, "a size of at least 0") for name in sizes))
    return InRange(model, largest, doubt=_doubt(values.get(MEASURED)))


def _doubt(evidence: object) -> float:
    """Return the largest error that calibration measured on steps outside the fit, at most `MOST_DOUBT`; 0 if
    unknown.

    The bound keeps the shortest possible step above zero.
    """
    found = [evidence.get(name) for name in ERRORS] if isinstance(evidence, dict) else []
    errors = (abs(float(each)) for each in found if isinstance(each, int | float))
    return min(max(errors, default=0.0), MOST_DOUBT)


def _bends(path: Path | str, table: dict[str, object], name: str) -> Bends:
    given = table.get(name, [])
    try:
        bends = tuple((float(at), float(slope)) for at, slope in given)  # type: ignore[attr-defined]
    except (TypeError, ValueError):
        bends = ((-1.0, -1.0),)
    rises = all(left[0] < right[0] for left, right in pairwise(bends))
    if not rises or not all(0 <= value < 1e18 for pair in bends for value in pair):
        raise ConfigError(f"cost {path}: {name} is {given!r}: give pairs of [tokens, seconds], tokens rising")
    return bends


def _number(path: Path | str, table: dict[str, object], name: str, most: float, what: str) -> float:
    value = table.get(name)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < most:
        raise ConfigError(f"cost {path}: {name} is {value!r}: give {what}")
    return float(value)
