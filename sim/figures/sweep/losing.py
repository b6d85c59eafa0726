"""Early detection of runs that can no longer meet their objectives."""

import math
from collections.abc import Callable, Iterable, Sequence, Set

import numpy as np
from numpy.typing import NDArray

from sundog.sim.figures.named import Objective
from sundog.sim.record.recorder import Recorder
from sundog.sim.record.rows import Floats, Rows, latencies
from sundog.sim.trace.record import TraceRequest

EVERY = 100
"""Arrivals and ends between two checks of all requests."""
EARLY = ("ttft_s", "queueing_s")
"""Latencies that are known before a request has ended."""


def most_above(percent: float, count: int) -> int:
    """Return how many of `count` values may lie above a limit that their percentile meets.

    The percentile of 100 values at 95 lies between those of ranks 94 and 95, the smallest being 0. If six
    values are above the limit, rank 94 is one of them, and so is the percentile, whatever comes later.
    """
    return count - 1 - math.floor(percent / 100 * (count - 1))


def loses(
    objectives: Sequence[Objective],
    requests: Iterable[TraceRequest],
    front_end_s: float,
    every: int = EVERY,
    judged: Set[str] | None = None,
) -> Callable[[Recorder], bool]:
    """Return a function that tests whether the requests so far make an objective unreachable.

    It is exact: a run that it stops would have missed the objective. A request that ended without an answer
    has missed every objective (`sundog.sim.figures.verdict`). A mean is missed when its sum so far exceeds
    the limit for all requests together. A waiting request counts with its time so far. The function checks
    all requests in every `every`th call. With `judged` the objectives apply to the requests with these ids
    alone; others arrive beside them.
    """
    tenants = [row.tenant for row in requests if judged is None or row.request_id in judged]
    counts = [
        len(tenants) if each.metric.tenant is None else tenants.count(each.metric.tenant)
        for each in objectives
    ]
    calls, is_lost = 0, False

    def question(recorder: Recorder) -> bool:
        nonlocal calls, is_lost
        calls += 1
        if not is_lost and calls % every == 0:
            rows = Rows.of(recorder.columns)
            # One that is awaited has waited until now at least.
            now_s = max([float(rows.arrival_s.max()), *map(_latest, (rows.first_token_s, rows.finish_s))])
            if judged is not None:
                rows = rows.chosen(marked(recorder, judged))
            pairs = zip(objectives, counts, strict=True)
            is_lost = any(_is_lost(each, count, rows, now_s, front_end_s) for each, count in pairs)
        return is_lost

    return question


def marked(recorder: Recorder, names: Set[str]) -> NDArray[np.bool_]:
    """Mark the rows of a recorder that have one of these ids."""
    return np.array([name in names for name in recorder.columns.request_id], dtype=bool)


def _is_lost(objective: Objective, count: int, rows: Rows, now_s: float, front_end_s: float) -> bool:
    """Return whether the rows so far make an objective over `count` requests unreachable."""
    metric, limit_s = objective.metric, objective.below_s
    values = getattr(latencies(rows, front_end_s), metric.figure)
    has_ended = np.array([reason is not None for reason in rows.reason], dtype=bool)
    if metric.figure in EARLY:
        values = np.where(np.isnan(values) & ~has_ended, now_s - rows.arrival_s, values)
    else:
        values = np.where(has_ended, values, np.nan)
    values = np.where(has_ended & ~rows.is_done, np.inf, values)
    if metric.tenant is not None:
        values = values[np.array(rows.tenant, dtype=object) == metric.tenant]
    if metric.percent is None:
        return float(np.nansum(values)) > limit_s * count
    # Between a finite value and an infinite one lies no finite percentile.
    most_infinite = count - 1 - math.ceil(metric.percent / 100 * (count - 1))
    return (
        int((values > limit_s).sum()) > most_above(metric.percent, count)
        or int(np.isinf(values).sum()) > most_infinite
    )


def _latest(times_s: Floats) -> float:
    known = times_s[~np.isnan(times_s)]
    return float(known.max()) if len(known) else 0.0
