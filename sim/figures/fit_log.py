"""Fit of a cost model to a log of steps.

A log of steps holds forward-pass metrics of SGLang, vLLM, TensorRT-LLM or Sundog, version 1. Each row is a
step with its time, so only one thing must be assumed: a row sums the chunks of prefills, whose attention
depends on pairs of query and key, so its chunks are assumed equal. Ranks that share their steps (attention
data parallelism) look like replicas: give one's rows.

The log of a server under load by `sundog calibrate` shows what serving adds to its engine's steps:

    served = slowdown engine + step + token S + chunk N

S tokens sampled, N chunks of prompts. `engine` is the step's time without other work: clients, HTTP and
detokenizing share the cores with it, and slow it down. Means count, not medians: latencies are sums of steps.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sundog.actors.core.config import ConfigError
from sundog.sim.cost.calibrated import (
    Calibrated,
    ObservedRange,
    coefficients,
    fit_sums,
    nonnegative_least_squares,
)
from sundog.sim.cost.profile import HostShare
from sundog.sim.cost.work import CostModel, StepWork
from sundog.sim.files.lines import JsonLines, Row

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
    """Model, range of sizes, median relative error of a step, and number of steps."""

    model: Calibrated
    measured: ObservedRange
    median_error: float
    num_steps: int


class StepLogError(ConfigError):
    """Unreadable log of steps; the message names file, line and field."""

    @classmethod
    def at(cls, path: str, line: int, reason: str) -> "StepLogError":
        return cls(f"{path}, line {line}: {reason}")


def fit_steps(path: Path) -> StepsFitted:
    """Fit coefficients to the steps of a log. Raises ConfigError for other files."""
    rows = _steps(path)
    if len(rows) < FEWEST_STEPS:
        raise ConfigError(f"{path} has {len(rows)} steps with a duration: at least {FEWEST_STEPS} are needed")
    seconds, num_prefills, new, before, decodes, kv = rows.T
    many = np.maximum(num_prefills, 1)
    pairs = new * before / many + new * (new / many + 1) / 2
    # A decode reads its own token's keys and values, too.
    features = np.stack((np.ones(len(rows)), new + decodes, kv + decodes, decodes, pairs), axis=1)
    model = fit_sums(features, seconds)
    explained = features @ np.array(coefficients(model))
    error = float(np.median(np.abs(explained / seconds - 1)))
    measured = ObservedRange(*(float(features[:, column].max()) for column in (1, 2, 3, 4)))
    return StepsFitted(model, measured, error, len(rows))


def logged_works(path: Path) -> list[tuple[StepWork, float]]:
    """Return the work of each step of a log, with chunks assumed equal, and its seconds."""
    works = []
    for seconds, num_prefills, new, before, decodes, kv in _steps(path).tolist():
        many, num = max(1, round(num_prefills)), round(decodes)
        chunks = ((round(new / many), round(before / many)),) * round(num_prefills)
        works.append((StepWork(num, round(kv) + num, chunks, num + len(chunks)), float(seconds)))
    return works


def _steps(path: Path) -> Floats:
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
    value = row.get(name, 0)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e15:
        raise lines.error(f"{name} is {value!r}: give a number of at least 0")
    return float(value)


FEWEST_OF_A_KIND = 4
"""Fewest steps of a kind that count."""
FEW_DECODES, MORE_AT_ONCE = 12, 8
"""Number of decodes up to which each number is a kind of step of its own, and the size of groups beyond."""
FREAK = 10.0
"""Multiple of its kind's median from which a step is dropped, such as one that compiles when first used."""
Steps = Sequence[tuple[StepWork, float]]


def fit_host(steps: Steps, cost: CostModel) -> HostShare:
    """Return the host's share beyond `cost`; the time before a request is unknown here.

    Kinds of steps count by the relative errors of their means; the sum over all steps is then made right.
    Raises ConfigError for too few steps.
    """
    kinds: dict[tuple[int, int], list[tuple[float, ...]]] = defaultdict(list)
    for work, seconds in steps:
        own_s = cost.step_s(work)
        row = (own_s, 1.0, float(work.num_samples), float(len(work.chunks)), seconds - own_s, seconds)
        kinds[_kind(work)].append(row)
    found = [_usual(np.array(rows)) for rows in kinds.values() if len(rows) >= FEWEST_OF_A_KIND]
    if not found:
        raise ConfigError("too few steps ran over HTTP to fit the host's share: give --no-http")
    weights = np.array([np.sqrt(len(rows)) / rows[:, 5].sum() for rows in found])
    sums = np.array([rows.sum(axis=0) for rows in found])
    features, extra_s = sums[:, :4], sums[:, 4]
    scales = np.maximum(np.linalg.norm(features * weights[:, None], axis=0), 1e-300)
    solution = nonnegative_least_squares(features * weights[:, None] / scales, extra_s * weights) / scales
    explained_s = float((features @ solution).sum())
    if explained_s > 0:
        solution *= max(0.0, float(extra_s.sum())) / explained_s
    slower, step_s, token_s, chunk_s = (float(value) for value in solution)
    return HostShare(step_s, token_s, chunk_s, slowdown=1 + slower)


def _kind(work: StepWork) -> tuple[int, int]:
    num = work.num_decodes
    decodes = num if num <= FEW_DECODES else FEW_DECODES + -(-(num - FEW_DECODES) // MORE_AT_ONCE)
    return decodes, min(len(work.chunks), 2)


def _usual(rows: Floats) -> Floats:
    seconds = rows[:, 5]
    kept: Floats = rows[seconds <= FREAK * np.median(seconds)]
    return kept
