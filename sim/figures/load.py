"""The load of a run as a share of what its engines can serve, and the regime that follows from it.

The load is the rate of arrivals over the rate at which requests can be served, whatever became of them. It
does not depend on how long the trace is: where it is 1.5, a third of the arrivals lengthens the queue, and
waiting grows, but the load stays 1.5. It is seen in two ways, of which the larger counts:

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
"""The load from which small errors of step time become large ones of waiting time."""
FEWEST_WAITED, ENOUGH_WAITED, LEAST_SHARE = 4, 20, 0.1
"""How many admissions past waiting requests tell a rate: a tenth of all, four at least, and twenty always do.
A few long answers that were in the way said 0.78 of a load of 0.27."""
Regime = Literal["below the knee", "near the knee", "beyond the knee"]
Parts = Callable[[], Iterator[tuple[Rows, NDArray[np.bool_]]]]
"""Requests in parts, in order of arrival, and which of them count, whatever became of them."""


def regime_of(saturation: float) -> Regime:
    """Return the regime: requests wait briefly, perhaps long, or ever longer while the load lasts."""
    if saturation < KNEE:
        return "below the knee"
    return "near the knee" if saturation < 1 else "beyond the knee"


def of_capacity(saturation: float) -> str:
    """Return the load in words; a share of 978 % says less than 9.8 times."""
    share = f"{saturation:.0%} of" if saturation < 1 else f"{saturation:,.1f} times"
    return f"{share} what can be served"


class _Arrived(NamedTuple):
    arrival_s: Floats
    scheduled_s: Floats
    """NaN for those that no engine began."""
    end_s: Floats
    held_tokens: Floats
    replica: Ints
    is_done: NDArray[np.bool_]


def saturation(parts: Parts, max_num_running: int | None, num_blocks: int, block_size: int) -> float | None:
    """The load over what can be served; None where it is not known how many may run.

    None, too, where all requests arrive at once, because no rate of arrivals is known, and where no engine
    began one. Requests are taken to hold the blocks of their prompts and half of their answers; prompts that
    hit the prefix cache share blocks, which this leaves out. O(n log n)
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
    """Arrivals a second over admissions a second while requests wait, in the mean over replicas.

    A request that the next step admits has waited for that step alone, and so has one that the step after it
    admits: under asynchronous scheduling the next step was filled before it arrived. If both admit others
    alone, it waits for its turn from the second on, until it is admitted or given up.
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
