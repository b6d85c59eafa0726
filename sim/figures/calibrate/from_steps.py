"""A cost model from a log of steps: forward-pass metrics of SGLang, vLLM, TensorRT-LLM or Sundog, version 1.

Each row is a step with its time, so that nothing must be inferred but one thing: a row sums the chunks of
prefills, and attention costs their pairs of query and key, which are taken as if its chunks were of one size.
Ranks that share their steps (attention data parallelism) are not told apart from replicas: give one's rows.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from actors.core.config import ConfigError
from sim.cost.calibrated import Calibrated, Range, coefficients, fit_sums
from sim.cost.work import StepWork
from sim.files.lines import JsonLines, Row

VERSION = 1
FEWEST_STEPS = 20
FIELDS = (
    "num_prefill_requests",
    "sum_prefill_tokens",
    "sum_prefill_kv_tokens",
    "num_decode_requests",
    "sum_decode_kv_tokens",
)
Floats = NDArray[np.float64]


class StepsFitted(NamedTuple):
    """The model, the sizes it was fitted to, the median relative error of a step, and how many there were."""

    model: Calibrated
    measured: Range
    median_error: float
    num_steps: int


class StepLogError(ConfigError):
    """A log of steps that cannot be read; the message names file, line and field."""

    @classmethod
    def at(cls, path: str, line: int, reason: str) -> "StepLogError":
        return cls(f"{path}, line {line}: {reason}")


def fit_steps(path: Path) -> StepsFitted:
    """The coefficients that explain the steps of a log best. Raises ConfigError for what is no such log."""
    rows = _steps(path)
    if len(rows) < FEWEST_STEPS:
        raise ConfigError(f"{path} has {len(rows)} steps that took time: {FEWEST_STEPS} at least are needed")
    seconds, num_prefills, new, before, decodes, kv = rows.T
    many = np.maximum(num_prefills, 1)
    pairs = new * before / many + new * (new / many + 1) / 2
    # A decode reads its own token's keys and values, too.
    features = np.stack((np.ones(len(rows)), new + decodes, kv + decodes, decodes, pairs), axis=1)
    model = fit_sums(features, seconds)
    explained = features @ np.array(coefficients(model))
    error = float(np.median(np.abs(explained / seconds - 1)))
    measured = Range(*(float(features[:, column].max()) for column in (1, 2, 3, 4)))
    return StepsFitted(model, measured, error, len(rows))


def logged_works(path: Path) -> list[tuple[StepWork, float]]:
    """The work of each step of a log, its chunks taken to be of one size, and its seconds."""
    works = []
    for seconds, num_prefills, new, before, decodes, kv in _steps(path).tolist():
        many, num = max(1, round(num_prefills)), round(decodes)
        chunks = ((round(new / many), round(before / many)),) * round(num_prefills)
        works.append((StepWork(num, round(kv) + num, chunks, num + len(chunks)), float(seconds)))
    return works


def _steps(path: Path) -> Floats:
    """A row for each step that took time and computed tokens."""
    rows = [row for row in _rows(JsonLines(path, StepLogError.at)) if row[0] > 0 and row[2] + row[4] > 0]
    return np.array(rows, dtype=np.float64).reshape(-1, 6)


def _rows(lines: JsonLines) -> Iterator[tuple[float, ...]]:
    for row in lines:
        if row.get("version") != VERSION or not isinstance(row.get("scheduled_requests"), dict):
            what = "forward-pass metrics of version 1: version, wall_time and scheduled_requests"
            raise lines.error(f"it is no row of {what}")
        yield (
            _number(lines, row, "wall_time"),
            *(_number(lines, row["scheduled_requests"], name) for name in FIELDS),
        )


def _number(lines: JsonLines, row: Row, name: str) -> float:
    """A field; one that is not there is 0, as in the format."""
    value = row.get(name, 0)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e15:
        raise lines.error(f"{name} is {value!r}: give a number of at least 0")
    return float(value)
