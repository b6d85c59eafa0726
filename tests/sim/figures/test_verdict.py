"""Requests without an answer miss every objective: values by hand."""

import math

import numpy as np
import pytest

from sundog.sim.figures.named import Objective
from sundog.sim.figures.totals import Paid, RequestTotals, RunTerms
from sundog.sim.figures.verdict import all_held, verdicts, with_infinite
from sundog.sim.record.columns import Columns
from sundog.sim.record.rows import Rows, latencies


def rows(*requests: tuple[float, float, str | None, str]) -> Rows:
    """Requests that arrive at 0 with a first token, an end, a reason and a tenant."""
    columns = Columns()
    for number, (first_s, end_s, reason, tenant) in enumerate(requests):
        index = columns.add(f"r{number}", 0.0, 10, tenant)
        columns.first_token_s[index], columns.finish_s[index] = first_s, end_s
        columns.first_scheduled_s[index] = 0.0
        columns.num_output_tokens[index] = 2
        columns.reason[index] = reason
    return Rows.of(columns)


def held(text: str, of: Rows) -> tuple[bool, float, int]:
    (found,) = verdicts([Objective.parse(text)], of, latencies(of, 0.0))
    return found.is_held, found.value_s, found.num_unanswered


def test_infinite_values_are_ranked_above_all_others() -> None:
    """Of 100 values the 95th percentile lies between ranks 94 and 95, the smallest being 0."""
    values = np.arange(95.0)
    assert with_infinite(values, 5, 95.0) == math.inf  # rank 95 is infinite
    assert with_infinite(np.arange(96.0), 4, 95.0) == pytest.approx(94.05)
    assert with_infinite(values, 6, 50.0) == 50.0
    # A rank that is met exactly needs no value above it: of 101, the 95th percentile is rank 95.
    assert with_infinite(np.arange(96.0), 5, 95.0) == 95.0
    assert with_infinite(np.array([]), 3, 50.0) == math.inf
    assert math.isnan(with_infinite(np.array([]), 0, 50.0))


def test_one_request_without_an_answer_makes_a_mean_infinite() -> None:
    assert with_infinite(np.array([1.0, 2.0]), 1, None) == math.inf
    assert with_infinite(np.array([1.0, 2.0]), 0, None) == 1.5


@pytest.mark.parametrize("reason", ["abort", "error", "refused", None])
def test_whatever_ends_without_an_answer_has_missed_every_objective(reason: str | None) -> None:
    """Also TTFT, if it had its first token in time; a tenant's objective counts its own requests alone."""
    of = rows(*[(0.1, 0.2, "stop", "a")] * 9, (0.1, 0.2, reason, "b"))
    assert held("p90(ttft)<1", of) == (False, math.inf, 1)
    assert held("p85(ttft)<1", of) == (True, pytest.approx(0.1), 1)
    assert held("mean(e2e)<1", of) == (False, math.inf, 1)
    assert held("tenant a: mean(e2e)<1", of) == (True, pytest.approx(0.2), 0)
    assert held("tenant b: p50(tpot)<1", of) == (False, math.inf, 1)


def test_no_request_holds_no_objective() -> None:
    of = rows((0.1, 0.2, "stop", "a"))
    is_held, value_s, num_unanswered = held("tenant c: p50(ttft)<1", of)
    assert not is_held and math.isnan(value_s) and num_unanswered == 0
    assert all_held([])


def test_a_run_is_paid_for_until_nothing_of_it_is_left() -> None:
    """One of two requests is given up after 60 s, and a step goes on until 60.5: 0.0605 for 2 tokens."""
    of = rows((0.1, 0.2, "stop", "a"), (0.1, 60.0, "abort", "a"))
    totals = RequestTotals()
    totals.add(of, None)
    assert (totals.duration_s(), totals.duration_s(60.5), totals.duration_s(1.0)) == (60.0, 60.5, 60.0)
    assert (totals.output_tokens, totals.lost_output_tokens) == (2, 2)
    paid = Paid.of(RunTerms(num_gpus=2, price_per_gpu_h=3.6, gpu_power_w=700.0), 60.5, totals.output_tokens)
    assert paid.gpu_s == 121.0
    assert paid.cost_per_million_output_tokens == pytest.approx(121 * 0.001 / 2 * 1e6)
    assert paid.energy_j_per_output_token == pytest.approx(121 * 700 / 2)
    assert RequestTotals().duration_s() == 0.0
