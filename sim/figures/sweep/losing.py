"""A run that can no longer hold its objectives, known before it has ended."""

import math
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from sundog.sim.figures.named import Objective
from sundog.sim.record.recorder import Recorder
from sundog.sim.record.rows import Floats, Rows, latencies
from sundog.sim.trace.record import TraceRequest

EVERY = 100
"""The number of arrivals and ends from one look at all requests to the next."""
EARLY = ("ttft_s", "queueing_s")
"""The latencies that are known before a request has ended."""


def most_above(percent: float, count: int) -> int:
    """Return how many of `count` values may lie above a limit that their percentile keeps.

    The percentile of 100 values at 95 lies between those of ranks 94 and 95, the smallest being 0. If six
    values are above the limit, rank 94 is one of them, and so is the percentile, whatever comes later.
    """
    return count - 1 - math.floor(percent / 100 * (count - 1))


def loses(
    objectives: Sequence[Objective], requests: Iterable[TraceRequest], front_end_s: float, every: int = EVERY
) -> Callable[[Recorder], bool]:
    """Return a question whether what is known of the requests makes an objective impossible.

    It is exact: a run that is stopped would have missed it at the end. What ended without an answer has
    missed every objective (`sundog.sim.figures.verdict`). Mean latencies are lost when their sum so far is
    more than all requests may take together. A request that waits counts with the time that it has waited.
    The question looks at all requests when it is asked for the `every`th time.
    """
    tenants = [row.tenant for row in requests]
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
            pairs = zip(objectives, counts, strict=True)
            is_lost = any(_is_lost(each, count, rows, front_end_s) for each, count in pairs)
        return is_lost

    return question


def _is_lost(objective: Objective, count: int, rows: Rows, front_end_s: float) -> bool:
    """Return whether the rows so far make an objective over `count` requests unreachable."""
    metric, limit_s = objective.metric, objective.below_s
    values = getattr(latencies(rows, front_end_s), metric.figure)
    has_ended = np.array([reason is not None for reason in rows.reason], dtype=bool)
    if metric.figure in EARLY:
        # One that is awaited has waited until now at least.
        now_s = np.nanmax([rows.arrival_s.max(), *map(_latest, (rows.first_token_s, rows.finish_s))])
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
