"""Comparison of two runs: settings, latencies with confidence, and the requests that changed most."""

import math
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from sundog.sim.figures.intervals import Floats, Interval, difference, quantile_difference, run_interval
from sundog.sim.record.rows import finished
from sundog.sim.record.run_directory import Run, content

LATENCIES = ("ttft_s", "tpot_s", "e2e_s", "queueing_s")
STAGES = {"prefill_s": ("first_scheduled_s", "first_token_s"), "decode_s": ("first_token_s", "finish_s")}
"""Further durations to compare, with the events at which they begin and end."""
SHORT = {
    "ttft_s": "TTFT",
    "tpot_s": "TPOT",
    "e2e_s": "E2E",
    "queueing_s": "queueing",
    "prefill_s": "prefill",
    "decode_s": "decode",
}
OF_LOAD = (
    *("seed", "request_rate", "limit", "columns", "rate_scale", "prompt_scale", "output_scale"),
    *("from_s", "until_s", "sample_sessions", "max_idle_s", "tokenizer"),
)
"""Options that determine the requests, apart from the trace."""
OF_TENANTS = ("ttft_s", "e2e_s")
QUANTILES = (0.5, 0.99)
MOVED = 5


Untested = Literal["too few requests", "different requests", "whole programs"]
"""Reason why a difference has no interval."""


class Compared(NamedTuple):
    """Figure of both runs; `change` is the second value minus the first.

    `untested` is the reason why the change has no interval.
    """

    name: str
    first: float
    second: float
    change: Interval
    untested: Untested | None = None

    @property
    def ratio(self) -> float | None:
        return None if self.first == 0 else self.second / self.first - 1


class Moved(NamedTuple):
    """Request whose TTFT or E2E differs much, in seconds."""

    request_id: str
    first_s: float
    second_s: float


class Comparison(NamedTuple):
    """Comparison of two runs; `is_paired` if they had the same requests, compared one by one.

    Latencies are those of finished requests: the time of an abandoned one is not a latency. `num_finished`
    counts those that finished in the first, the second, and both: these alone are compared. `of_each` counts
    the requests of either run, and those of them that finished.
    """

    settings: dict[str, tuple[Any, Any]]
    is_paired: bool
    num_requests: int
    figures: list[Compared]
    gained: list[Moved]
    lost: list[Moved]
    num_finished: tuple[int, int, int] | None = None
    of_each: tuple[tuple[int, int], tuple[int, int]] | None = None
    num_failed: tuple[int, int] = (0, 0)


def compare(first: Run, second: Run) -> Comparison:
    """Return what changed from the first run to the second. O(requests)."""
    a, b = _columns(first), _columns(second)
    is_paired, rows = _pairing(a, b, _is_same_load(first, second))
    figures = [figure for name in SHORT for figure in _figures(SHORT[name], a[name], b[name], rows)]
    figures += _of_programs(*(run.summary.get("program_s", {}) for run in (first, second)))
    figures += _of_tenants(a, b, rows)
    gained, lost = _moved(a, b, rows) if is_paired and rows is not None else ([], [])
    names = dict.fromkeys([*first.config, *second.config])
    settings = {
        name: (first.config.get(name), second.config.get(name))
        for name in names
        if first.config.get(name) != second.config.get(name)
    }
    in_both = None if rows is None else _num_finished(a["e2e_s"], b["e2e_s"], rows)
    of_each = _counts(a["e2e_s"]), _counts(b["e2e_s"])
    num_failed = first.summary.get("num_failed", 0), second.summary.get("num_failed", 0)
    return Comparison(
        settings,
        is_paired,
        num_requests=len(a["e2e_s"]),
        figures=figures,
        gained=gained,
        lost=lost,
        num_finished=in_both,
        of_each=of_each,
        num_failed=num_failed,
    )


def replications_that_tell(change: Interval) -> int | None:
    """Return the number of pairs of runs needed to detect such a change; None if it is detected already, or
    unknown.

    An interval narrows with the square root of the sample size, so it excludes zero once n pairs make it
    narrower than the change itself: n = (half-width / change) ** 2.
    """
    if math.isnan(change.half_width) or change.excludes_zero or not change.mean:
        return None
    return max(math.ceil((change.half_width / change.mean) ** 2), 2)


Columns = dict[str, Any]
Rows = tuple["np.ndarray[Any, np.dtype[np.int64]]", "np.ndarray[Any, np.dtype[np.int64]]"]


def _columns(run: Run) -> Columns:
    table = run.requests()
    columns: Columns = {name: table[name].to_numpy().astype(np.float64) for name in (*LATENCIES, "arrival_s")}
    for name, ends in STAGES.items():
        begin_s, end_s = (table[each].to_numpy().astype(np.float64) for each in ends)
        columns[name] = end_s - begin_s
    lost = ~finished(table["reason"].to_pylist())
    for name in (*LATENCIES, *STAGES):
        columns[name][lost] = np.nan
    columns["request_id"] = table["request_id"].to_pylist()
    columns["tenant"] = np.array(table["tenant"].to_pylist(), dtype=object)
    for name in ("num_prompt_tokens", "num_output_tokens"):
        columns[name] = table[name].to_numpy()
    return columns


def _counts(e2e_s: Floats) -> tuple[int, int]:
    return len(e2e_s), int((~np.isnan(e2e_s)).sum())


def _num_finished(a: Floats, b: Floats, rows: Rows) -> tuple[int, int, int]:
    first, second = ~np.isnan(a[rows[0]]), ~np.isnan(b[rows[1]])
    return int((~np.isnan(a)).sum()), int((~np.isnan(b)).sum()), int((first & second).sum())


def _is_same_load(first: Run, second: Run) -> bool:
    """Return whether both played the same trace with the same seed, so that equal ids are the same
    request.
    """
    if "trace" not in first.config or "trace" not in second.config:
        return False
    traces = [content(run.config["trace"], run.path) for run in (first, second)]
    return traces[0] == traces[1] and all(first.config.get(n) == second.config.get(n) for n in OF_LOAD)


def _pairing(a: Columns, b: Columns, is_same_load: bool) -> tuple[bool, Rows | None]:
    where = {name: row for row, name in enumerate(b["request_id"])}
    both = [(row, where[name]) for row, name in enumerate(a["request_id"]) if name in where]
    if not both or len(both) < 0.99 * max(len(a["request_id"]), len(b["request_id"])):
        return False, None
    rows_a, rows_b = (np.array(rows) for rows in zip(*both, strict=True))
    # Later turns of sessions arrive when the answers before them have ended, in each run at its own instant.
    same = ("num_prompt_tokens",) if is_same_load else ("arrival_s", "num_prompt_tokens")
    alike = all(np.array_equal(a[name][rows_a], b[name][rows_b]) for name in same)
    return (True, (rows_a, rows_b)) if alike else (False, None)


def _of_programs(a: dict[str, float], b: dict[str, float]) -> list[Compared]:
    kinds = [kind for kind in ("mean", "p50", "p99") if kind in a and kind in b]
    return [
        Compared(f"program {k}", a[k], b[k], Interval(b[k] - a[k], np.nan), untested="whole programs")
        for k in kinds
    ]


def _of_tenants(a: Columns, b: Columns, rows: Rows | None) -> list[Compared]:
    found = []
    for tenant in sorted({*a["tenant"]} & {*b["tenant"]} - {None}):
        own_a, own_b = a["tenant"] == tenant, b["tenant"] == tenant
        for name in OF_TENANTS:
            short = f"{tenant}: {SHORT[name]}"
            if rows is None:
                found += _figures(short, a[name][own_a], b[name][own_b], None)
            else:
                both = own_a[rows[0]] & own_b[rows[1]]
                found += _figures(short, a[name], b[name], (rows[0][both], rows[1][both]))
    return found


def _figures(short: str, a: Floats, b: Floats, rows: Rows | None) -> list[Compared]:
    if rows is None:
        first, second = a[~np.isnan(a)], b[~np.isnan(b)]
        if not (len(first) and len(second)):
            return []
        changes = [difference(first, second)]
        changes += [
            Interval(float(np.quantile(second, q) - np.quantile(first, q)), np.nan) for q in QUANTILES
        ]
    else:
        first, second = a[rows[0]], b[rows[1]]
        known = ~(np.isnan(first) | np.isnan(second))
        first, second = first[known], second[known]
        if not len(first):
            return []
        changes = [run_interval(second - first)]
        changes += [quantile_difference(first, second, q) for q in QUANTILES]
    values = [(float(first.mean()), float(second.mean()))]
    values += [(float(np.quantile(first, q)), float(np.quantile(second, q))) for q in QUANTILES]
    kinds = ("mean", *(f"p{q * 100:g}" for q in QUANTILES))
    return [
        Compared(f"{short} {kind}", *pair, change, _untested(kind, change, is_paired=rows is not None))
        for kind, pair, change in zip(kinds, values, changes, strict=True)
    ]


def _untested(kind: str, change: Interval, *, is_paired: bool) -> Untested | None:
    if not math.isnan(change.half_width):
        return None
    return "too few requests" if is_paired or kind == "mean" else "different requests"


def _moved(a: Columns, b: Columns, rows: Rows) -> tuple[list[Moved], list[Moved]]:
    first, second = a["e2e_s"][rows[0]], b["e2e_s"][rows[1]]
    change = np.where(np.isnan(second - first), 0.0, second - first)
    order: Sequence[int] = np.argsort(change, kind="stable").tolist()

    def named(chosen: Sequence[int], sign: int) -> list[Moved]:
        ids = a["request_id"]
        return [
            Moved(ids[rows[0][i]], float(first[i]), float(second[i])) for i in chosen if sign * change[i] > 0
        ]

    return named(order[:MOVED], -1), named(order[::-1][:MOVED], 1)
