"""Autoscaled fleets: invariants for any scaler, over random loads."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import ceil, isnan
from typing import Any

import pytest

from sundog.actors.config import EngineConfig
from sundog.actors.core.routers import RoundRobin
from sundog.actors.core.routers.fleet_state import Role
from sundog.actors.core.scalers import SCALERS, ArrivalTrend, Attainment, Hpa, Keda, ScaledFleet, Scaler
from sundog.actors.kernel.actor import Actor
from sundog.actors.messages import Batch, Finish, Heard, Routed, StepOutput, Submit
from sundog.sim.figures.metrics import summarize
from sundog.sim.fleet.faults import DeadEngine, PlannedFault
from sundog.sim.fleet.figures import FleetFigures, ScalingFigures
from sundog.sim.fleet.plan import FleetPlan
from sundog.sim.fleet.scaling import Scaling
from sundog.sim.fleet.watch import FleetWatch
from sundog.sim.record.recorder import Recorder
from sundog.sim.trace.record import TraceRequest
from tests.core.traces import num_cases
from tests.sim.fleet.fleets import crowd, fleet, played


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
    recorder = played(rows, replace(config, pools=()), replace(plan, scaling=(scaling,)))
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


@pytest.mark.long(reason="replays many requests, or many random cases", moderate=True)
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
                plan = replace(plan, scaling=(Scaling(shipped, 1, 0.3, 0.5),))
                both.append(summarize(played(rows, replace(config, pools=()), plan)).to_json())
            assert both[0] == both[1], (seed, shipped)


# --- laws over random loads -------------------------------------------------------------------------


@dataclass
class Witness(Scaler):
    """Asks another scaler, and keeps what it was shown and what it answered."""

    inner: Scaler

    def __post_init__(self) -> None:
        self.seen: list[tuple[ScaledFleet, int]] = []
        self.up_s, self.down_s = self.inner.up_s, self.inner.down_s

    def want(self, fleet: ScaledFleet) -> int:
        self.seen.append((fleet, answer := self.inner.want(fleet)))
        return answer


class Rooms(Actor[Heard]):
    """Keeps how many replicas the Router could choose from, whenever it chose."""

    def __init__(self) -> None:
        super().__init__("rooms")
        self.seen: list[tuple[float, int]] = []

    def handle(self, message: Heard) -> None:
        if isinstance(message, Routed):
            self.seen.append((self.clock.now_s(), message.num_up))


def scaler_of(name: str, rng: random.Random, down_s: float) -> Scaler:
    """A built-in scaler that moves under the loads of these tests."""
    fields: dict[str, Any] = {
        "keda": {"target": rng.choice([1.0, 2.0, 5.0])},
        "hpa": {"target": rng.choice([0.1, 0.4, 0.7])},
        "attainment": {"ttft_s": rng.choice([0.002, 0.01])},
        "forecast": {"per_s": rng.choice([5.0, 30.0])},
    }[name]
    return SCALERS[name](down_s=down_s, **fields)


@dataclass
class Played:
    """A run of a random load under a scaler, and what is needed to judge it."""

    recorder: Recorder
    scaling: ScalingFigures
    witness: Witness
    rooms: Rooms
    terms: Scaling
    most: int
    ended_s: float


def random_run(name: str, seed: int, faults: tuple[PlannedFault, ...] = (), **options: Any) -> Played:
    """Bursts on up to four replicas, asked every 0.1 to 0.4 s; a last request long after them."""
    rng = random.Random(f"{name} {seed}")
    most, least = rng.choice([2, 3, 4]), rng.choice([1, 1, 2])
    every_s, start_s = rng.choice([0.1, 0.15, 0.4]), rng.choice([0.0, 0.1, 0.25, 1.0])
    down_s = rng.choice([0.0, 0.05, 0.3, 1.0])
    rows = crowd(seed, num_requests=rng.choice([1, 10, 60]), per_s=rng.choice([10.0, 60.0, 300.0]))
    last_s = rows[-1].arrival_s + 60.0
    witness, rooms = Witness(scaler_of(name, rng, down_s)), Rooms()
    terms = Scaling(witness, least, every_s, start_s)
    roles: tuple[Role, ...] = ("both",) * most
    config, plan = fleet(roles, **options)
    plan = replace(plan, scaling=(terms,), faults=faults)
    recorder = played(
        [*rows, TraceRequest("last", last_s, 20, 2)], replace(config, pools=()), plan, listeners=[rooms]
    )
    found = summarize(recorder).fleet
    assert isinstance(found, FleetFigures) and found.scaling is not None
    ends_s = [end_s for end_s in recorder.columns.finish_s if end_s < last_s]
    # What an engine took with it has no end of its own: it was over when the engine crashed.
    ended_s = max([*ends_s, rows[-1].arrival_s, *(fault.at_s for fault in faults)])
    return Played(recorder, found.scaling, witness, rooms, terms, most, ended_s)


def rises(changes: Sequence[tuple[float, int]]) -> int:
    """The sum of what a line rises by."""
    return sum(max(after - before, 0) for (_, before), (_, after) in pairwise(changes))


def wanted_at(changes: Sequence[tuple[float, int]], time_s: float) -> int:
    """The wanted line before an instant."""
    return [count for at_s, count in changes if at_s < time_s][-1]


def check_laws(run: Played) -> None:
    """Starts are rises; what there is is what was wanted; without demand the fewest are wanted."""
    changes, terms = run.scaling.changes, run.terms
    assert run.scaling.num_starts == rises(changes)
    for fleet_then, _ in run.witness.seen:
        assert fleet_then.num_replicas == wanted_at(changes, fleet_then.now_s)
        assert terms.least <= fleet_then.num_replicas <= run.most
    assert {*run.recorder.columns.reason} <= {"stop", "error", "refused"}
    quiet_s = run.ended_s + terms.scaler.down_s + 2 * terms.every_s
    assert all(count == terms.least for time_s, count in changes if quiet_s < time_s < run.ended_s + 50.0)
    assert wanted_at(changes, run.ended_s + 50.0) == terms.least


@pytest.mark.parametrize("name", SCALERS)
def test_starts_are_rises_and_nobody_is_kept_without_demand(name: str) -> None:
    """Over random loads, and the Router has what is wanted wherever nothing starts."""
    for seed in range(num_cases(12)):
        run = random_run(name, seed)
        check_laws(run)
        assert run.recorder.columns.reason == ["stop"] * len(run.recorder.columns.reason)
        changes, terms = run.scaling.changes, run.terms
        for time_s, num_up in run.rooms.seen:
            since_s = max(at_s for at_s, _ in changes if at_s < time_s or at_s == 0.0)
            if time_s > since_s + terms.start_s:
                assert num_up == wanted_at(changes, time_s), (seed, time_s)
            assert num_up <= max(count for at_s, count in changes if at_s <= time_s)


@pytest.mark.long(keep=1, reason="more cases of the law whose first `make test` runs", moderate=True)
@pytest.mark.parametrize("name", SCALERS)
def test_the_laws_hold_when_engines_crash_while_they_start_serve_or_drain(name: str) -> None:
    for seed in range(num_cases(12)):
        rng = random.Random(seed)
        faults = tuple(
            DeadEngine(
                kind="dead-engine",
                at_s=rng.uniform(0, 2.0),
                replica=rng.randrange(2),
                down_s=rng.choice([0.0, 0.05, 0.5, 2.0]),
            )
            for _ in range(rng.randint(1, 4))
        )
        check_laws(random_run(name, seed, faults))


def test_keda_follows_the_documented_formula_over_the_table_of_requests() -> None:
    """Each answer is ceil(unfinished / target) of the table, and each decision that of the window."""
    for seed in range(num_cases(12)):
        run = random_run("keda", seed)
        columns, terms = run.recorder.columns, run.terms
        inner = run.witness.inner
        assert isinstance(inner, Keda)
        times = list(zip(columns.arrival_s, columns.finish_s, strict=True))
        count, raw, line = terms.least, list[tuple[float, int]](), [(0.0, terms.least)]
        for fleet_then, answer in run.witness.seen:
            now_s = fleet_then.now_s
            unfinished = sum(arrival_s <= now_s < finish_s for arrival_s, finish_s in times)
            within = abs(unfinished / (inner.target * count) - 1) <= 0.1
            assert answer == (count if within else ceil(unfinished / inner.target)), (seed, now_s)
            raw.append((now_s, answer))
            highest = max(value for time_s, value in raw if time_s >= now_s - inner.down_s)
            wanted = answer if answer > count else min(count, highest)
            wanted = min(max(wanted, terms.least), run.most)
            if wanted != count:
                line.append((now_s, wanted))
            count = wanted
        assert tuple(line) == run.scaling.changes


def test_a_replica_scaled_away_while_it_drains_is_neither_idle_nor_busy() -> None:
    """Its last request is counted as running; its computing is nobody's share."""
    rows = [TraceRequest("short", 2.0, 40, 10), TraceRequest("long", 2.01, 40, 250)]
    config, plan = fleet(("both",) * 2)
    witness = Witness(Plan((2,) * 20 + (1,)))
    plan = replace(plan, scaling=(Scaling(witness, 1, 0.1, 0.0),))
    recorder = played(rows, replace(config, pools=(), router=RoundRobin()), plan)
    assert [*recorder.columns.replica] == [0, 1] and recorder.columns.finish_s[0] < 2.1
    after = [then for then, _ in witness.seen if 2.15 < then.now_s < recorder.columns.finish_s[1]]
    assert len(after) > 1
    assert all((then.num_running, then.num_up, then.busy) == (1, 1, 0.0) for then in after)


# --- pools that scale each by its own scaler --------------------------------------------------------


def pools_of(
    roles: Sequence[Role], scalings: dict[str, Scaler], every_s: float, start_s: float, **options: Any
) -> tuple[EngineConfig, FleetPlan]:
    """A fleet with a pool for each role, each with its scaler."""
    config, plan = fleet(roles, **options)
    engines = tuple(replace(engine, pool=engine.role) for engine in plan.engines)
    scaling = tuple(Scaling(scaler, 1, every_s, start_s, name) for name, scaler in scalings.items())
    return config, replace(plan, engines=engines, scaling=scaling)


FOUR: tuple[Role, ...] = ("prefill", "prefill", "decode", "decode")


def test_each_pool_scales_by_the_requests_that_it_has() -> None:
    """By hand: four prompts take milliseconds, their transfers, which share a link, half a second.

    At 1.1 s none is prefilled and four wait to be decoded, of which a replica takes two. They are fetched at
    1 + 0.25 + 4 x 64 / 1000 s, and decoded a few steps of 1.4 ms later: at 1.6 s there is nothing to do.
    """
    prefilled, decoded = Witness(Keda(target=2, down_s=0)), Witness(Keda(target=2, down_s=0))
    scalings: dict[str, Scaler] = {"prefill": prefilled, "decode": decoded}
    config, plan = pools_of(FOUR, scalings, 0.1, 0.05, rate=1000.0, latency_s=0.25)
    rows = [TraceRequest(f"r{n}", 1.0, 50, 12) for n in range(4)]
    recorder = played([*rows, TraceRequest("last", 3.0, 50, 2)], config, plan)
    assert min(recorder.columns.first_token_s) > 1.5 and max(recorder.columns.finish_s[:4]) < 1.6
    figures = summarize(recorder).fleet
    assert isinstance(figures, FleetFigures) and figures.scaling is not None
    first, last = figures.scaling.pools
    assert (first.pool, last.pool) == ("prefill", "decode")
    assert first.changes == ((0.0, 1),) and first.num_starts == 0
    line = [(round(time_s, 6), count) for time_s, count in last.changes]
    assert line == [(0.0, 1), (1.1, 2), (1.6, 1)] and last.num_starts == 1
    waiting = {round(then.now_s, 6): then.num_waiting + then.num_running for then, _ in decoded.seen}
    assert [waiting[time_s] for time_s in (1.0, 1.1, 1.5, 1.6)] == [0, 4, 4, 0]
    assert sum(then.arrivals for then, _ in decoded.seen if then.now_s < 2) == 4
    end_s = max(steps.last_end_s for steps in recorder.steps)
    # From the first arrival on, which is at 1 s.
    assert first.gpu_hours * 3600 == pytest.approx(end_s - 1)
    assert last.gpu_hours * 3600 == pytest.approx(end_s - 1 + 0.5)
    assert figures.scaling.gpu_hours == pytest.approx(first.gpu_hours + last.gpu_hours)


@pytest.mark.long(keep=1, reason="more cases of the law whose first `make test` runs", moderate=True)
@pytest.mark.parametrize("name", ["keda", "hpa", "attainment"])  # forecast looks back, at no arrivals
def test_the_hours_of_a_fleet_do_not_depend_on_when_its_trace_begins(name: str) -> None:
    """They are those from the first arrival on, and so is the share of GPUs by which a price is cut."""
    found = []
    for later_s in (0.0625, 128.0625):
        config, plan = fleet(("both",) * 3)
        scaler = scaler_of(name, random.Random(3), 0.3)
        plan = replace(plan, scaling=(Scaling(scaler, 1, 0.125, 0.25),))
        rows = [row._replace(arrival_s=row.arrival_s + later_s) for row in crowd(5, 120, 60.0)]
        rows[0] = rows[0]._replace(arrival_s=later_s)
        recorder = played(rows, replace(config, pools=()), plan)
        figures = summarize(recorder).fleet
        assert isinstance(figures, FleetFigures) and figures.scaling is not None
        found.append(figures)
    early, late = found
    assert early.scaling is not None and late.scaling is not None and early.scaling.num_starts > 0
    for field in ("gpu_hours", "busy_gpu_hours", "all_gpu_hours", "mean_replicas", "share"):
        value = getattr(early.scaling, field)
        assert getattr(late.scaling, field) == pytest.approx(value, rel=1e-6), field
    assert late.pools[0].busy_fraction == pytest.approx(early.pools[0].busy_fraction, rel=1e-6)


def test_a_pool_without_a_scaler_has_all_its_engines() -> None:
    """It is paid for all the time, and the line is of the pools that scale."""
    config, plan = pools_of(FOUR, {"decode": Keda()}, 0.1, 0.05)
    recorder = played([TraceRequest(f"r{n}", n / 2, 50, 12) for n in range(6)], config, plan)
    figures = summarize(recorder).fleet
    assert isinstance(figures, FleetFigures) and figures.scaling is not None
    end_s = max(steps.last_end_s for steps in recorder.steps)
    assert figures.scaling.changes == ((0.0, 1),) and len(figures.scaling.pools) == 1
    assert figures.scaling.gpu_hours * 3600 == pytest.approx(3 * end_s)
    assert figures.scaling.mean_replicas == pytest.approx(3.0)


def test_a_prefilling_replica_is_paid_for_until_its_blocks_are_fetched() -> None:
    """Drained at 1.1 s, while its prompt, computed by 1.01 s, is fetched until 1.314 s."""
    config, plan = pools_of(
        ("prefill", "prefill", "decode"),
        {"prefill": Plan((2,) * 10 + (1,))},
        0.1,
        0.0,
        rate=1000.0,
        latency_s=0.25,
        router=RoundRobin(),
    )
    rows = [TraceRequest("a", 0.5, 50, 2), TraceRequest("b", 1.0, 50, 2), TraceRequest("last", 3.0, 50, 2)]
    recorder = played(rows, config, plan)
    figures = summarize(recorder).fleet
    assert isinstance(figures, FleetFigures) and figures.scaling is not None
    (pool,) = figures.scaling.pools
    assert [count for _, count in pool.changes] == [1, 2, 1]
    end_s, fetched_s = max(steps.last_end_s for steps in recorder.steps), recorder.columns.first_token_s[1]
    assert 1.314 < fetched_s < 1.33
    # The first arrives at 0.5 s. The other is off when its blocks are fetched, a step before the first token.
    assert pool.gpu_hours * 3600 == pytest.approx(end_s - 0.5 + fetched_s - 0.5, abs=0.003)


@pytest.mark.long(keep=1, reason="more cases of the law whose first `make test` runs", moderate=True)
@pytest.mark.parametrize("name", SCALERS)
def test_the_laws_hold_for_each_pool(name: str) -> None:
    """Whatever the roles are; the TTFTs of both parts of a request add up to what its client saw."""
    for seed in range(num_cases(8)):
        rng = random.Random(f"{name} {seed}")
        roles: Any = rng.choice([FOUR, ("prefill", "decode", "decode"), ("both", "both", "both")])
        every_s, start_s, down_s = rng.choice([0.1, 0.4]), rng.choice([0.0, 0.25]), rng.choice([0.0, 0.3])
        witnesses = {role: Witness(scaler_of(name, rng, down_s)) for role in dict.fromkeys(roles)}
        config, plan = pools_of(
            roles, dict(witnesses), every_s, start_s, rate=rng.choice([4000.0, 1e6]), latency_s=0.001
        )
        rows = crowd(seed, num_requests=40, per_s=rng.choice([20.0, 200.0]))
        last = TraceRequest("last", rows[-1].arrival_s + 60.0, 20, 2)
        recorder = played([*rows, last], config, plan)
        columns = recorder.columns
        assert columns.reason == ["stop"] * 41
        ended_s = max(columns.finish_s[:-1])
        figures = summarize(recorder).fleet
        assert isinstance(figures, FleetFigures) and figures.scaling is not None
        ttfts_s = 0.0
        for pool in figures.scaling.pools:
            seen = witnesses[pool.pool].seen
            ttfts_s += sum(sum(then.ttfts_s) for then, _ in seen if then.now_s < ended_s + 50)
            assert pool.num_starts == rises(pool.changes)
            assert all(then.num_replicas == wanted_at(pool.changes, then.now_s) for then, _ in seen)
            quiet_s = ended_s + down_s + 2 * every_s
            assert not [1 for time_s, _ in pool.changes if quiet_s < time_s < ended_s + 50.0]
            assert wanted_at(pool.changes, ended_s + 50.0) == 1
            busy_s = sum(then.busy * then.num_up * every_s for then, _ in seen)
            computed = [
                steps.busy_s
                for steps, engine in zip(recorder.steps, plan.engines, strict=True)
                if engine.pool == pool.pool
            ]
            assert busy_s <= sum(computed) * (1 + 1e-9), (seed, pool.pool)
        pairs = zip(columns.first_token_s[:-1], columns.arrival_s[:-1], strict=True)
        assert ttfts_s == pytest.approx(sum(token_s - arrival_s for token_s, arrival_s in pairs))


def test_an_engine_that_waits_for_its_blocks_to_be_fetched_does_not_compute() -> None:
    """Three prompts of 16 blocks fill the caches of 48 until they are fetched, four seconds a prompt."""
    witness = Witness(Plan((1,)))
    config, plan = pools_of(("prefill", "decode"), {"prefill": witness}, 0.1, 0.0, rate=64.0)
    rows = [TraceRequest(f"r{n}", 1.0, 256, 2) for n in range(4)]
    recorder = played(rows, config, plan)
    assert recorder.columns.reason == ["stop"] * 4 and recorder.columns.first_token_s[0] > 4.9
    computed_s = recorder.steps[0].busy_s
    assert computed_s == pytest.approx(0.0, abs=0.05) and computed_s > 0.01
    assert sum(then.busy * 0.1 for then, _ in witness.seen) == pytest.approx(computed_s)
    assert max(then.num_waiting for then, _ in witness.seen if 2 < then.now_s < 4) > 0


@pytest.mark.parametrize("name", SCALERS)
def test_the_laws_hold_for_each_pool_when_its_engines_crash(name: str) -> None:
    """Starts are rises, what there is was wanted, and without demand one of each pool is kept.

    A prompt whose decoding engine has crashed keeps its blocks for 480 s, and others wait for them.
    """
    for seed in range(num_cases(2)):
        rng = random.Random(f"{name} crash {seed}")
        every_s, start_s, down_s = rng.choice([0.2, 0.5]), rng.choice([0.0, 0.25]), rng.choice([0.0, 0.3])
        witnesses = {role: Witness(scaler_of(name, rng, down_s)) for role in dict.fromkeys(FOUR)}
        config, plan = pools_of(
            FOUR, dict(witnesses), every_s, start_s, rate=rng.choice([4000.0, 1e6]), latency_s=0.001
        )
        faults = tuple(
            DeadEngine(
                kind="dead-engine",
                at_s=rng.uniform(0, 2.0),
                replica=rng.randrange(len(FOUR)),
                down_s=rng.choice([0.0, 0.05, 0.5, 2.0]),
            )
            for _ in range(rng.randint(1, 4))
        )
        rows = crowd(seed, num_requests=40, per_s=rng.choice([20.0, 200.0]))
        last = TraceRequest("last", 1100.0, 20, 2)
        recorder = played([*rows, last], config, replace(plan, faults=faults))
        columns = recorder.columns
        assert {*columns.reason} <= {"stop", "error", "refused"} and columns.reason[-1] == "stop"
        # What an engine took with it has no end of its own (NaN): it was over when the engine crashed.
        ends_s = [end_s for end_s in columns.finish_s[:-1] if not isnan(end_s)]
        ended_s = max([*ends_s, rows[-1].arrival_s, *(fault.at_s for fault in faults)])
        assert ended_s < 1000
        figures = summarize(recorder).fleet
        assert isinstance(figures, FleetFigures) and figures.scaling is not None
        for pool in figures.scaling.pools:
            seen = witnesses[pool.pool].seen
            assert pool.num_starts == rises(pool.changes)
            assert all(then.num_replicas == wanted_at(pool.changes, then.now_s) for then, _ in seen)
            quiet_s = ended_s + down_s + 2 * every_s
            assert not [1 for time_s, _ in pool.changes if quiet_s < time_s < ended_s + 50.0], (seed, pool)
            assert wanted_at(pool.changes, ended_s + 50.0) == 1, (seed, pool)


def test_a_replica_that_still_drains_serves_at_once_when_it_is_ordered_again() -> None:
    """It has all that a start would bring: what comes next goes to both."""
    rows = [TraceRequest(f"long-{n}", 0.40 + n / 100, 40, 250) for n in range(2)]
    rows += [TraceRequest(f"next-{n}", 0.61 + n / 100, 40, 4) for n in range(2)]
    config, plan = fleet(("both",) * 2)
    scaling = Scaling(Plan((2, 2, 2, 2, 1, 2)), 1, 0.1, 0.25)
    recorder = played(rows, replace(config, pools=()), replace(plan, scaling=(scaling,)))
    columns = recorder.columns
    assert min(columns.finish_s[:2]) > 0.63, "both are full while the second drains"
    assert sorted(columns.replica[:2]) == sorted(columns.replica[2:]) == [0, 1]


def test_a_request_that_is_handed_over_has_not_ended_for_its_scaler() -> None:
    """It goes on elsewhere, and is unfinished until that ends it."""
    watch = FleetWatch([0, 0], ["both", "both"])
    watch.handle(Submit("a", 0.0, 4, 4))
    batch = Batch(1, (), (), (), (), (), (), (), 0)
    watch.handle(StepOutput(0, batch, 0.0, (0.1,), None, (Finish("a", "handed"),), 0, 0, 8))
    assert watch.num_unfinished(0) == 1
    watch.handle(StepOutput(1, batch, 0.1, (0.2,), None, (Finish("a", "length"),), 0, 0, 8))
    assert watch.num_unfinished(0) == 0
