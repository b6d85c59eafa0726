"""Fit of a cost model to the latencies of requests, of one load of a server or of several.

Steps are unknown, but a decoding request gets a token in each: its n - 1 steps took from its first token to
its last, and their work follows from the other requests of that time. The linear model
(`sundog.sim.cost.calibrated`) sums over steps, so each such request gives one equation in its coefficients.
Others are assumed to decode evenly between their first and last token, and to prefill evenly between being
scheduled and their first. Once the fit gives the time of a prompt's step, all is fitted again with the prompt
in one step that ends with its first token, and in which each decoding request gets one token.

A prompt on an idle server took one step alone, after the latency to the engine: its TTFT is an equation, too,
in which that latency (`FRONT`) is one more unknown. It separates the cost of a prompt from that of concurrent
decodes.

Preempted requests waited in between. A log does not name them, so those that took one and a half times as
long as the fit are dropped, and the rest is fitted again.

Loads with little variation do not identify all terms: an unidentified term is set to 0 and named, and if that
is the cost of a further request in a step, the fit is refused.
"""

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sundog.actors.core.config import ConfigError
from sundog.sim.cost.calibrated import Calibrated, InRange, ObservedRange, nonnegative_least_squares
from sundog.sim.figures.server_log import read_rows
from sundog.sim.files.run_files import REQUESTS
from sundog.sim.record.run_directory import open_run

Floats = NDArray[np.float64]
TOO_LONG, NUM_FITS = 1.5, 5
TOGETHER_S = 1e-3
"""Seconds within which first tokens are assumed to be of one step."""
ROWS_AT_ONCE = 256
"""Requests whose neighbours are summed at once, to limit memory."""
STEP, TOKEN, CONTEXT, DECODE, PAIR, CHUNK, FRONT = range(7)
"""Columns of an equation."""
BY_NEED = (STEP, TOKEN, PAIR, CONTEXT, FRONT, CHUNK, DECODE)
"""Columns by importance: of two that cannot be separated the later one is dropped."""
NAMES = {
    PAIR: "the square of a prompt's length",
    CONTEXT: "a token of context",
    CHUNK: "a prompt, whatever its length",
    DECODE: "a request that decodes, beyond its token",
}
TOLD_APART = 0.02
"""Share of a column that must be independent of the others; a smaller one is lost in the scatter of steps."""


@dataclass(frozen=True, slots=True)
class Observed:
    """Columns with an element per finished request: times in seconds of one clock, tokens as float64."""

    scheduled_s: Floats
    first_token_s: Floats
    last_token_s: Floats
    num_prompt_tokens: Floats
    num_output_tokens: Floats


class Solved(NamedTuple):
    """Model, its median error, the number of dropped requests, and unidentified terms."""

    model: Calibrated
    median_error: float
    num_left_out: int
    unknown: tuple[str, ...]


class Fitted(NamedTuple):
    """Model of all loads, and its error: the median relative error of decoding times.

    `num_left_out` requests took too long for it, as preempted ones do. For several groups of loads `errors`
    are those of a fit to the others for the whole decoding time, and `others` these fits, each doubted by the
    largest error of the rest. `drift` is twice the standard deviation of the errors of loads about the mean
    of their group; 0 if each group is one load.
    """

    model: Calibrated
    measured: ObservedRange
    median_error: float
    num_left_out: int
    unknown: tuple[str, ...] = ()
    errors: tuple[float, ...] = ()
    others: tuple[InRange, ...] = ()
    drift: float = 0.0


def fit_requests(*loads: Observed, groups: Sequence[str] | None = None) -> Fitted:
    """Fit coefficients to the decoding times of one server's requests; O(requests squared).

    Loads of a group are left out together; each is a group of its own if none are given. Raises ConfigError
    for a load without a request that got more than one token, and if steps do not vary.
    """
    names = [str(index) for index in range(len(loads))] if groups is None else list(groups)
    by_kind: dict[str, list[Observed]] = defaultdict(list)
    for name, own in zip(names, loads, strict=True):
        by_kind[name].append(own)
    solved = _solve(loads)
    drift = _drift([[_off([own], solved.model) for own in kind] for kind in by_kind.values()])
    without = dict[str, tuple[Calibrated, ObservedRange]]()
    for kind in by_kind if len(by_kind) > 1 else ():
        rest = [own for name, own in zip(names, loads, strict=True) if name != kind]
        without[kind] = _solve(rest).model, _range(rest)
    errors = {kind: _off(by_kind[kind], model) for kind, (model, _) in without.items()}
    others = tuple(
        InRange(
            model, measured, doubt=max([drift, *(abs(each) for name, each in errors.items() if name != kind)])
        )
        for kind, (model, measured) in without.items()
    )
    return Fitted(
        solved.model,
        _range(loads),
        median_error=solved.median_error,
        num_left_out=solved.num_left_out,
        unknown=solved.unknown,
        errors=tuple(errors.values()),
        others=others,
        drift=drift,
    )


def _drift(off: Sequence[Sequence[float]]) -> float:
    """Return two standard deviations of the loads' errors about the means of their groups."""
    degrees = sum(len(own) - 1 for own in off)
    squares = sum(float(np.square(np.array(own) - np.mean(own)).sum()) for own in off)
    return 2 * math.sqrt(squares / degrees) if degrees else 0.0


def _off(loads: Sequence[Observed], model: Calibrated) -> float:
    equations = [_equations(observed, model) for observed in loads]
    explained = sum(float(own.explained(model).sum()) for own in equations)
    return explained / sum(float(own.seconds.sum()) for own in equations) - 1


def _range(loads: Sequence[Observed]) -> ObservedRange:
    largest = [_largest(observed) for observed in loads]
    return ObservedRange(*(max(of[part] for of in largest) for part in range(4)))


Sizes = tuple[float, float, float, float]


def _largest(observed: Observed) -> Sizes:
    """Return the largest step by its sizes at first tokens: tokens, context, decodes, pairs."""
    prompts, largest = observed.num_prompt_tokens, (0.0, 0.0, 0.0, 0.0)
    for instant in observed.first_token_s:
        running = (observed.first_token_s <= instant) & (instant < observed.last_token_s)
        begun = prompts[np.abs(observed.first_token_s - instant) <= TOGETHER_S]
        num_running, pairs = float(running.sum()), float((begun * (begun + 1) / 2).sum())
        context = float(prompts[running].sum()) + num_running
        step = (num_running + float(begun.sum()), context, num_running, pairs)
        largest = tuple(map(max, largest, step))  # type: ignore[assignment]  # of four, too
    return largest


class Equations(NamedTuple):
    """Sums over the steps of each decoding request with its seconds, and the same for lone prompts."""

    features: Floats
    seconds: Floats
    prompts: Floats
    prompt_s: Floats

    def explained(self, model: Calibrated) -> Floats:
        """Return the decoding seconds of requests by a model."""
        of = (model.step, model.per_token, model.per_context_token, model.per_decode, model.per_prefill_pair)
        found: Floats = self.features @ np.array((*of, model.per_chunk, 0.0))
        return found


def _equations(observed: Observed, model: Calibrated | None = None) -> Equations:
    """Return the equations of a load; a model, if given, locates the step that computed each first token.

    Without a model that step is assumed to begin when the request was scheduled, which is too early: prompts
    wait for the step in flight. Requests whose first or last token falls between would be charged for a
    prompt that did not delay them.
    """
    seconds = observed.last_token_s - observed.first_token_s
    decoded = (observed.num_output_tokens > 1) & (seconds > 0)
    if not decoded.any():
        raise ConfigError("cannot calibrate: no request has more than one token")
    rows = np.flatnonzero(decoded)
    placed, clock = observed, StepClock.of(observed.first_token_s[:0], observed.first_token_s[:0])
    if model is not None:
        prompt = observed.num_prompt_tokens
        own_s = model.step + model.per_chunk + model.per_token * prompt
        own_s = own_s + model.per_prefill_pair * prompt * (prompt + 1) / 2
        begun_s = np.maximum(observed.scheduled_s, observed.first_token_s - own_s)
        placed, clock = replace(observed, scheduled_s=begun_s), StepClock.of(begun_s, observed.first_token_s)
    parts = [
        _features(placed, clock, rows[start : start + ROWS_AT_ONCE])
        for start in range(0, len(rows), ROWS_AT_ONCE)
    ]
    return Equations(np.concatenate(parts), seconds[rows], *_lonely(observed))


@dataclass(frozen=True, slots=True)
class StepClock:
    """Number of steps with prompts, and their seconds, up to any time: lines through measured points.

    A decoding request gets one token per such step, however long it is, and the others evenly in the
    remaining time.
    """

    instants_s: Floats
    num_steps: Floats
    seconds: Floats

    @classmethod
    def of(cls, begun_s: Floats, ended_s: Floats) -> "StepClock":
        """Return the clock of prompts computed between these times; those that end together share a step."""
        begins, ends = list[float](), list[float]()
        for end_s, begin_s in sorted(zip(ended_s.tolist(), begun_s.tolist(), strict=True)):
            if ends and end_s - ends[-1] <= TOGETHER_S:
                begins[-1] = max(min(begins[-1], begin_s), ends[-2] if len(ends) > 1 else -math.inf)
            else:
                begins.append(max(begin_s, ends[-1]) if ends else begin_s)
                ends.append(end_s)
        lasted_s, num = np.array(ends) - np.array(begins), len(ends)
        instants_s = np.stack((np.array(begins), np.array(ends)), axis=1).reshape(-1)
        return cls(
            instants_s,
            np.repeat(np.arange(num + 1.0), 2)[1:-1],
            np.repeat([0.0, *lasted_s.cumsum()], 2)[1:-1],
        )

    def between(self, from_s: Floats, to_s: Floats) -> tuple[Floats, Floats]:
        """Return the number of steps with prompts between times, and the seconds without any."""
        if not len(self.instants_s):
            return np.zeros_like(to_s), to_s - from_s

        def risen(values: Floats) -> Floats:
            found: Floats = np.interp(to_s, self.instants_s, values)
            return found - np.interp(from_s, self.instants_s, values)

        return risen(self.num_steps), to_s - from_s - risen(self.seconds)


def _solve(loads: Sequence[Observed]) -> Solved:
    """Fit to some loads: once to find how long prompts take, and again with that time."""
    first = _solved([_equations(observed) for observed in loads])
    return _solved([_equations(observed, first.model) for observed in loads])


def _solved(equations: Sequence[Equations]) -> Solved:
    decodes = np.concatenate([own.features for own in equations])
    taken = np.concatenate([own.seconds for own in equations])
    prompts = np.concatenate([own.prompts for own in equations])
    prompt_s = np.concatenate([own.prompt_s for own in equations])
    if TOKEN not in _told_apart(decodes / taken[:, None]):
        raise ConfigError(
            "steps of these loads are all alike: nothing tells what one more request adds to a step; give"
            " loads at several rates"
        )
    num_all = len(taken)
    for _ in range(NUM_FITS):
        features = np.concatenate((decodes, prompts))
        seconds = np.concatenate((taken, prompt_s))
        weighted = features / seconds[:, None]
        columns = _told_apart(weighted)
        norms = np.linalg.norm(weighted[:, columns], axis=0)
        own = nonnegative_least_squares(weighted[:, columns] / norms, np.ones(len(seconds))) / norms
        found = np.zeros(len(BY_NEED))
        found[columns] = own
        found *= taken.sum() / (decodes @ found).sum()
        kept, kept_prompts = taken <= TOO_LONG * (decodes @ found), prompt_s <= TOO_LONG * (prompts @ found)
        if (kept.all() and kept_prompts.all()) or kept.sum() < len(taken) / 2:
            break
        decodes, taken, prompts, prompt_s = (
            decodes[kept],
            taken[kept],
            prompts[kept_prompts],
            prompt_s[kept_prompts],
        )
    error = float(np.median(np.abs(decodes @ found / taken - 1)))
    step, token, context, decode, pair, chunk, _ = (float(value) for value in found)
    model = Calibrated(
        step, token, per_context_token=context, per_decode=decode, per_prefill_pair=pair, per_chunk=chunk
    )
    unknown = tuple(NAMES[column] for column in BY_NEED if column in NAMES and column not in columns)
    return Solved(model, error, num_all - len(taken), unknown)


def _told_apart(weighted: Floats) -> list[int]:
    """Return the columns that are not nearly linear combinations of more important ones, in order."""
    basis, columns = np.zeros((len(weighted), 0)), list[int]()
    for column in BY_NEED:
        values = weighted[:, column]
        rest = values - basis @ (basis.T @ values)
        norm = float(np.linalg.norm(rest))
        if norm > TOLD_APART * float(np.linalg.norm(values)):
            basis = np.column_stack((basis, rest / norm))
            columns.append(column)
    return sorted(columns)


def _features(observed: Observed, clock: StepClock, rows: NDArray[np.int64]) -> Floats:
    first, last = observed.first_token_s, observed.last_token_s
    begin, end = first[rows, None], last[rows, None]
    later = np.maximum(observed.num_output_tokens - 1, 0.0)
    beside, plain_s = clock.between(first, last)
    rate = np.divide(np.maximum(later - beside, 0.0), plain_s, out=np.zeros_like(later), where=plain_s > 0)
    beside = np.minimum(1.0, np.divide(later, beside, out=np.ones_like(later), where=beside > 0))

    def tokens(from_s: Floats, to_s: Floats) -> Floats:
        num_steps, own_s = clock.between(from_s, to_s)
        return rate * own_s + beside * num_steps

    from_s = np.maximum(begin, first)
    to_s = np.maximum(np.minimum(end, last), from_s)
    decodes = tokens(from_s, to_s)
    context = (
        observed.num_prompt_tokens + 1 + tokens(np.broadcast_to(first, from_s.shape), from_s) + decodes / 2
    )
    prefill_s = np.maximum(first - observed.scheduled_s, 1e-9)
    overlap_s = np.minimum(end, first) - np.maximum(begin, observed.scheduled_s)
    share = np.clip(overlap_s, 0.0, None) / prefill_s
    prompt = observed.num_prompt_tokens
    num_decodes = decodes.sum(axis=1)
    columns = {
        STEP: later[rows],
        TOKEN: num_decodes + (share * prompt).sum(axis=1),
        CONTEXT: (decodes * context).sum(axis=1),
        DECODE: num_decodes,
        PAIR: (share * (prompt * (prompt + 1) / 2)).sum(axis=1),
        CHUNK: share.sum(axis=1),
        FRONT: np.zeros(len(rows)),
    }
    return np.stack([columns[column] for column in range(len(BY_NEED))], axis=1)


def _lonely(observed: Observed) -> tuple[Floats, Floats]:
    """Return the work of prompts that ran alone, and the seconds to their first tokens."""
    begin, end = observed.scheduled_s, observed.first_token_s
    order = np.argsort(begin, kind="stable")
    alone = np.zeros(len(begin), dtype=bool)
    busy_until_s = -np.inf
    for place, row in enumerate(order):
        following_s = begin[order[place + 1]] if place + 1 < len(order) else np.inf
        alone[row] = busy_until_s <= begin[row] and following_s >= end[row]
        busy_until_s = max(busy_until_s, observed.last_token_s[row])
    alone &= end > begin
    prompt, one = observed.num_prompt_tokens[alone], np.ones(int(alone.sum()))
    none = np.zeros(len(one))
    columns = {STEP: one, TOKEN: prompt, PAIR: prompt * (prompt + 1) / 2, CHUNK: one, FRONT: one}
    features = np.stack([columns.get(column, none) for column in range(len(BY_NEED))], axis=1)
    return features, (end - begin)[alone]


COLUMNS = ("first_scheduled_s", "first_token_s", "finish_s", "num_prompt_tokens", "num_output_tokens")


def read_observed(folder: Path) -> Observed:
    """Return the finished requests of a run directory, or of a server's log."""
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
