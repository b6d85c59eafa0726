"""Load as a share of capacity, against closed forms of a queue."""

import math
from collections.abc import Sequence

import numpy as np
import pytest

from sundog.sim.figures.load import of_capacity, saturation
from sundog.sim.record.columns import Columns
from sundog.sim.record.rows import Rows

ABSENT = math.nan


def columns_of(requests: Sequence[tuple[float, float, float, str]]) -> Rows:
    """Requests by arrival, first step, end and reason."""
    columns = Columns()
    for number, (arrival_s, scheduled_s, end_s, reason) in enumerate(requests):
        index = columns.add(f"r{number}", arrival_s, 16, None)
        columns.first_scheduled_s[index], columns.finish_s[index] = scheduled_s, end_s
        columns.replica[index] = -1 if math.isnan(scheduled_s) else 0
        columns.reason[index] = reason
    return Rows.of(columns)


def load(rows: Rows, slots: int = 1, num_parts: int = 1) -> float:
    count = len(rows.arrival_s)
    cuts = np.array_split(np.arange(count), num_parts)
    parts = [Rows._make(np.asarray(c)[cut] if isinstance(c, np.ndarray) else c for c in rows) for cut in cuts]
    found = saturation(
        lambda: ((part, np.ones(len(part.arrival_s), dtype=bool)) for part in parts), slots, 10**6, 16
    )
    assert found is not None
    return found


def queue(rho: float, count: int, *, slots: int = 1, patience_s: float = math.inf, seed: int = 1) -> Rows:
    """Poisson arrivals at slots that serve each in 1 s, first come, first served, until patience ends."""
    rng = np.random.default_rng(seed)
    arrivals_s = np.cumsum(rng.exponential(1 / rho / slots, count))
    free_s, found = [0.0] * slots, []
    for arrival_s in arrivals_s.tolist():
        slot = free_s.index(min(free_s))
        begin_s = max(arrival_s, free_s[slot])
        if begin_s - arrival_s > patience_s:
            found.append((arrival_s, ABSENT, arrival_s + patience_s, "abort"))
            continue
        free_s[slot] = begin_s + 1.0
        found.append((arrival_s, begin_s, free_s[slot], "stop"))
    return columns_of(found)


@pytest.mark.parametrize("rho", [0.3, 0.8, 1.5, 3.0])
@pytest.mark.parametrize("count", [300, 3000])
def test_the_load_is_arrivals_times_service_over_slots_however_long_the_trace_is(
    rho: float, count: int
) -> None:
    """Of what arrived, not of what was hoped for: the rate of so many intervals is known to 1 in sqrt(n)."""
    rows = queue(rho, count)
    offered = (count - 1) / float(rows.arrival_s[-1] - rows.arrival_s[0])
    assert load(rows) == pytest.approx(offered, rel=0.02)
    assert offered == pytest.approx(rho, rel=4 / math.sqrt(count))


@pytest.mark.parametrize("rho", [0.5, 1.5])
def test_a_trace_that_is_played_twice_in_a_row_has_the_same_load(rho: float) -> None:
    """To a part in a hundred: with the mean interval between the two, and the queue that the first left."""
    once = queue(rho, 500)
    gap_s = (once.arrival_s[-1] - once.arrival_s[0]) / 499
    arrivals_s = np.concatenate(
        (once.arrival_s, once.arrival_s + once.arrival_s[-1] - once.arrival_s[0] + gap_s)
    )
    free_s, found = 0.0, []
    for arrival_s in arrivals_s.tolist():
        free_s = max(arrival_s, free_s) + 1.0
        found.append((arrival_s, free_s - 1.0, free_s, "stop"))
    assert load(columns_of(found)) == pytest.approx(load(once), rel=0.01)


def test_those_who_give_up_are_load() -> None:
    """Two requests come for each that is served: the others leave after 3 s, before they begin."""
    rows = queue(2.0, 2000, patience_s=3.0)
    assert 0.4 < rows.is_done.mean() < 0.6
    assert load(rows) == pytest.approx(2.0, rel=0.1)


def test_prompts_that_wait_for_the_budget_of_a_step_are_load_however_many_slots_are_free() -> None:
    """A step of 1 s takes one request of those that wait; each runs for one step, and 1,000 could."""
    for rho in (0.5, 1.5):
        rows = queue(rho, 2000)
        assert load(rows, slots=1000) == pytest.approx(rho, rel=0.15)


def test_a_replica_at_which_nobody_waits_is_as_fast_as_the_others() -> None:
    """Half a request a second comes to each of two; only the first, by chance, shows how fast it admits."""
    first = queue(0.5, 2000)
    second = [(2.0 * n + 0.3, 2.0 * n + 1.0, 2.0 * n + 2.0, "stop") for n in range(2000)]
    rows = sorted(
        [
            *((a, b, c, r, 0) for a, b, c, r in zip(*columns_in(first), strict=True)),
            *((*row, 1) for row in second),
        ]
    )
    both = columns_of([row[:4] for row in rows])
    both = both._replace(replica=np.array([row[4] for row in rows]))
    assert load(both, slots=1000) == pytest.approx(0.5, rel=0.15)


def columns_in(rows: Rows) -> tuple[Sequence[float], Sequence[float], Sequence[float], Sequence[str]]:
    """The columns of `columns_of`."""
    return (
        rows.arrival_s.tolist(),
        rows.first_scheduled_s.tolist(),
        rows.finish_s.tolist(),
        ["stop"] * len(rows.arrival_s),
    )


def test_a_wait_for_the_step_under_way_is_no_load() -> None:
    """Ten requests arrive in each step of 1 s and all are taken by the next: one in a hundred slots each."""
    found = [
        (0.1 * n + 0.05, math.ceil(0.1 * n + 0.05), math.ceil(0.1 * n + 0.05) + 1.0, "stop")
        for n in range(500)
    ]
    assert load(columns_of(found), slots=1000) == pytest.approx(0.01, rel=0.02)


def test_a_step_that_was_filled_before_a_request_arrived_passes_none() -> None:
    """Asynchronous scheduling fills a step while the one before it runs: all are taken by the second step."""
    found = [
        (0.1 * n + 0.05, math.ceil(0.1 * n + 0.05) + 1.0, math.ceil(0.1 * n + 0.05) + 2.0, "stop")
        for n in range(500)
    ]
    assert load(columns_of(found), slots=1000) == pytest.approx(0.01, rel=0.02)


def test_the_load_does_not_depend_on_how_requests_are_cut_into_parts() -> None:
    rows = queue(1.2, 400, slots=2)
    assert load(rows, slots=2, num_parts=7) == load(rows, slots=2)


def test_requests_that_arrive_at_once_have_no_load() -> None:
    rows = columns_of([(1.0, float(n), n + 1.0, "stop") for n in range(1, 9)])
    everything = np.ones(8, dtype=bool)
    assert saturation(lambda: iter([(rows, everything)]), 1, 100, 16) is None
    assert saturation(lambda: iter([(rows, everything)]), None, 100, 16) is None


def test_a_share_below_the_knee_is_a_lower_bound() -> None:
    """A service time that grows with the load makes the share of slots less than that of the load."""
    assert of_capacity(0.01) == "at least 1% of what can be served"
    assert of_capacity(0.9) == "90% of what can be served"
    assert of_capacity(1.44) == "1.4 times what can be served"
