"""The recorder and its metrics, against the plain list of every token's time."""

import functools
import io
import math
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from sundog.actors.core.batch import Admission, Batch, Chunk, Finish
from sundog.actors.core.params.sampling import Sampling
from sundog.actors.messages import StepOutput
from sundog.sim.clock import run_virtual
from sundog.sim.figures.distribution import distribution, distribution_of
from sundog.sim.figures.metrics import request_times, summarize
from sundog.sim.figures.totals import RunTerms
from sundog.sim.record.recorder import Recorder
from sundog.sim.show.summary_table import print_summary
from tests.sim.toy import Toy, counting_backend, play, recorded

SEEDS = range(30)


def played(seed: int, most_steps: int = 1) -> tuple[Toy, list[StepOutput], Recorder]:
    toy = Toy(seed, most_steps=most_steps)
    outputs = run_virtual(functools.partial(play, toy, counting_backend(toy)))
    return toy, outputs, recorded(toy, outputs)


@pytest.mark.parametrize("seed", SEEDS)
def test_rows_agree_with_every_tokens_time(seed: int) -> None:
    """First, last and number of tokens, through preemptions, idle steps and runs."""
    toy, _, recorder = played(seed, most_steps=50)
    columns = recorder.columns
    for row, name in enumerate(columns.request_id):
        times = toy.token_times_s[name]
        assert columns.num_output_tokens[row] == len(times) == toy.lengths[name]
        assert columns.first_token_s[row] == times[0]
        assert columns.finish_s[row] == times[-1]
        assert columns.first_scheduled_s[row] == toy.scheduled_s[name]
        assert columns.num_preemptions[row] == toy.preemptions.get(name, 0)
        assert columns.recomputed_tokens[row] == toy.recomputed.get(name, 0)
        assert columns.arrival_s[row] <= columns.first_scheduled_s[row] < times[0]


@pytest.mark.parametrize("seed", SEEDS)
def test_every_token_interval_is_counted_once(seed: int) -> None:
    """ITL over all tokens equals the differences of the plain list."""
    toy, _, recorder = played(seed, most_steps=50)
    plain = np.concatenate([np.diff(times) for times in toy.token_times_s.values()])
    expected, found = distribution(plain), summarize(recorder).itl_s
    assert expected is not None and found is not None
    assert found.count == expected.count
    for name in ("mean", "p50", "p90", "p99"):
        assert getattr(found, name) == pytest.approx(getattr(expected, name), rel=1e-12)


def test_preemption_and_recomputation_happen_in_these_tests() -> None:
    """The random toys reach what the laws above are about."""
    summaries = [summarize(played(seed)[2]) for seed in SEEDS]
    assert sum(s.num_preemptions for s in summaries) > 30
    assert sum(s.recomputed_tokens for s in summaries) > 300


def test_latencies_follow_their_definitions() -> None:
    """TTFT, TPOT, E2E and queueing from the columns; TPOT only beyond one token."""
    toy, _, recorder = played(1)
    times = request_times(recorder)
    for row, name in enumerate(recorder.columns.request_id):
        tokens = toy.token_times_s[name]
        assert times.ttft_s[row] == tokens[0]
        assert times.e2e_s[row] == tokens[-1]
        assert times.queueing_s[row] == toy.scheduled_s[name]
        if len(tokens) > 1:
            assert times.tpot_s[row] == (tokens[-1] - tokens[0]) / (len(tokens) - 1)
        else:
            assert math.isnan(times.tpot_s[row])


def test_totals_are_conserved() -> None:
    """Finished requests, their tokens, and rates over the span they took."""
    toy, outputs, recorder = played(2)
    summary = summarize(recorder)
    assert summary.num_finished == summary.num_requests == len(toy.lengths)
    assert summary.output_tokens == sum(toy.lengths.values())
    assert summary.num_steps == sum(len(output.end_times_s) for output in outputs)
    assert summary.duration_s == outputs[-1].end_times_s[-1]
    assert summary.output_tokens_per_s * summary.duration_s == pytest.approx(summary.output_tokens)
    assert 0 < summary.kv_use_mean < summary.kv_use_max <= 1


def test_weighted_percentiles_equal_those_of_the_repeated_values() -> None:
    """Without ever repeating them."""
    rng = np.random.default_rng(0)
    for _ in range(100):
        size = int(rng.integers(1, 30))
        values, counts = rng.exponential(size=size), rng.integers(0, 5, size)
        expected = distribution(np.repeat(values, counts))
        parts = [(values, counts)]
        found = distribution_of(partial(iter, parts))
        assert (found is None) == (expected is None)
        if found is not None and expected is not None:
            assert found.count == expected.count
            for name in ("mean", "p50", "p90", "p99"):
                assert getattr(found, name) == pytest.approx(getattr(expected, name), abs=1e-12)


def admission(name: str) -> Admission:
    return Admission(name, 4, 4, 2, (1,), None, Sampling())


def output(
    batch: Batch, end_s: float, *finished: Finish, free: int = 90, taken: int = 0, freed: int = 0
) -> StepOutput:
    return StepOutput(
        *(0, batch, end_s - 1, (end_s,), None, finished, 0, 0, free),
        num_taken_blocks=taken,
        num_free_blocks_held=free - freed,
        num_freed_blocks=freed,
    )


def first_step(*names: str) -> Batch:
    return Batch(
        1,
        admitted=tuple(admission(name) for name in names),
        chunks=tuple(Chunk(name, 2, True) for name in names),
    )


def test_an_aborted_request_gets_no_token_from_the_step_it_was_aborted_in() -> None:
    """Its earlier tokens count as intervals, but it is not among the finished."""
    recorder = Recorder(101)
    for name in ("a", "b", "c"):
        recorder.arrived(name, 0.0, 4)
    recorder.observe(output(first_step("a", "b"), 1.0))
    recorder.observe(output(Batch(2, num_decodes=2), 2.0))
    recorder.observe(output(Batch(3, num_decodes=2), 3.0, Finish("b", "abort")))
    gone = Finish("a", "abort"), Finish("c", "abort")
    recorder.observe(output(Batch(4, finished=("b", "a"), num_decodes=0), 4.0, *gone))
    assert list(recorder.columns.num_output_tokens) == [3, 2, 0]
    assert math.isnan(recorder.columns.first_token_s[2])
    summary = summarize(recorder)
    assert (summary.num_finished, summary.num_aborted) == (0, 3)
    assert summary.itl_s is not None and summary.itl_s.count == 3
    assert summary.ttft_s is None and summary.prefix_hit_rate == 0.5


def test_kv_use_stands_still_while_nothing_runs() -> None:
    """30 of 100 blocks in the first second, 10 while idle until 9, then 20 until 10."""
    recorder = Recorder(101)
    for name in ("a", "b"):
        recorder.arrived(name, 0.0, 4)
    recorder.observe(output(first_step("a"), 1.0, Finish("a", "stop"), free=90, taken=30, freed=20))
    recorder.observe(output(first_step("b"), 10.0, Finish("b", "stop"), free=100, taken=10, freed=20))
    summary = summarize(recorder)
    assert summary.kv_use_mean == pytest.approx((30 * 1 + 10 * 8 + 20 * 1) / 10 / 100)
    assert summary.kv_use_max == 0.3


def test_a_request_may_not_arrive_twice() -> None:
    """Ids are unique while a request requests."""
    recorder = Recorder(101)
    recorder.arrived("a", 0.0, 4)
    with pytest.raises(ValueError, match="a arrived twice"):
        recorder.arrived("a", 0.0, 4)
    recorder.refused("a", "full")
    assert summarize(recorder).num_refused == 1


def test_an_empty_run_has_a_summary() -> None:
    """No requests: counts of 0 and no distributions."""
    summary = summarize(Recorder(101))
    assert summary.num_requests == 0 and summary.ttft_s is None and summary.duration_s == 0
    print_summary(summary, file=io.StringIO())


def test_the_table_is_plain_where_there_is_no_terminal() -> None:
    """No colour codes, at most 80 columns, every figure that people ask for."""
    file = io.StringIO()
    print_summary(summarize(played(4)[2]), "title [not markup]", file)
    text = file.getvalue()
    assert "\x1b" not in text and max(map(len, text.splitlines())) <= 80
    for word in (
        "title [not markup]",
        "TTFT",
        "TPOT",
        "ITL",
        "E2E",
        "queueing",
        "throughput",
        "KV blocks in use",
        "prefix hits",
        "preemptions",
    ):
        assert word in text


def test_busy_seconds_are_those_in_which_a_step_runs() -> None:
    """Two bursts far apart leave the engine idle between them; overlapping steps count once."""
    recorder = Recorder(101)
    for name, start in (("a", 0.0), ("b", 90.0)):
        recorder.arrived(name, start, 4)
        batch = Batch(1, (Admission(name, 4, 4, 0, (), None, Sampling()),), (Chunk(name, 4, True),))
        ended = output(batch, start + 5, Finish(name, "stop"))
        recorder.observe(replace(ended, start_s=start))
    summary = summarize(recorder)
    assert summary.duration_s == 95 and summary.busy_fraction == pytest.approx(10 / 95)
    assert summary.tokens_per_step == 4


def test_goodput_counts_who_met_every_limit() -> None:
    """Of all that arrived; whoever never finished met none."""
    _, _, recorder = played(5)
    summary = summarize(recorder)
    assert summary.goodput_requests_per_s is None and summary.slo_attainment is None
    assert summary.ttft_s is not None and summary.e2e_s is not None
    lax = summarize(recorder, RunTerms(slo_ttft_s=1e9, slo_e2e_s=1e9))
    assert lax.slo_attainment == summary.num_finished / summary.num_requests
    assert lax.goodput_requests_per_s == pytest.approx(summary.requests_per_s)
    tight = summarize(recorder, RunTerms(slo_ttft_s=summary.ttft_s.p50, slo_e2e_s=summary.e2e_s.p90))
    times = request_times(recorder)
    expected = (times.ttft_s <= summary.ttft_s.p50) & (times.e2e_s <= summary.e2e_s.p90)
    assert tight.slo_attainment == expected.sum() / summary.num_requests < lax.slo_attainment


def test_energy_and_cost_are_per_output_token() -> None:
    """Rated power and price over the whole run, divided by what came out."""
    _, _, recorder = played(6)
    terms = RunTerms(num_gpus=2, gpu_power_w=700.0, price_per_gpu_h=3.6)
    summary = summarize(recorder, terms)
    assert summary.energy_j_per_output_token == pytest.approx(
        2 * 700 * summary.duration_s / summary.output_tokens
    )
    assert summary.cost_per_million_output_tokens == pytest.approx(
        2 * 0.001 * summary.duration_s / summary.output_tokens * 1e6
    )
