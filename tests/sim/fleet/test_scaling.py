"""Fleets that grow and shrink: the formulas, and what holds whatever a scaler wants."""

import random
from dataclasses import dataclass, replace
from typing import Any

import pytest

from actors.core.scalers import ArrivalTrend, Attainment, Hpa, Keda, ScaledFleet, Scaler
from actors.messages import Batch, Finish, StepOutput, Submit
from sim.figures.metrics import summarize
from sim.fleet.figures import FleetFigures, ScalingFigures
from sim.fleet.scaling import FleetWatch, Scaling
from sim.record.recorder import Recorder
from sim.trace.record import TraceRequest
from tests.core.traces import num_cases
from tests.sim.fleet.fleets import crowd, fleet, played

NOW = ScaledFleet(1000.0, 15.0, 4, 0, 0, 0, 0.0, 0, (), (), (), 60.0)


def test_keda_takes_the_queue_over_its_target_and_keeps_the_most_of_its_window() -> None:
    """Rounded up, at once upwards; downwards never below what was wanted in the last 300 s."""
    assert Keda(target=10).want(replace(NOW, num_running=35, num_waiting=20)) == 6
    assert Keda(target=10).want(replace(NOW, num_waiting=0)) == 0
    assert Keda(target=10).want(replace(NOW, num_waiting=5, asked=((600.0, 9), (800.0, 3)))) == 3


def test_hpa_multiplies_by_the_ratio_and_does_nothing_within_its_tolerance() -> None:
    """ceil(replicas x utilisation / target), and nothing within a tenth."""
    assert Hpa(target=0.5).want(replace(NOW, busy=0.9)) == 8
    assert Hpa(target=0.5).want(replace(NOW, busy=0.54)) == 4
    assert Hpa(target=0.5).want(replace(NOW, busy=0.2)) == 2
    assert Hpa(target=0.5).want(replace(NOW, busy=0.2, asked=((900.0, 4),))) == 4


def test_a_forecast_follows_the_line_and_an_objective_what_was_met() -> None:
    """Arrivals grow by 15 each time; an order takes four of them."""
    rising = replace(NOW, history=(15, 30, 45), arrivals=60)
    assert ArrivalTrend(per_s=2.0).want(rising) == 4
    assert Attainment(ttft_s=0.5).want(replace(NOW, ttfts_s=(0.1, 0.9))) == 5
    assert Attainment(ttft_s=0.5).want(replace(NOW, ttfts_s=(0.1,), busy=0.9)) == 4
    assert Attainment(ttft_s=0.5).want(replace(NOW, ttfts_s=(0.1,), busy=0.1)) == 3


@dataclass(frozen=True)
class Plan(Scaler):
    """As many as a list says, one number each time; the last for ever."""

    counts: tuple[int, ...]

    def want(self, fleet: ScaledFleet) -> int:
        return self.counts[min(len(fleet.asked), len(self.counts) - 1)]


def scaled(
    rows: list[TraceRequest], counts: tuple[int, ...], **options: Any
) -> tuple[Recorder, ScalingFigures]:
    """The rows on up to three replicas; asked every second, an order takes 2.5."""
    config, plan = fleet(("both",) * 3, **options)
    scaling = Scaling(Plan(counts), 1, 1.0, 2.5)
    recorder = played(rows, replace(config, pools=()), replace(plan, scaling=scaling))
    figures = summarize(recorder).fleet
    assert isinstance(figures, FleetFigures) and figures.scaling is not None
    return recorder, figures.scaling


def test_a_replica_serves_when_it_has_started_and_is_paid_until_it_is_off() -> None:
    """Ordered at 1 s, used from 3.5 s on, drained at 5 s; one is there all the time."""
    rows = [TraceRequest(f"r{n}", n / 10, 40, 4) for n in range(80)]
    recorder, figures = scaled(rows, (2, 2, 2, 2, 1))
    columns = recorder.columns
    others = [
        time_s for time_s, which in zip(columns.first_scheduled_s, columns.replica, strict=True) if which
    ]
    assert min(others) >= 3.5 and max(others) < 5.1
    assert figures.changes == ((0.0, 1), (1.0, 2), (5.0, 1)) and figures.num_starts == 1
    end_s = max(columns.finish_s)
    assert figures.gpu_hours * 3600 == pytest.approx(end_s + 4.0, abs=0.1)
    assert columns.reason == ["stop"] * 80


def test_a_replica_that_was_off_has_forgotten_its_prefixes() -> None:
    """The same prompt hits on what stayed, and misses on what came back."""
    ids = (1, 2)
    rows = [
        TraceRequest(f"r{n}", at_s, 40, 30, hash_ids=ids, hash_block_tokens=16)
        for n, at_s in enumerate([4.0, 4.0, 4.8, 4.8, 12.0, 12.0])
    ]
    recorder, _ = scaled(rows, (2, 2, 2, 2, 1, 2))
    hits = dict(zip(recorder.columns.request_id, recorder.columns.prefix_hit_tokens, strict=True))
    assert sorted([hits["r0"], hits["r1"]]) == [0, 0] and [hits["r2"], hits["r3"]] == [32, 32]
    assert sorted([hits["r4"], hits["r5"]]) == [0, 32]


def test_whatever_a_scaler_wants_every_request_is_answered_and_runs_are_the_same_bytes() -> None:
    """Any numbers at all, asked for at random; grouping steps changes nothing."""
    for seed in range(num_cases(5)):
        rng = random.Random(seed)
        counts = tuple(rng.randrange(5) for _ in range(12))
        rows = crowd(seed, num_requests=60, per_s=5.0)
        recorder, figures = scaled(rows, counts)
        assert recorder.columns.reason == ["stop"] * len(rows)
        again, same = scaled(rows, counts, decode_runs=False)
        assert summarize(recorder).to_json() == summarize(again).to_json()
        assert figures == same
        for shipped in (Keda(target=2.0), Hpa(), Attainment(ttft_s=0.01), ArrivalTrend()):
            both = []
            for decode_runs in (True, False):
                config, plan = fleet(("both",) * 3, decode_runs=decode_runs)
                plan = replace(plan, scaling=Scaling(shipped, 1, 0.3, 0.5))
                both.append(summarize(played(rows, replace(config, pools=()), plan)).to_json())
            assert both[0] == both[1], (seed, shipped)


def test_a_replica_that_still_drains_serves_at_once_when_it_is_ordered_again() -> None:
    """It has all that a start would bring: what comes next goes to both."""
    rows = [TraceRequest(f"long-{n}", 0.40 + n / 100, 40, 250) for n in range(2)]
    rows += [TraceRequest(f"next-{n}", 0.61 + n / 100, 40, 4) for n in range(2)]
    config, plan = fleet(("both",) * 2)
    scaling = Scaling(Plan((2, 2, 2, 2, 1, 2)), 1, 0.1, 0.25)
    recorder = played(rows, replace(config, pools=()), replace(plan, scaling=scaling))
    columns = recorder.columns
    assert min(columns.finish_s[:2]) > 0.63, "both are full while the second drains"
    assert sorted(columns.replica[:2]) == sorted(columns.replica[2:]) == [0, 1]


def test_a_request_that_is_handed_over_has_not_ended_for_its_scaler() -> None:
    """It goes on elsewhere, and is unfinished until that ends it."""
    watch = FleetWatch(2)
    watch.handle(Submit("a", 0.0, 4, 4))
    batch = Batch(1, (), (), (), (), (), (), (), 0)
    watch.handle(StepOutput(0, batch, 0.0, (0.1,), None, (Finish("a", "handed"),), 0, 0, 8))
    assert watch.num_unfinished == 1
    watch.handle(StepOutput(1, batch, 0.1, (0.2,), None, (Finish("a", "length"),), 0, 0, 8))
    assert watch.num_unfinished == 0
