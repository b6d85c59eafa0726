"""Confidence intervals cover the true value about as often as stated."""

import heapq
import math

import numpy as np
import pytest

from sundog.sim.figures.intervals import (
    Interval,
    batch_means,
    difference,
    drawn_interval,
    mean_interval,
    quantile_difference,
    run_interval,
    t_quantile,
)


@pytest.mark.parametrize(
    ("probability", "degrees", "expected"),
    [
        (0.975, 1, 12.706205),
        (0.975, 2, 4.302653),
        (0.975, 4, 2.776445),
        (0.975, 10, 2.228139),
        (0.975, 19, 2.093024),
        (0.995, 9, 3.249836),
        (0.95, 29, 1.699127),
        (0.5, 7, 0.0),
        (0.025, 19, -2.093024),
    ],
)
def test_quantiles_of_students_t_are_those_of_the_tables(
    probability: float, degrees: int, expected: float
) -> None:
    """To all the digits that are printed there."""
    assert t_quantile(probability, degrees) == pytest.approx(expected, rel=3e-7, abs=1e-9)


@pytest.mark.long(keep=1, reason="thousands of draws for each case; `make test` has one")
@pytest.mark.parametrize("count", [2, 3, 5])
def test_an_interval_of_few_values_covers_the_mean_as_often_as_it_says(count: int) -> None:
    """95 % of 20,000 samples, within two standard errors: the fewest replications are two."""
    samples = np.random.default_rng(6).normal(3.0, 2.0, (20_000, count))
    found = [mean_interval(sample) for sample in samples]
    covered = sum(interval.low <= 3 <= interval.high for interval in found)
    assert covered / len(found) == pytest.approx(0.95, abs=0.0031)


def correlated(rng: np.random.Generator, count: int, memory: float) -> np.ndarray:
    """A first-order autoregression of mean 5 in its steady state."""
    noise = rng.normal(0, 1, count + 200)
    values = np.empty(count + 200)
    values[0] = noise[0]
    for i in range(1, len(values)):
        values[i] = memory * values[i - 1] + noise[i]
    return values[200:] + 5


def test_an_interval_of_independent_values_covers_the_mean_as_often_as_it_says() -> None:
    """95 % of 1,000 samples, give or take."""
    rng = np.random.default_rng(1)
    covered = sum(
        interval.low <= 2 <= interval.high
        for interval in (mean_interval(rng.exponential(2, 40)) for _ in range(1000))
    )
    assert 900 <= covered <= 980


def test_batch_means_cover_the_mean_of_correlated_values_where_plain_ones_do_not() -> None:
    """That is what they are for."""
    rng = np.random.default_rng(2)
    runs = [correlated(rng, 3000, 0.9) for _ in range(200)]

    def coverage(intervals: list[Interval]) -> int:
        return sum(interval.low <= 5 <= interval.high for interval in intervals)

    assert coverage([run_interval(run) for run in runs]) >= 180
    assert coverage([mean_interval(run) for run in runs]) < 100


def test_the_same_arrivals_make_a_small_difference_visible() -> None:
    """Pairs are compared in spite of a spread a hundred times as large."""
    rng = np.random.default_rng(3)
    first = correlated(rng, 4000, 0.9) * 100
    second = first + 1 + rng.normal(0, 1, 4000)
    assert run_interval(second - first).excludes_zero
    assert not difference(first, second).excludes_zero


@pytest.mark.long(reason="thousands of draws")
def test_no_difference_is_shown_where_there_is_none() -> None:
    """In at least nine of ten pairs of equal runs, for means and for a quantile."""
    rng = np.random.default_rng(4)
    shown = shown_quantile = 0
    for _ in range(60):
        first, second = correlated(rng, 2000, 0.8), correlated(rng, 2000, 0.8)
        shown += difference(first, second).excludes_zero
        shown_quantile += quantile_difference(first, second, 0.9).excludes_zero
    assert shown <= 6 and shown_quantile <= 9


def test_runs_of_few_and_like_requests_are_not_taken_for_many() -> None:
    """Blocks of 5 that go on as the one before them: 20 means, and a quarter as many independent ones."""
    rng = np.random.default_rng(6)
    runs = [correlated(rng, 100, 0.9) for _ in range(100)]
    blocks_alone = [mean_interval(batch_means(run)) for run in runs]
    assert sum(not each.low <= 5 <= each.high for each in blocks_alone) > 25
    assert sum(not each.low <= 5 <= each.high for each in map(run_interval, runs)) <= 10


def test_a_tail_in_few_blocks_is_not_told() -> None:
    """The p99 of 60 requests is one of them; that of 2,000 may be one burst. Medians are told of both."""
    rng = np.random.default_rng(7)
    few, many = rng.exponential(1, 60), rng.exponential(1, 2000)
    burst = many.copy()
    burst[1000:1030] += 50
    assert math.isnan(quantile_difference(few, few * 2, 0.99).half_width)
    assert quantile_difference(many, many * 2, 0.99).excludes_zero
    assert math.isnan(quantile_difference(many, burst, 0.99).half_width)
    assert quantile_difference(few, few * 2, 0.5).excludes_zero


def test_a_shift_of_a_quantile_is_found() -> None:
    """And the same again: the bootstrap has a seed."""
    rng = np.random.default_rng(5)
    first = rng.exponential(1, 4000)
    second = np.where(first > 2, first * 1.5, first)
    found = quantile_difference(first, second, 0.99)
    assert found == quantile_difference(first, second, 0.99)
    assert found.low > 0 and found.low <= found.mean <= found.high
    assert not quantile_difference(first, second, 0.5).excludes_zero


def test_too_few_values_are_no_ground_for_an_interval() -> None:
    """NaN, and no difference shown."""
    assert math.isnan(run_interval(np.array([1.0])).half_width)
    assert not difference(np.array([1.0]), np.array([2.0])).excludes_zero
    assert math.isnan(quantile_difference(np.ones(5), np.ones(5), 0.5).half_width)
    assert len(batch_means(np.arange(7.0))) == 7


def waits(gaps_s: np.ndarray, served_s: np.ndarray, num_servers: int) -> float:
    """The mean wait in one queue in front of some servers."""
    now_s, free_s, waited_s = 0.0, [0.0] * num_servers, 0.0
    for gap_s, own_s in zip(gaps_s.tolist(), served_s.tolist(), strict=True):
        now_s += gap_s
        begin_s = max(now_s, heapq.heappop(free_s))
        waited_s += begin_s - now_s
        heapq.heappush(free_s, begin_s + own_s)
    return waited_s / len(gaps_s)


def test_intervals_of_draws_of_one_recording_hold_what_others_give() -> None:
    """Mean waits near the knee in 9 of 10 recordings; the plain interval of one more draw held 8 of 10."""
    rng, count, blocks = np.random.default_rng(4), 300, 20

    def recording() -> tuple[np.ndarray, np.ndarray]:
        return rng.exponential(1 / 2.7, count), np.exp(rng.normal(-0.5, 1, count))

    truth = float(np.mean([waits(*recording(), 3) for _ in range(600)]))
    held = []
    for _ in range(100):
        gaps_s, served_s = recording()
        drawn = []
        for _ in range(5):
            starts = rng.integers(0, count, blocks)
            rows = np.concatenate([(s + np.arange(count // blocks)) % count for s in starts])
            drawn.append(waits(gaps_s[rows], served_s[rows], 3))
        found = drawn_interval(np.array(drawn))
        held.append(found.low <= truth <= found.high)
    assert np.mean(held) >= 0.86


def test_an_interval_of_draws_is_no_wider_for_figures_that_hardly_scatter() -> None:
    """Of values of both signs, too, it is that of one more value."""
    for values in (np.array([10.0, 10.1, 9.9, 10.05]), np.array([-1.0, 2.0, 0.5])):
        plain = mean_interval(values).half_width * math.sqrt(len(values) + 1)
        assert drawn_interval(values).half_width == pytest.approx(plain, rel=0.03)
