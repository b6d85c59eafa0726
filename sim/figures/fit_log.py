"""A cost model from a log: of steps, or of requests alone.

A log of steps holds forward-pass metrics of SGLang, vLLM, TensorRT-LLM or Sundog, version 1. Each row is a
step with its time, so that nothing must be inferred but one thing: a row sums the chunks of prefills, and
attention costs their pairs of query and key, which are taken as if its chunks were of one size. Ranks that
share their steps (attention data parallelism) are not told apart from replicas: give one's rows.

A log of requests says when each began and ended, and its numbers of tokens. Nothing is known of steps, but
a request that decodes gets a token in each: its n - 1 steps took from its first token to its last, and what
they computed follows from the other requests of that time. The linear model (`sim.cost.calibrated`) sums
over steps, so each such request gives one equation in its coefficients. Others are taken to decode evenly
between their first and last token, and to prefill evenly between being scheduled and their first.

Requests that were preempted waited in between. A log does not say which, so those that took one and a half
times as long as the fit says are left out, and the rest is fitted again.

The log of a server that `sundog calibrate` puts under load shows what serving adds to its engine's steps:

    served = slowdown engine + step + token S + chunk N

S tokens sampled, N chunks of prompts. `engine` is what the step takes where nothing else runs: clients, HTTP
and detokenising share the cores with it, and slow it down. Means count, not medians: latencies are sums of
steps.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from actors.core.config import ConfigError
from sim.cost.calibrated import Calibrated, ObservedRange, coefficients, fit_sums, nonnegative_least_squares
from sim.cost.profile import HostShare
from sim.cost.work import CostModel, StepWork
from sim.figures.validate.logs import read_rows
from sim.files.lines import JsonLines, Row
from sim.files.run_files import REQUESTS
from sim.record.run_directory import open_run

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
    measured: ObservedRange
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
    measured = ObservedRange(*(float(features[:, column].max()) for column in (1, 2, 3, 4)))
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


TOO_LONG, NUM_FITS = 1.5, 5
ROWS_AT_ONCE = 256
"""Requests whose neighbours are summed at once; bounds memory."""


@dataclass(frozen=True, slots=True)
class Observed:
    """Columns with an element per finished request: instants in seconds of one clock, tokens as float64."""

    scheduled_s: Floats
    first_token_s: Floats
    last_token_s: Floats
    num_prompt_tokens: Floats
    num_output_tokens: Floats


class Fitted(NamedTuple):
    """The model, and how far it is off: the median relative error of how long requests decoded.

    `num_left_out` took too long for it, as those do that were preempted. Of several loads `others` has the
    model that is fitted without each, and `errors` how far off that is of the whole time that each decoded.
    """

    model: Calibrated
    measured: ObservedRange
    median_error: float
    num_left_out: int
    errors: tuple[float, ...] = ()
    others: tuple[Calibrated, ...] = ()


def fit_requests(*loads: Observed) -> Fitted:
    """The coefficients that explain best how long requests of one server decoded; O(requests squared).

    Raises ConfigError for a load without a request that got more than one token.
    """
    equations = [_equations(observed) for observed in loads]
    model, median_error, num_left_out = _fit_equations(equations)
    errors, others = list[float](), list[Calibrated]()
    for index, (features, taken) in enumerate(equations if len(loads) > 1 else ()):
        other, _, _ = _fit_equations([*equations[:index], *equations[index + 1 :]])
        others.append(other)
        errors.append(float((features @ np.array(coefficients(other))).sum() / taken.sum() - 1))
    largest = [_largest(observed) for observed in loads]
    measured = ObservedRange(*(max(of[part] for of in largest) for part in range(4)))
    return Fitted(model, measured, median_error, num_left_out, tuple(errors), tuple(others))


def _largest(observed: Observed) -> tuple[float, float, float, float]:
    """The largest step by its sizes at first tokens: tokens, context, decodes, and pairs of a prompt."""
    prompts, tokens, context, decodes = observed.num_prompt_tokens, 0.0, 0.0, 0.0
    for instant, prompt in zip(observed.first_token_s, prompts, strict=True):
        running = (observed.first_token_s <= instant) & (instant < observed.last_token_s)
        num_running = float(running.sum())
        tokens = max(tokens, num_running + float(prompt))
        context, decodes = (
            max(context, float(prompts[running].sum()) + num_running),
            max(decodes, num_running),
        )
    longest = float(prompts.max())
    return tokens, context, decodes, longest * (longest + 1) / 2


Equations = tuple[Floats, Floats]
"""Of each request that decoded, the sums of `_features`, and the seconds."""


def _equations(observed: Observed) -> Equations:
    seconds = observed.last_token_s - observed.first_token_s
    decoded = (observed.num_output_tokens > 1) & (seconds > 0)
    if not decoded.any():
        raise ConfigError("nothing to calibrate from: no request with more than one token")
    rows = np.flatnonzero(decoded)
    parts = [
        _features(observed, rows[start : start + ROWS_AT_ONCE]) for start in range(0, len(rows), ROWS_AT_ONCE)
    ]
    return np.concatenate(parts), seconds[rows]


def _fit_equations(equations: Sequence[Equations]) -> tuple[Calibrated, float, int]:
    """The model, its median error, and how many requests took too long for it."""
    features = np.concatenate([own for own, _ in equations])
    taken = np.concatenate([seconds for _, seconds in equations])
    num_all = len(taken)
    for _ in range(NUM_FITS):
        model = fit_sums(features, taken)
        explained = features @ np.array(coefficients(model))
        kept = taken <= TOO_LONG * explained
        if kept.all() or kept.sum() < len(taken) / 2:
            break
        features, taken = features[kept], taken[kept]
    error = float(np.median(np.abs(features @ np.array(coefficients(model)) / taken - 1)))
    return model, error, num_all - len(taken)


def _features(observed: Observed, rows: NDArray[np.int64]) -> Floats:
    """Steps, tokens, context, decodes and pairs while these requests decoded, each summed."""
    first, last = observed.first_token_s, observed.last_token_s
    begin, end = first[rows, None], last[rows, None]
    later = np.maximum(observed.num_output_tokens - 1, 0.0)
    rate = np.divide(later, last - first, out=np.zeros_like(later), where=last > first)
    from_s, to_s = np.maximum(begin, first), np.minimum(end, last)
    decodes = rate * np.maximum(to_s - from_s, 0.0)
    context = observed.num_prompt_tokens + 1 + rate * ((from_s + to_s) / 2 - first)
    prefill_s = np.maximum(first - observed.scheduled_s, 1e-9)
    overlap_s = np.minimum(end, first) - np.maximum(begin, observed.scheduled_s)
    share = np.clip(overlap_s, 0.0, None) / prefill_s
    prompt = observed.num_prompt_tokens
    num_decodes = decodes.sum(axis=1)
    return np.stack(
        (
            later[rows],
            num_decodes + (share * prompt).sum(axis=1),
            (decodes * context).sum(axis=1),
            num_decodes,
            (share * (prompt * (prompt + 1) / 2)).sum(axis=1),
        ),
        axis=1,
    )


COLUMNS = ("first_scheduled_s", "first_token_s", "finish_s", "num_prompt_tokens", "num_output_tokens")


def read_observed(folder: Path) -> Observed:
    """The finished requests of a run directory, or of a server's log."""
    if (folder / REQUESTS).is_file():
        table = open_run(folder).requests()
        columns = [table[name].to_numpy().astype(np.float64) for name in COLUMNS]
        # A client does not know when its request was scheduled: for all it knows, at once.
        columns[0] = np.where(np.isnan(columns[0]), table["arrival_s"].to_numpy(), columns[0])
        done = ~np.isnan(columns[1]) & ~np.isnan(columns[2])
        return Observed(*(column[done] for column in columns))
    rows = read_rows(folder / "requests.jsonl.gz")
    scheduled = [float(row.get("scheduled_ts", row["queued_ts"])) for row in rows]
    names = ("first_token_ts", "last_token_ts", "input_toks", "output_toks")
    return Observed(
        np.array(scheduled), *(np.array([row[name] for row in rows], dtype=np.float64) for name in names)
    )


FEWEST_OF_A_KIND = 4
"""Of one kind of steps, to count."""
FEW_DECODES, MORE_AT_ONCE = 12, 8
"""Steps of up to so many decodes are kinds of their own; beyond, so many numbers are one kind."""
FREAK = 10.0
"""A step that takes so many times the median of its kind is left out: what is compiled at first use, say."""
Steps = Sequence[tuple[StepWork, float]]


def fit_host(steps: Steps, cost: CostModel) -> HostShare:
    """The host's share beyond `cost`; what it adds to a request in front is not known here.

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
        raise ConfigError("too few steps were served to tell the host's share: give --no-http")
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
    """The steps of a kind without freaks."""
    seconds = rows[:, 5]
    kept: Floats = rows[seconds <= FREAK * np.median(seconds)]
    return kept
