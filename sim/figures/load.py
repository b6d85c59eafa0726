"""Load of a run as a share of its engines' capacity, and the regime that follows.

The load is the rate of arrivals over the rate at which requests can be served, whatever their outcome. It
does not depend on the trace's length: at 1.5, a third of the arrivals lengthens the queue, and waiting grows,
but the load stays 1.5. It is estimated in two ways, of which the larger counts:

    slots    arrivals a second x seconds in service of a finished request / requests that can run at once, by
             the scarcer of running slots and KV blocks: Little's law, without the time in the queue
    waiting  arrivals a second / admissions a second while a request waits that others have passed. It counts
             where the budget of a step is scarce, and slots are not; requests that were given up before they
             were admitted count as arrivals, and not as admitted
"""

from collections.abc import Callable, Iterator
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sundog.sim.record.rows import Floats, Ints, Rows

KNEE = 0.85
"""Load from which small errors of step time become large ones of waiting time."""
FEWEST_WAITED, ENOUGH_WAITED, LEAST_SHARE = 4, 20, 0.1
"""Admissions past waiting requests needed to estimate a rate: a tenth of all, at least four, and twenty
always suffice. A few long answers in the way once gave 0.78 for a load of 0.27.
"""
Regime = Literal["below the knee", "near the knee", "beyond the knee"]
Parts = Callable[[], Iterator[tuple[Rows, NDArray[np.bool_]]]]
"""Function that yields requests in parts, by arrival, each with a mask of those that count as load."""


def regime_of(saturation: float) -> Regime:
    """Return the regime: requests wait briefly, may wait long, or wait ever longer as long as the load
    lasts.
    """
    if saturation < KNEE:
        return "below the knee"
    return "near the knee" if saturation < 1 else "beyond the knee"


def of_capacity(saturation: float) -> str:
    """Return the load in words: 978 % becomes 9.8 times.

    Below the knee it is a lower bound: at capacity a request is in service for longer.
    """
    share = f"{saturation:.0%} of" if saturation < 1 else f"{saturation:,.1f} times"
    return f"{'at least ' if saturation < KNEE else ''}{share} what can be served"


class _Arrived(NamedTuple):
    arrival_s: Floats
    scheduled_s: Floats
    """Begin of each request's first step; NaN if no engine began it."""
    end_s: Floats
    held_tokens: Floats
    replica: Ints
    is_done: NDArray[np.bool_]


def saturation(parts: Parts, max_num_running: int | None, num_blocks: int, block_size: int) -> float | None:
    """Return the load over the capacity; None if the number of running slots is unknown.

    None, too, if all requests arrive at once, because there is no rate of arrivals, and if no engine began
    one. Requests are assumed to hold the blocks of their prompts and half of their answers; blocks shared by
    prefix hits are ignored. O(n log n)
    """
    if max_num_running is None:
        return None
    rows = _arrived(parts)
    count = len(rows.arrival_s)
    if count < 2 or not (apart_s := float(rows.arrival_s.max() - rows.arrival_s.min())):
        return None
    # n arrivals have n - 1 intervals: with one more, a trace that is played twice has the same rate.
    span_s = apart_s * count / (count - 1)
    service_s = rows.end_s - rows.scheduled_s
    # One that was given up while it ran asked for as much as others; none finishes where all are given up.
    served = rows.is_done if rows.is_done.any() else ~np.isnan(service_s)
    if not served.any():
        return None
    service_s = service_s[served]
    spent_s = float(service_s.sum())
    held_tokens = float((rows.held_tokens[served] * service_s).sum())
    held_blocks = max(held_tokens / spent_s / block_size, 1.0) if spent_s else 1.0
    most = min(max_num_running, (num_blocks - 1) / held_blocks)
    return max(count / span_s * spent_s / len(service_s) / most, _waiting(rows, span_s))


def _arrived(parts: Parts) -> _Arrived:
    found: list[tuple[NDArray[Any], ...]] = []
    for rows, chosen in parts():
        held = rows.num_prompt_tokens - rows.prefix_hit_tokens + rows.num_output_tokens / 2
        columns = (rows.arrival_s, rows.first_scheduled_s, rows.finish_s, held, rows.replica, rows.is_done)
        found.append(tuple(column[chosen] for column in columns))
    return _Arrived._make(np.concatenate(column) for column in zip(*found, strict=True))


def _waiting(rows: _Arrived, span_s: float) -> float:
    """Return arrivals a second over admissions a second while requests wait, averaged over replicas.

    A request admitted by the next step waited for that step alone, and so did one admitted by the step after
    it: under asynchronous scheduling the next step was filled before it arrived. If both admit only others,
    it waits for its turn from the second on, until it is admitted or given up.
    """
    begun = ~np.isnan(rows.scheduled_s)
    given_up = ~begun & ~np.isnan(rows.end_s)
    for_each_begun = len(begun) / int(begun.sum())
    num_replicas = int(rows.replica.max(initial=0)) + 1
    loads, num_waited, all_waited_s, num_unseen = 0.0, 0, 0.0, 0
    for replica in range(num_replicas):
        own = begun & (rows.replica == replica)
        turns_s = np.sort(rows.scheduled_s[own])
        if not len(turns_s):
            continue
        arrival_s = np.concatenate((rows.arrival_s[own], rows.arrival_s[given_up]))
        until_s = np.concatenate((rows.scheduled_s[own], rows.end_s[given_up]))
        steps_s = np.unique(turns_s)
        following = np.searchsorted(steps_s, arrival_s, side="right") + 1
        first_s = steps_s[np.minimum(following, len(steps_s) - 1)]
        passed = (following < len(steps_s)) & (first_s < until_s)
        waited_s, num_admitted = _waited(first_s[passed], until_s[passed], turns_s)
        if num_admitted:
            loads += len(turns_s) * waited_s / num_admitted
            num_waited, all_waited_s = num_waited + num_admitted, all_waited_s + waited_s
        else:
            num_unseen += len(turns_s)
    if num_waited < max(FEWEST_WAITED, min(ENOUGH_WAITED, LEAST_SHARE * int(begun.sum()))):
        return 0.0
    # A replica at which nobody waited admits as fast as the others.
    loads += num_unseen * all_waited_s / num_waited
    return loads * for_each_begun / span_s / num_replicas


def _waited(begin_s: Floats, end_s: Floats, turns_s: Floats) -> tuple[float, int]:
    order = np.argsort(begin_s, kind="stable")
    begin_s, reached_s = begin_s[order], np.maximum.accumulate(end_s[order])
    apart = np.flatnonzero(begin_s[1:] > reached_s[:-1])
    if not len(begin_s):
        return 0.0, 0
    first_s = begin_s[np.concatenate((np.zeros(1, dtype=np.int64), apart + 1))]
    last_s = reached_s[np.concatenate((apart, np.array([len(begin_s) - 1])))]
    taken = np.searchsorted(turns_s, last_s, side="right") - np.searchsorted(turns_s, first_s, side="right")
    return float((last_s - first_s).sum()), int(taken.sum())
