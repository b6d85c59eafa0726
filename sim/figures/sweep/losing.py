"""A run that can no longer hold its objectives, known before it has ended."""

import math
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from sim.figures.named import Objective
from sim.record.recorder import Recorder
from sim.record.rows import Rows, latencies
from sim.trace.record import TraceRequest

EVERY = 100
"""Arrivals and ends from one look at all requests to the next."""
EARLY = ("ttft_s", "queueing_s")
"""Latencies that are known before a request has ended."""


def most_above(percent: float, count: int) -> int:
    """Return how many of `count` values may lie above a limit that their percentile keeps.

    The percentile of 100 values at 95 lies between those of ranks 94 and 95, the smallest being 0. If six
    values are above the limit, rank 94 is one of them, and so is the percentile, whatever comes later.
    """
    return count - 1 - math.floor(percent / 100 * (count - 1))


def loses(
    objectives: Sequence[Objective], requests: Iterable[TraceRequest], front_end_s: float
) -> Callable[[Recorder], bool]:
    """Return a question whether the requests that have ended make an objective impossible.

    It is exact: a run that is stopped would have missed it at the end. Mean latencies are lost when their sum
    so far is more than all requests may take together.
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
        if not is_lost and calls % EVERY == 0:
            rows = Rows.of(recorder.columns)
            times = latencies(rows, front_end_s)
            owner = np.array(rows.tenant, dtype=object)
            for objective, count in zip(objectives, counts, strict=True):
                metric, limit_s = objective.metric, objective.below_s
                # A first token is final, and what it waited for; other times are known at the end.
                known = np.ones(len(owner), dtype=bool) if metric.figure in EARLY else rows.is_done
                own = known if metric.tenant is None else known & (owner == metric.tenant)
                values = getattr(times, metric.figure)[own]
                if metric.percent is None:
                    is_lost = is_lost or float(np.nansum(values)) > limit_s * count
                else:
                    is_lost = is_lost or int((values > limit_s).sum()) > most_above(metric.percent, count)
        return is_lost

    return question
