"""Requests left out of one run of a seed are left out of all its runs."""

import gc
import math
import weakref
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from sundog.sim.figures.sweep.cells import FailedRun, Job, Measures
from sundog.sim.figures.sweep.played import Played, StepSpans, measure, measured, warm_up
from sundog.sim.figures.totals import RunTerms
from sundog.sim.record.columns import KvUse
from sundog.sim.record.rows import Floats, Rows
from sundog.sim.trace.programs import Programs

COUNT = 400


def run(ttft_s: "np.ndarray[tuple[int], np.dtype[np.float64]]", load: bytes = b"one") -> Played:
    """A request a second, with these times to the first token and a second more to the end."""
    arrival_s = np.arange(COUNT, dtype=np.float64)
    first_s, zeros, ones = arrival_s + ttft_s, np.zeros(COUNT, dtype=np.int64), np.ones(COUNT, dtype=np.int64)
    yes = np.ones(COUNT, dtype=bool)
    rows = Rows(
        *(arrival_s, arrival_s, first_s, first_s + 1, 10 * ones, 2 * ones, zeros, zeros, zeros, zeros, yes),
        *(["length"] * COUNT, [None] * COUNT),
        *(np.full(COUNT, np.nan) for _ in range(3)),
    )
    return Played.of(
        rows=rows,
        request_ids=[f"r{i}" for i in range(COUNT)],
        spans=[StepSpans(arrival_s, arrival_s + 0.5, ones, ones, ones)],
        front_end_s=0.0,
        num_blocks=10,
        terms=RunTerms(),
        load=load,
        programs=Programs(),
    )


def test_a_conclusion_does_not_flip_with_the_warm_up() -> None:
    """A setting that is worse for each request is worse, whichever run's warm-up is the longer."""
    good = np.where(np.arange(COUNT) < 160, 0.1, 10.0)
    bad = good + 0.01
    bad[200::45] += 120
    runs = [run(good), run(bad)]
    first, second = (measure(each, warm_up(each, None).request_ids)["ttft_s.mean"] for each in runs)
    assert second < first, "each without its own warm-up: the worse one looks better"
    outcomes = list(measured([({"x": 0}, 0), ({"x": 1}, 0)], runs, None))
    found: list[Measures] = [each for each in outcomes if not isinstance(each, FailedRun)]
    assert found[1]["ttft_s.mean"] > found[0]["ttft_s.mean"]
    assert found[0]["num_warmup"] == found[1]["num_warmup"] >= 160


def test_each_figure_is_of_what_came_after_the_warm_up() -> None:
    """Throughput, busy time and blocks as well as latencies; another seed has a warm-up of its own."""
    steady = np.full(COUNT, 0.25)
    (found,) = measured([({}, 0)], [run(steady)], 100.0)
    assert not isinstance(found, FailedRun)
    span_s = COUNT - 100 - 1 + 1.25
    assert found["num_warmup"] == 100
    assert found["requests_per_s"] == pytest.approx(300 / span_s)
    stepped_s = COUNT - 100 - 1 + 0.5  # the last step ends before the last answer is through the front end
    assert found["busy_fraction"] == pytest.approx(150 / stepped_s)
    assert found["kv_use_mean"] == pytest.approx(299.5 / stepped_s / 10, rel=1e-3)
    rising = np.where(np.arange(COUNT) < 100, 0.0, 5.0)
    jobs: list[Job] = [({}, 0), ({}, 1)]
    counts = [each for each in measured(jobs, [run(steady), run(rising)], None)]
    assert [each["num_warmup"] for each in counts if not isinstance(each, FailedRun)] == [0, 100]


def test_a_run_that_never_settles_cuts_nothing() -> None:
    """Neither from itself nor from another setting; nor does any run cut from one with other arrivals."""
    settling = np.where(np.arange(COUNT) < 100, 0.0, 5.0)
    growing, steady = np.arange(COUNT) / 10, np.full(COUNT, 0.25)
    runs = [run(settling), run(growing), run(steady), run(steady, b"other")]
    found: list[Measures] = []
    for each in measured([({"x": i}, 0) for i in range(4)], runs, None):
        assert not isinstance(each, FailedRun)
        found.append(each)
    assert [each["num_warmup"] for each in found] == [100, 100, 100, 0]
    assert [each["unsettled"] for each in found] == [0, 1, 0, 0]
    (alone,) = measured([({}, 0)], [run(growing)], None)
    assert not isinstance(alone, FailedRun) and alone["num_warmup"] == 0 and alone["num_measured"] == COUNT


def test_a_warm_up_that_was_asked_for_is_that_time_in_each_run() -> None:
    """A request that one setting got too early for another is no warm-up of it; few requests are no row."""
    late = run(np.full(COUNT, 0.25))
    later = late.rows._replace(arrival_s=late.rows.arrival_s + 50)
    runs = [late, replace(late, rows=later)]
    found = measured([({"x": 0}, 0), ({"x": 1}, 0)], runs, 100.0)
    assert [each["num_warmup"] for each in found if not isinstance(each, FailedRun)] == [100, 50]
    (few,) = measured([({}, 0)], [late], COUNT - 19.5)
    assert not isinstance(few, FailedRun)
    assert few["num_measured"] == 19 and math.isnan(few["ttft_s.mean"]) and math.isnan(few["requests_per_s"])


def test_blocks_in_use_are_summed_as_the_recorder_does() -> None:
    """Random steps with pauses and overlaps, of which some are samples: the same integral."""
    rng = np.random.default_rng(0)
    end_s = np.cumsum(rng.choice([0.1, 0.3, 2.0], 200))
    start_s = np.maximum(end_s - rng.choice([0.1, 0.2], 200), 0)
    held = np.where(rng.random(200) < 0.4, rng.integers(0, 50, 200), -1)
    before = np.where((held >= 0) & (rng.random(200) < 0.5), rng.integers(0, 50, 200), -1)
    after = np.where(held >= 0, rng.integers(0, 50, 200), -1)
    use, busy_s, last_s, sums = KvUse(), 0.0, 0.0, [0.0]
    steps = zip(start_s.tolist(), end_s.tolist(), before.tolist(), held.tolist(), after.tolist(), strict=True)
    for begin, end, *blocks in steps:
        busy_s, last_s = busy_s + end - max(begin, last_s), end
        use.stepped(begin, end, (blocks[0], blocks[1], blocks[2]))
        if blocks[1] >= 0:
            sums.append(use.block_seconds)
    spans, ever = StepSpans(start_s, end_s, before, held, after), np.array([0.0, np.inf])
    assert spans.busy_before(ever) == pytest.approx([0, busy_s])
    assert spans.block_seconds_before(ever)[1] == pytest.approx(use.block_seconds, rel=1e-9)
    at_samples = np.append(start_s[0], end_s[held >= 0])
    assert spans.block_seconds_before(at_samples) == pytest.approx(sums, rel=1e-9)
    between = np.sort(rng.uniform(0, end_s[-1], 1000))
    assert (np.diff(spans.block_seconds_before(between)) >= 0).all()


@pytest.mark.long(reason="holds many large runs, to count them")
def test_a_sweep_holds_few_runs_at_a_time() -> None:
    """Runs lie on disk until the warm-up of their seed is known: memory does not grow with their number."""
    alive: list[weakref.ref[Floats]] = []

    def outcomes() -> Iterator[Played]:
        for _ in range(12):
            one = run(np.full(COUNT, 0.5))
            alive.append(weakref.ref(one.busy_s))
            yield one
            del one
            gc.collect()
            assert sum(each() is not None for each in alive) <= 2

    assert len(list(measured([({"x": x}, 0) for x in range(12)], outcomes(), None))) == 12
