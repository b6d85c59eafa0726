"""Plans judge the settled part of steady traffic, show the model's range, and keep repeated prefixes in
means.
"""

import math
import random
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sundog.options.engine import EngineOptions
from sundog.options.simulation import LoadOptions, ReadingOptions, TargetOptions, TermsOptions
from sundog.planning.advice import SizeRange, size_range
from sundog.planning.planner import planned
from sundog.planning.search import Candidate
from sundog.planning.settled import JudgedPart, is_steady, lead_in_s, settled_traffic
from sundog.planning.trial import Decided, FleetTrial, TrialResult, TrialRunner, of_mean_lengths
from sundog.sim.figures.named import Objective
from sundog.sim.trace.record import TraceRequest
from sundog.sim.workload.read import parse_spec
from sundog.sweeps.cell import Plan
from sundog.sweeps.source import workload_of

OBJECTIVE = Objective.parse("p95(ttft)<1")
METRONOME = """
duration_s = DURATION
arrivals = {kind = "gamma", rate_per_s = RATE, cv = 0}
prompt = {kind = "fixed", tokens = 100}
output = {kind = "fixed", tokens = 20}
"""


def described(**changes: Any) -> Any:
    """Sessions of three turns, a second apart on average, or as changed."""
    fixed = {"kind": "fixed", "tokens": 20}
    sessions = {"turns": {"kind": "fixed", "tokens": 3}, "followup": fixed}
    return parse_spec(
        {
            "duration_s": 60,
            "arrivals": {"kind": "poisson", "rate_per_s": 1},
            "prompt": fixed,
            "output": fixed,
            "sessions": {**sessions, "pause_mean_s": 60, "pause_median_s": 60},
            **changes,
        },
        "here",
    )


def runner(folder: Path, slo: str, duration_s: float, rate_per_s: float, **engine: Any) -> TrialRunner:
    path = folder / f"{duration_s}.toml"
    path.write_text(METRONOME.replace("DURATION", f"{duration_s}").replace("RATE", f"{rate_per_s}"))
    options = EngineOptions(**engine), TargetOptions(gpu="l40s"), LoadOptions(), TermsOptions(slo=slo)
    workload = workload_of(str(path), ReadingOptions())
    return TrialRunner(Plan(workload, str(path), *options, judged_s=300.0))


def test_a_fleet_fills_while_nine_sessions_of_ten_live() -> None:
    """By hand: two pauses of 60 s and three answers of 20 tokens at 50 ms are 123 s.

    So the 300 s that are judged begin with second 123, whatever the description's duration up to that.
    """
    found = [settled_traffic(described(duration_s=length), 7, 300.0) for length in (60, 120, 300)]
    assert found[0] == found[1] == found[2] and found[0][1] == JudgedPart(123.0, 423.0)
    assert max(row.arrival_s for row in found[0][0] if not row.after) == pytest.approx(453, abs=10)
    assert settled_traffic(described(duration_s=600), 7, 300.0)[1].span_s == 600
    short = described(sessions=None).requests(0)
    assert lead_in_s(short) == 30.0


def test_sessions_come_as_littles_law_says() -> None:
    """By hand: turns with mean 6, at most 12, are 6 (1 - (5/6)^12) = 5.33 a session.

    In a sample of 30 s the second turns of 20 s of beginnings are to come, and the third ones of 10 s: with
    probabilities of 5/6 and 25/36 that is (30 + 16.7 + 6.9) / 30 = 1.8 a second.
    """
    turns = {"kind": "geometric", "mean": 6, "largest": 12}
    sessions = {"turns": turns, "followup": {"kind": "fixed", "tokens": 200}}
    source = described(sessions={**sessions, "pause_mean_s": 10, "pause_median_s": 9})
    requests, part = settled_traffic(source, 0, 3000.0)
    judged = [row for row in requests if part.begins_s <= row.arrival_s < part.ends_s]
    assert len(judged) / part.span_s == pytest.approx(6 * (1 - (5 / 6) ** 12), rel=0.05)
    early = [sum(row.arrival_s < 30 for row in settled_traffic(source, seed, 9.0)[0]) for seed in range(9)]
    assert sum(early) / 9 / 30 == pytest.approx(1.8, rel=0.2)


@pytest.mark.parametrize(
    ("arrivals", "steady"),
    [
        ({"kind": "poisson", "rate_per_s": 2}, True),
        ({"kind": "gamma", "rate_per_s": 2, "cv": 3}, True),
        ({"kind": "diurnal", "rate_per_s": 2}, False),
    ],
)
def test_only_arrivals_with_one_rate_are_steady(arrivals: dict[str, Any], steady: bool) -> None:
    source = described(arrivals=arrivals)
    assert is_steady(source) == steady
    parts = [{"name": name, "arrivals": each} for name, each in (("a", arrivals), ("b", {"kind": "poisson"}))]
    parts[1]["arrivals"] = {"kind": "poisson", "rate_per_s": 1}
    same = {"kind": "fixed", "tokens": 20}
    mixed = {"duration_s": 9, "populations": [{**part, "prompt": same, "output": same} for part in parts]}
    assert is_steady(parse_spec(mixed, "here")) == steady


def test_a_fleet_that_falls_behind_is_no_fleet_however_short_its_description(tmp_path: Path) -> None:
    """By hand: one slot has more work than it does, so that waits grow in proportion to time.

    The 95th percentile of 300 s behind a lead-in of 30 s is the wait of second 315, that of 40 s the one of
    second 38, which is 8.3 times shorter: it holds a limit of 4 s, and the fleet does not.
    """
    slo, one = "p95(ttft)<4", {"max_num_seqs": 1}
    alone = runner(tmp_path, "mean(e2e)<9", 40, 0.1, **one).trial(FleetTrial({}, 1, to_the_end=True))
    assert alone.num_requests == 30 and alone.span_s == 300
    rate_per_s = 1.05 / alone.values["e2e_s.mean"]
    results = {}
    for duration_s in (40, 120):
        run = runner(tmp_path, slo, duration_s, rate_per_s, **one)
        results[duration_s] = run.trial(FleetTrial({}, 1, to_the_end=True))
    assert results[40] == results[120] and not results[40].is_held
    early = run.trial(FleetTrial({}, 1))
    assert not early.is_held and early.is_lost_early
    plain = TrialRunner(Plan(**{**fields_of(run), "judged_s": None}))
    whole = plain.trial(FleetTrial({}, 1, window_s=(0.0, 40.0), to_the_end=True))
    ratio = results[40].values["ttft_s.p95"] / whole.values["ttft_s.p95"]
    assert whole.is_held and ratio == pytest.approx(315 / 38, rel=0.1)


def fields_of(run: TrialRunner) -> dict[str, Any]:
    plan = run._plan
    return {name: getattr(plan, name) for name in type(plan).__dataclass_fields__}


def test_a_trial_ends_when_all_that_are_judged_have_ended(tmp_path: Path) -> None:
    """It says the same as one that goes on: of 360 requests 300 are judged, of 100 tokens each."""
    run = runner(tmp_path, "p95(ttft)<4", 40, 1.0)
    early, whole = (run.trial(FleetTrial({}, 1, to_the_end=end)) for end in (False, True))
    assert early == whole and early.is_held and early.num_requests == 300
    assert early.prompt_tokens == 30_000 and early.output_tokens == 6_000


def test_a_trial_that_ends_early_has_the_verdict_of_the_whole(tmp_path: Path) -> None:
    """Sessions around the largest load of two slots."""
    path = tmp_path / "sessions.toml"
    sessions = "sessions = {turns = {kind = 'fixed', tokens = 3}, followup = {kind = 'fixed', tokens = 20}"
    text = METRONOME.replace("DURATION", "30").replace("RATE", "1").replace('"gamma"', '"poisson"')
    path.write_text(text.replace(", cv = 0", "") + sessions + ", pause_mean_s = 5, pause_median_s = 4}\n")
    options = EngineOptions(max_num_seqs=2), TargetOptions(gpu="l40s"), LoadOptions()
    plan = Plan(
        workload_of(str(path), ReadingOptions()),
        str(path),
        *options,
        terms=TermsOptions(slo="p95(ttft)<1"),
        judged_s=300.0,
    )
    run = TrialRunner(plan)
    held = []
    for load in (0.5, 0.9, 1.0, 1.05, 2.0):
        early, whole = (run.trial(FleetTrial({}, 1, 0, load, to_the_end=end)) for end in (False, True))
        assert early.is_held == whole.is_held and early.was_stopped == (not early.is_held), load
        assert early.was_stopped or early == whole
        held.append(early.is_held)
    assert held == sorted(held, reverse=True) and {*held} == {True, False}


def test_a_trial_is_over_when_the_last_judged_request_has_ended() -> None:
    """Whatever else waits; it is looked at with every hundredth arrival or end."""
    columns = SimpleNamespace(request_id=["a", "b", "c"], reason=["stop", None, None])
    recorder: Any = SimpleNamespace(columns=columns)
    question = Decided(lambda recorder: False, {"a", "b"})
    assert not any(question(recorder) for _ in range(100))
    columns.reason[1] = "length"
    assert [question(recorder) for _ in range(100)] == [False] * 99 + [True]
    assert Decided(lambda recorder: True, {"a"})(recorder)


def test_steps_of_a_trial_are_as_long_as_they_may_be(tmp_path: Path) -> None:
    """Steps that may take three times as long do; so do a third of it, at the other end."""
    run = runner(tmp_path, "mean(tpot)<9", 40, 0.1)
    middle, longer, shorter = (run.trial(FleetTrial({}, 1, doubt=doubt)) for doubt in (0.0, 2.0, -2.0))
    tpot_s = middle.values["tpot_s.mean"]
    assert longer.values["tpot_s.mean"] == pytest.approx(3 * tpot_s, rel=1e-6)
    assert shorter.values["tpot_s.mean"] == pytest.approx(tpot_s / 3, rel=1e-6)


CHATS = """
duration_s = 30
arrivals = {kind = "poisson", rate_per_s = 1}
prompt = {kind = "fixed", tokens = 1000}
output = {kind = "fixed", tokens = 100}
[sessions]
turns = {kind = "geometric", mean = 6, largest = 12}
followup = {kind = "fixed", tokens = 200}
pause_mean_s = 10
pause_median_s = 9
max_prompt_tokens = 16384
"""


@pytest.mark.long(reason="replays ten minutes of sessions three times")
def test_a_fleet_holds_as_many_sessions_as_its_cache_does(tmp_path: Path) -> None:
    """By hand: a session has 5.3 turns and 4.3 pauses of 10 s, and lives 45 s or so with its answers.

    By Little's law 45 sessions live at one beginning a second. Each has 1,900 tokens in the mean, weighed by
    its time (1,100 after the first turn, 300 more after each). An H100 has room for 450,000 tokens beside
    Llama-3.1-8B, of which a third is left over from sessions that have ended, for the cache lets go of what
    was used longest ago: 3.5 sessions a second. With fewer, prompts find what was said; with more, all is
    computed again. In a sample of 30 s most turns are still to come, and 14 a second seem to be held.
    """
    (path := tmp_path / "chats.toml").write_text(CHATS)
    slo = "p95(ttft)<1"
    options = EngineOptions(), TargetOptions(gpu="h100"), LoadOptions(), TermsOptions(slo=slo)
    workload = workload_of(str(path), ReadingOptions())
    held = {}
    for load, judged_s in ((3.0, 300.0), (4.5, 300.0), (14.0, None)):
        run = TrialRunner(Plan(workload, str(path), *options, judged_s=judged_s))
        held[load] = run.trial(FleetTrial({}, 1, 0, load)).is_held
    assert held == {3.0: True, 4.5: False, 14.0: True}


def test_routers_are_tuned_where_they_can_be(tmp_path: Path) -> None:
    """Those that keep prefixes where prompts repeat; none that was named, and none of data-parallel ranks."""
    (chats := tmp_path / "chats.toml").write_text(CHATS)
    (plain := tmp_path / "plain.toml").write_text(CHATS.partition("[sessions]")[0])

    def tuned(path: Path, vary: dict[str, Any] | None = None, **engine: Any) -> dict[str, Any]:
        options = EngineOptions(**engine), TargetOptions(gpu="h100"), LoadOptions()
        asked = str(path), ReadingOptions(), *options, TermsOptions(slo="p95(ttft)<1")
        return planned(*asked, ["h100"], vary or {}, None, 8, has_ranks=False)._tuned()

    both = ("least-requests", "least-tokens")
    assert tuned(plain)["router"] == both
    assert tuned(chats)["router"] == (*both, "session-affinity", "prefix-aware")
    assert "router" not in tuned(plain, router="weighted") and "router" not in tuned(plain, {"router": both})
    assert "router" not in tuned(plain, data_parallel_size=2)
    assert list(tuned(plain, max_num_seqs=64)) == ["max_num_batched_tokens", "router"]


class Made:
    """Trials of a fleet that holds if it has the replicas that its draw needs, times the length of steps."""

    num_processes = 1

    def __init__(self, needs: Sequence[float], doubt: float) -> None:
        self.needs, self.doubt, self.num_trials = needs, doubt, 0

    def holds(self, count: int, seed: int, doubt: float) -> bool:
        factor = 1 + doubt if doubt >= 0 else 1 / (1 - doubt)
        return count >= self.needs[seed] * factor

    def results(self, trials: Sequence[FleetTrial]) -> list[TrialResult]:
        self.num_trials += len(trials)
        found = []
        for trial in trials:
            held = trial.is_alone or self.holds(trial.num_replicas, trial.seed, trial.doubt)
            value = self.needs[trial.seed] / trial.num_replicas
            found.append(TrialResult(held, {"ttft_s.p95": value}, doubt=self.doubt))
        return found


def test_the_range_of_a_fleet_is_that_of_its_hardest_draw() -> None:
    """Of 300 made-up fleets: what a look at each size says; None where the largest is not enough."""
    rng = random.Random(3)
    for _ in range(300):
        needs = [rng.uniform(0.1, 30) for _ in range(3)]
        made = Made(needs, doubt=rng.choice([0.03, 0.1, 0.3, 1.0]))
        hardest = max(range(3), key=lambda seed: needs[seed])
        fleet = Candidate({}, 1.0, 1, 40, holding=math.ceil(needs[hardest]), is_verified=True)
        for seed, result in enumerate(made.results([fleet.trial(fleet.holding or 0, i) for i in range(3)])):
            fleet.tell(fleet.holding or 0, seed, result)
        made.num_trials = 0
        sizes = [
            next((n for n in range(1, 41) if made.holds(n, hardest, side * made.doubt)), None)
            for side in (-1, 1)
        ]
        assert size_range(made, fleet, [OBJECTIVE]) == SizeRange(*sizes)  # type: ignore[arg-type]
        assert made.num_trials < 20


def named(name: str, prompt: int, output: int, *ids: int) -> TraceRequest:
    return TraceRequest(name, 0.0, prompt, output, hash_ids=ids, hash_block_tokens=10)


def repeated(requests: Sequence[TraceRequest]) -> list[int]:
    """The blocks of each prompt that one before it had."""
    known: set[int] = set()
    found = []
    for row in requests:
        found.append(sum(each in known for each in row.hash_ids or ()))
        known.update(row.hash_ids or ())
    return found


def test_means_keep_what_repeats() -> None:
    """By hand: prompts of 30, 50, 70 and 30 tokens are 45 in the mean, four blocks of ten.

    The second finds three blocks of the first, and the third five of the second: 8 blocks in 2 of 4 requests.
    At mean lengths the same two find 4 each, and the one that begins otherwise finds none.
    """
    rows = [
        named("a0", 30, 4, 0, 1, 2),
        named("a1", 50, 6, 0, 1, 2, 3, 4),
        named("b0", 30, 2, 9, 10, 11),
        named("a2", 70, 8, 0, 1, 2, 3, 4, 5, 6),
    ]
    assert repeated(rows) == [0, 3, 0, 5]
    found = of_mean_lengths(rows)
    assert {(row.num_prompt_tokens, row.num_output_tokens) for row in found} == {(45, 5)}
    assert repeated(found) == [0, 4, 0, 4] and [len(row.hash_ids or ()) for row in found] == [4] * 4
    plain = of_mean_lengths([row._replace(hash_ids=None, hash_block_tokens=0) for row in rows])
    assert {row.hash_ids for row in plain} == {None}
    few = of_mean_lengths([*rows[:2], rows[1]._replace(request_id="a3"), rows[2]])
    # 3 + 5 blocks in two of four requests, whose mean prompt is 40 tokens.
    assert repeated(few) == [0, 4, 4, 0]
