"""`sundog trace` describes a trace correctly."""

import pytest

from sundog.sim.trace.describe import bars, describe
from sundog.sim.trace.record import TraceRequest
from sundog.sim.workload.distributions import Poisson, Uniform
from sundog.sim.workload.spec import Workload


def test_a_poisson_workload_is_described_as_one() -> None:
    """Its rate, its lengths, and gaps that vary as much as they are long."""
    found = describe(Workload(2000.0, Poisson(5.0), Uniform(10, 100), Uniform(1, 9)).requests(0))
    assert found.rate_per_s == pytest.approx(5, rel=0.05)
    assert found.burstiness == pytest.approx(1, abs=0.05)
    assert found.prompt_tokens["mean"] == pytest.approx(55, rel=0.02)
    assert found.output_tokens["max"] == 9 and found.ideal_hit_rate is None
    for counts in (found.over_time, found.prompt_histogram, found.output_histogram):
        assert sum(counts) == found.num_requests


def test_regular_and_bursty_arrivals_are_told_apart() -> None:
    """Gaps that are all alike vary not at all."""
    regular = describe(TraceRequest(str(i), i * 0.5, 10, 5) for i in range(100))
    bursty = describe(TraceRequest(str(i), i // 10 * 5.0, 10, 5) for i in range(100))
    assert regular.burstiness == pytest.approx(0, abs=1e-9) and bursty.burstiness > 2


def test_a_repeated_prefix_counts_up_to_the_first_new_block() -> None:
    """A block behind a new one is no prefix, and only full blocks count."""
    rows = [
        TraceRequest("a", 0.0, 40, 1, (1, 2, 3), 16, tenant="x", session="s"),
        TraceRequest("b", 1.0, 40, 1, (1, 9, 3), 16, tenant="y", session="s"),
        TraceRequest("c", 2.0, 40, 1, (1, 2, 3), 16, tenant="x"),
    ]
    found = describe(rows)
    assert found.ideal_hit_rate == pytest.approx((0 + 16 + 32) / 120)
    assert found.tenants == {"x": 2, "y": 1} and found.num_sessions == 1


def test_the_highest_bar_is_full_and_nothing_that_is_there_is_invisible() -> None:
    """Only nothing is blank."""
    assert bars([0, 1, 1000, 500]) == " ▁█▄"
    assert bars([]) == ""
