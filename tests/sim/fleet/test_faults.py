"""Faults in virtual time: whatever fails, each request ends once, and no block is lost."""

import random
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, ClassVar

import pytest

from sundog import Policy, Request, View
from sundog.actors.core.config import ConfigError
from sundog.sim.cost.work import StepWork
from sundog.sim.figures.metrics import summarize
from sundog.sim.fleet.faults import (
    Cancellations,
    DeadEngine,
    FaultFile,
    LostTransfer,
    PlannedFault,
    RandomCrashes,
    Retries,
    SlowLink,
    Spike,
    Straggler,
    drawn_faults,
)
from sundog.sim.fleet.figures import FleetFigures
from sundog.sim.record.recorder import Recorder
from sundog.sim.trace.record import TraceRequest
from tests.core.traces import num_cases
from tests.sim.fleet.fleets import crowd, fleet, limits, moving, played, with_witness
from tests.sim.toy import COST

LAST = 16
"""Requests of a witness (`with_witness`)."""
FILES = 40
"""Random files; `make test-long` multiplies them by 25."""


def some_faults(rng: random.Random, num_replicas: int, span_s: float) -> tuple[PlannedFault, ...]:
    """Any kinds at any instants; some more than once, or at an engine that is down."""
    made: list[PlannedFault] = []
    for _ in range(rng.randint(1, 6)):
        at: dict[str, Any] = {"at_s": rng.uniform(0, span_s), "replica": rng.randrange(num_replicas)}
        while_: dict[str, Any] = {**at, "for_s": rng.uniform(0, span_s / 2)}
        down_s = rng.choice([0.0, 0.001, rng.uniform(0, span_s)])
        made.append(
            rng.choice(
                [
                    DeadEngine(kind="dead-engine", **at, down_s=down_s),
                    DeadEngine(kind="dead-engine", **at, down_s=down_s, notice_s=rng.uniform(0, down_s)),
                    Straggler(kind="straggler", **while_, factor=rng.choice([0.5, 2.0, 10.0])),
                    SlowLink(kind="slow-link", **while_, part=rng.choice([0.0, 0.1])),
                    LostTransfer(
                        kind="lost-transfer", at_s=at["at_s"], for_s=span_s, rate=rng.choice([0.2, 0.6])
                    ),
                    Cancellations(kind="cancellations", at_s=at["at_s"], rate=rng.random()),
                    Spike(kind="spike", at_s=at["at_s"], for_s=0.02, factor=3),
                    Retries(kind="retries", attempts=rng.randint(1, 4), wait_s=rng.uniform(0, 0.1)),
                ]
            )
        )
    return tuple(made)


def troubled(seed: int, *, moves: bool = False, **options: Any) -> Recorder:
    """A run with random faults on a random fleet, whose router may move requests."""
    rng = random.Random(seed)
    roles: Any = rng.choice(
        [("both", "both", "both"), ("prefill", "decode", "decode"), ("prefill", "decode")]
    )
    scheduler = limits(async_scheduling=rng.random() < 0.5)
    make = moving if moves else fleet
    config, plan = make(roles, rate=rng.choice([4000.0, 40000.0]), scheduler=scheduler, seed=seed, **options)
    rows = with_witness(crowd(seed, num_requests=40))
    faults = some_faults(rng, len(roles), 1.2 * rows[39].arrival_s)
    plan = replace(plan, faults=faults, seed=seed)
    timeout_s = rng.choice([None, 0.2])
    return played(rows, config, plan, client_timeout_s=timeout_s)


@pytest.mark.long(keep=2, reason="more seeds of the law whose first cases `make test` runs")
@pytest.mark.parametrize("moves", [False, True], ids=["", "moves"])
@pytest.mark.parametrize("part", range(4))
def test_under_random_faults_every_request_ends_once_and_no_block_is_lost(part: int, moves: bool) -> None:
    """Requests long after the last fault need every block there is, and are served whole."""
    seen: set[str | None] = set()
    for seed in range(part, num_cases(FILES), 4):
        columns = troubled(seed, moves=moves).columns
        assert None not in columns.reason, (seed, columns.reason.index(None))
        assert len(set(columns.request_id)) == len(columns.request_id)
        seen |= set(columns.reason)
        last = [columns.reason[row] for row, name in enumerate(columns.request_id) if name.startswith("last")]
        is_patient = last.count("abort") == 0
        assert last.count("stop") == LAST if is_patient else last[:2] == ["stop", "stop"], (seed, last)
    assert "stop" in seen and len(seen) > 1, "faults end requests, too"


@pytest.mark.long(keep=1, reason="more cases of the law whose first `make test` runs", moderate=True)
@pytest.mark.parametrize("moves", [False, True], ids=["", "moves"])
def test_the_same_seed_and_faults_give_the_same_bytes_however_steps_are_grouped(moves: bool) -> None:
    for seed in range(num_cases(6)):
        whole = summarize(troubled(seed, moves=moves)).to_json()
        assert whole == summarize(troubled(seed, moves=moves)).to_json()
        assert whole == summarize(troubled(seed, moves=moves, decode_runs=False)).to_json(), seed


@dataclass(frozen=True)
class AsksForSteps(Policy):
    """Keep what a step of 64 prompt tokens is said to take."""

    answers: ClassVar[set[float | None]] = set()

    def quota(self, request: Request, view: View) -> int | None:
        self.answers.add(view.step_s(64, 0))
        return None


def test_policies_are_told_modelled_step_times_beside_faults() -> None:
    """Each simulated backend has them, also one that can be killed; a fit to past steps would be another."""
    AsksForSteps.answers.clear()
    config, plan = fleet(("both", "both"), policy=AsksForSteps())
    dead = DeadEngine(kind="dead-engine", at_s=0.05, replica=0, down_s=0.05)
    played(crowd(1), replace(config, pools=()), replace(plan, faults=(dead,)))
    assert AsksForSteps.answers == {COST.step_s(StepWork(0, 0, ((64, 0),), 1))}


def test_what_had_produced_nothing_is_answered_and_what_had_is_an_error() -> None:
    """An engine dies in the middle of an answer, with one more request waiting; the other engine is idle."""
    rows = [
        TraceRequest("begun", 0.0, 40, 200),
        TraceRequest("other", 0.0, 40, 10),
        TraceRequest("waiting", 0.01, 40, 5),
    ]
    config, plan = fleet(("both", "both"), scheduler=limits(max_num_seqs=1))
    dead = DeadEngine(kind="dead-engine", at_s=0.1, replica=0, down_s=1.0)
    recorder = played(rows, config, replace(plan, faults=(dead,)))
    columns = recorder.columns
    assert columns.reason == ["error", "stop", "stop"]
    assert 0 < columns.num_output_tokens[0] < 200 and list(columns.num_output_tokens[1:]) == [10, 5]
    assert columns.finish_s[0] == 0.1 and columns.replica[2] == 1
    figures = summarize(recorder).fleet
    assert isinstance(figures, FleetFigures)
    (fault,) = figures.faults
    assert (fault.kind, fault.num_ended, fault.num_again) == ("dead-engine", 1, 1)


@pytest.mark.parametrize("async_scheduling", [False, True])
def test_an_abort_that_comes_in_the_step_that_is_lost_takes_no_token_away(async_scheduling: bool) -> None:
    """Steps that had ended gave their tokens before the client left, whether they were one run or many."""
    num_lost, num_seeds = 0, num_cases(30)
    for seed in range(num_seeds):
        rng = random.Random(seed)
        timeout_s = rng.uniform(0.05, 0.4)
        dead = DeadEngine(kind="dead-engine", at_s=timeout_s + rng.uniform(0, 0.004), replica=0, down_s=1.0)
        rows = [TraceRequest(f"r{n}", 0.0, 40, 400) for n in range(rng.randint(1, 3))]
        found = []
        for decode_runs in (True, False):
            scheduler = limits(async_scheduling=async_scheduling)
            config, plan = fleet(("both",), scheduler=scheduler, decode_runs=decode_runs)
            recorder = played(rows, config, replace(plan, faults=(dead,)), client_timeout_s=timeout_s)
            found.append([list(column) for column in recorder.columns.stored()])
        assert found[0] == found[1], seed
        num_lost += found[0][2].count("error")
    assert num_lost > num_seeds / 6


def test_until_its_end_is_noticed_an_engine_is_sent_requests_and_answers_none() -> None:
    """A request that comes meanwhile waits for the next engine; one that comes later is refused."""
    rows = [
        TraceRequest("begun", 0.0, 40, 200),
        TraceRequest("meanwhile", 0.12, 40, 5),
        TraceRequest("later", 0.16, 40, 5),
        TraceRequest("after", 0.5, 40, 5),
    ]
    config, plan = fleet(("both",))

    def columns(notice_s: float) -> tuple[list[str | None], list[float]]:
        dead = DeadEngine(kind="dead-engine", at_s=0.1, replica=0, down_s=0.3, notice_s=notice_s)
        found = played(rows, config, replace(plan, faults=(dead,))).columns
        return found.reason, list(found.first_token_s)

    reasons, first_s = columns(notice_s=0.05)
    assert reasons == ["error", "stop", "refused", "stop"] and first_s[1] > 0.1 + 0.3
    assert columns(notice_s=0.0)[0] == ["error", "refused", "refused", "stop"]
    late = DeadEngine(kind="dead-engine", at_s=0.1, replica=0, down_s=0.3, notice_s=0.4)
    with pytest.raises(ConfigError, match="notice_s of a dead-engine is 0.4: give at most its down_s"):
        drawn_faults(FaultFile(fault=(late,)), 1, 0, has_links=False)


@pytest.mark.parametrize("decode_runs", [True, False], ids=["runs", "steps"])
def test_the_steps_that_had_ended_when_an_engine_was_killed_have_given_their_tokens(
    decode_runs: bool,
) -> None:
    """As many as ended by then where nothing fails; the step under way gives none."""
    row = TraceRequest("alone", 0.0, 40, 200)
    config, plan = fleet(("both",), decode_runs=decode_runs)
    ends = list(played([row], config, plan).steps[0].end_s)
    at_s = (ends[20] + ends[21]) / 2
    dead = DeadEngine(kind="dead-engine", at_s=at_s, replica=0, down_s=1.0, notice_s=0.1)
    columns = played([row], config, replace(plan, faults=(dead,))).columns
    first = ends.index(columns.first_token_s[0])
    assert (columns.reason, columns.num_output_tokens[0]) == (["error"], 21 - first)


def test_an_engine_is_up_again_so_long_after_its_death_however_late_that_was_noticed() -> None:
    """Its start begins when it dies; what comes while nobody has noticed waits for it."""
    rows = [TraceRequest("first", 0.0, 40, 4), TraceRequest("waits", 1.05, 40, 4)]
    config, plan = fleet(("both",))
    alone = played(rows[:1], config, plan).columns
    for notice_s in (0.1, 0.3, 0.5):
        dead = DeadEngine(kind="dead-engine", at_s=1.0, replica=0, down_s=0.5, notice_s=notice_s)
        columns = played(rows, config, replace(plan, faults=(dead,))).columns
        assert columns.first_token_s[1] == pytest.approx(1.5 + alone.first_token_s[0], abs=1e-8)


def test_faults_that_overlap_keep_an_engine_down_until_the_last_of_them_ends() -> None:
    """The one that came later, or the one that lasts longer; neither ends the other."""
    rows = [TraceRequest("waits", 0.05, 40, 4)]
    config, plan = fleet(("both",))
    takes_s = played(rows, config, plan).columns.first_token_s[0] - 0.05
    for at_s, down_s, up_s in ((0.3, 0.1, 1.0), (0.3, 2.0, 2.3), (0.03, 0.1, 1.0), (0.03, 1.5, 1.53)):
        first = DeadEngine(kind="dead-engine", at_s=0.0, replica=0, down_s=1.0, notice_s=0.1)
        second = DeadEngine(kind="dead-engine", at_s=at_s, replica=0, down_s=down_s, notice_s=0.01)
        recorder = played(rows, config, replace(plan, faults=(first, second)))
        assert recorder.columns.first_token_s[0] == pytest.approx(up_s + takes_s, abs=1e-8)
        figures = summarize(recorder).fleet
        assert isinstance(figures, FleetFigures)
        assert [(fault.at_s, fault.num_again) for fault in figures.faults] == [(0.0, 1), (at_s, 0)]


def test_slow_links_and_stragglers_that_overlap_multiply_and_end_one_by_one() -> None:
    """A transfer at a half of a half, then at a half, then at full rate."""
    row = TraceRequest("moves", 0.0, 64, 4)
    config, plan = fleet(("prefill", "decode"), rate=64.0)
    begin_s = played([row], config, plan).columns.first_token_s[0] - 1.0
    first = SlowLink(kind="slow-link", at_s=0.0, for_s=3.0, replica=0, part=0.5)
    second = SlowLink(kind="slow-link", at_s=0.0, for_s=1.0, replica=0, part=0.5)
    found = played([row], config, replace(plan, faults=(first, second))).columns.first_token_s[0]
    prefill_s = played([row], config, plan).steps[0].end_s[0]
    moved = (1.0 - prefill_s) / 4  # in the first second, of the second that it takes at full rate
    assert found - begin_s == pytest.approx(1.0 + (1.0 - moved) / 0.5 - prefill_s, abs=1e-6)


def test_a_straggler_takes_longer_by_its_factor_and_a_spike_multiplies_requests() -> None:
    """From the next step on, whether or not steps are one run."""
    row = TraceRequest("slow", 0.0, 20, 200)
    config, plan = fleet(("both",))
    plain = played([row], config, plan)
    slow = Straggler(kind="straggler", at_s=0.1, for_s=100.0, replica=0, factor=4.0)
    late = played([row], config, replace(plan, faults=(slow,)))
    rest_s = plain.columns.finish_s[0] - 0.1
    assert late.columns.finish_s[0] == pytest.approx(0.1 + 4 * rest_s, rel=0.02)
    spike = Spike(kind="spike", at_s=0.0, for_s=1.0, factor=5)
    assert len(played([row], config, replace(plan, faults=(spike,))).columns) == 5


def test_clients_ask_again_as_often_as_they_are_said_to() -> None:
    """The only engine is down: each attempt is refused, and counts as a request."""
    dead = DeadEngine(kind="dead-engine", at_s=0.5, replica=0, down_s=100.0)
    retries = Retries(kind="retries", attempts=3, wait_s=1.0)
    config, plan = fleet(("both",))
    rows = [TraceRequest("first", 0.0, 20, 2), TraceRequest("again", 1.0, 20, 2)]
    columns = played(rows, config, replace(plan, faults=(dead, retries))).columns
    assert columns.request_id == ["first", "again", "again~2", "again~3"]
    assert columns.reason == ["stop", "refused", "refused", "refused"]


def test_crashes_are_drawn_from_the_seed_for_each_replica() -> None:
    """By an exponential of their mean, none while the engine is down; another seed draws others."""
    file = FaultFile(random=RandomCrashes(mtbf_s=100.0, down_s=10.0, until_s=1e5))
    drawn, again, others = (drawn_faults(file, 3, seed, has_links=False) for seed in (1, 1, 2))
    crashes = [fault for fault in drawn if isinstance(fault, DeadEngine)]
    assert drawn == again != others and len(crashes) == len(drawn)
    for replica in range(3):
        at_s = [fault.at_s for fault in crashes if fault.replica == replica]
        gaps = [later - earlier for earlier, later in pairwise(at_s)]
        assert min(gaps) > 10.0 and sum(gaps) / len(gaps) == pytest.approx(110.0, rel=0.1)
