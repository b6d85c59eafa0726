"""Plans: the cheapest fleet equals that of an exhaustive grid, and runs stopped early would have failed."""

import json
import math
import random
import shlex
from collections.abc import Generator, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from sundog.options.engine import EngineOptions
from sundog.options.simulation import LoadOptions, ReadingOptions, TargetOptions, TermsOptions
from sundog.planning.advice import COARSE, largest_loads
from sundog.planning.search import Candidate, Search, capacity_search, capacity_search_near, intervals
from sundog.planning.trial import FleetTrial, TrialResult, TrialRunner, at_load
from sundog.sim.figures.named import Objective
from sundog.sim.figures.sweep.losing import most_above
from sundog.sweeps.cell import Plan
from sundog.sweeps.source import workload_of
from tests import warm

SPEC = """
duration_s = 15

[[populations]]
name = "chat"
arrivals = {kind = "poisson", rate_per_s = 30}
prompt = {kind = "uniform", smallest = 100, largest = 1000}
output = {kind = "uniform", smallest = 20, largest = 200}

[[populations]]
name = "rag"
arrivals = {kind = "poisson", rate_per_s = 3}
prompt = {kind = "fixed", tokens = 6000}
output = {kind = "fixed", tokens = 50}
"""
PROBLEMS = [
    "p95(ttft)<0.3,p95(tpot)<0.02",
    "tenant rag: p90(ttft)<0.4, tenant chat: p99(tpot)<0.05",
    "mean(e2e)<1.2",
]
OBJECTIVE = Objective.parse("p95(ttft)<1")


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    path = tmp_path / "mix.toml"
    path.write_text(SPEC)
    return path


def runner(spec: Path, slo: str) -> TrialRunner:
    workload = workload_of(str(spec), ReadingOptions())
    options = EngineOptions(max_num_seqs=32), TargetOptions(gpu="l40s"), LoadOptions(), TermsOptions(slo=slo)
    return TrialRunner(Plan(workload, str(spec), *options))


@pytest.mark.long(keep=1, reason="tries every fleet of a grid by replays; `make test` has one grid")
@pytest.mark.parametrize("slo", PROBLEMS)
def test_a_plan_is_that_of_the_exhaustive_grid(spec: Path, slo: str) -> None:
    """Two machines, each with one to six replicas and two draws, all played to their ends."""
    run = runner(spec, slo)
    objectives = [Objective.parse(each) for each in slo.split(",")]
    prices = {"l40s": 1.0, "h100": 2.7}
    cheapest = math.inf
    for gpu, price in prices.items():
        for count in range(1, 7):
            trials = [FleetTrial({"gpu": gpu}, count, seed, to_the_end=True) for seed in range(2)]
            found = [run.trial(trial) for trial in trials]
            held = all(each.is_held for each in found) and all(
                interval.high <= each.below_s
                for each, interval in zip(objectives, intervals(objectives, found, 0.9), strict=True)
            )
            if held:
                cheapest = min(cheapest, count * price)

    num_trials = 0

    def results(trials: Sequence[FleetTrial]) -> Iterable[TrialResult]:
        nonlocal num_trials
        num_trials += len(trials)
        return [run.trial(trial) for trial in trials]

    candidates = [Candidate({"gpu": gpu}, price, 1, 6) for gpu, price in prices.items()]
    winner = Search(objectives, 2, 0.9, results).cheapest(candidates)
    assert (math.inf if winner is None else winner.cost) == cheapest
    assert cheapest < math.inf and num_trials < 24


@pytest.mark.parametrize("num_at_once", [1, 3])
def test_the_search_finds_the_least_cost(num_at_once: int) -> None:
    """Of 300 made-up problems, where each draw needs a number of its own, and some may be lost.

    Of fleets that cost the same the first, so that the number of processes decides nothing.
    """
    rng, ties = random.Random(5), 0
    for _ in range(300):
        most = rng.choice([5, 40])
        needs = {name: [rng.randint(1, most) for _ in range(3)] for name in range(4)}
        spare = rng.choice([0, 0, 1, 3])
        made = [Candidate({"x": name}, rng.choice([1.0, 2.0, 3.5]), 1, 30, spare) for name in needs]

        def results(
            trials: Sequence[FleetTrial], needs: dict[int, list[int]] = needs
        ) -> Iterable[TrialResult]:
            for trial in trials:
                need = needs[trial.settings["x"]][trial.seed]
                held = need < 38 if trial.is_alone else trial.num_replicas >= need
                yield TrialResult(held, {"ttft_s.p95": 0.5 if held else 2.0})

        winner = Search([OBJECTIVE], 3, 0.95, results, num_at_once=num_at_once).cheapest(made)
        costs = {
            name: (max(needs[name]) + spare) * each.price
            for name, each in enumerate(made)
            if max(needs[name]) <= 30
        }
        assert (None if winner is None else winner.cost) == min(costs.values(), default=None)
        ties += [*costs.values()].count(min(costs.values(), default=0.0)) > 1
        first = min(costs, key=lambda name: (costs[name], name), default=None)
        assert winner is (None if first is None else made[first])
    assert ties > 20


def test_what_is_stopped_would_have_failed(spec: Path) -> None:
    """At loads around the limit, a trial that may stop early says what one says that goes on to its end."""
    run = runner(spec, PROBLEMS[0])
    stopped = 0
    for load in (0.2, 0.5, 1.0, 3.0):
        early, whole = (run.trial(FleetTrial({}, 1, 0, load, to_the_end=end)) for end in (False, True))
        assert early.is_held == whole.is_held and whole.share == 1
        stopped += early.share < 1
        assert early.share < 1 or early == whole
    assert stopped


SESSIONS = """
duration_s = 20
arrivals = {kind = "poisson", rate_per_s = RATE}
prompt = {kind = "fixed", tokens = 500}
output = {kind = "fixed", tokens = 20}
[sessions]
turns = {kind = "fixed", tokens = 3}
followup = {kind = "fixed", tokens = 100}
pause_mean_s = 10
pause_median_s = 9
"""


def test_a_load_of_sessions_has_more_of_them_and_the_same_pauses(tmp_path: Path) -> None:
    """Three times the load is three times the rate in the same 20 seconds, and no session is shortened.

    By hand: 1 session a second of 3 turns is 60 requests about, and 3 are 180; two pauses of 10 seconds
    follow the last beginning, so that arrivals span 20 to 60 seconds at either rate, and never a third.
    """
    found = {}
    for rate, load in ((1, 3.0), (3, 1.0), (1, 1.0)):
        path = tmp_path / f"sessions{rate}.toml"
        path.write_text(SESSIONS.replace("RATE", str(rate)))
        found[rate, load] = runner(path, "p95(ttft)<9").trial(FleetTrial({}, 1, 0, load, to_the_end=True))
    assert found[1, 3.0] == found[3, 1.0]
    assert found[1, 1.0].num_requests == pytest.approx(60, rel=0.4)
    assert found[1, 3.0].num_requests == pytest.approx(180, rel=0.4)
    assert 20 < found[1, 3.0].span_s < 100 and 20 < found[1, 1.0].span_s < 100


def test_each_population_begins_sessions_as_much_more_often() -> None:
    """Those without sessions, too, so that the mix stays; None without rates."""
    chat = {"sessions": {"pause_mean_s": 10}, "arrivals": {"kind": "poisson", "rate_per_s": 2.0}}
    bursts = {"arrivals": {"kind": "onoff", "on_rate_per_s": 4.0, "off_rate_per_s": 1.0, "mean_on_s": 5}}
    denser = at_load({"duration_s": 9, "populations": [chat, bursts]}, 1.5)
    assert denser is not None and denser["duration_s"] == 9
    assert denser["populations"][0] == {**chat, "arrivals": {"kind": "poisson", "rate_per_s": 3.0}}
    changed = {"on_rate_per_s": 6.0, "off_rate_per_s": 1.5}
    assert denser["populations"][1]["arrivals"] == {**bursts["arrivals"], **changed}
    alone = at_load({"populations": [bursts]}, 1.5)
    assert alone is not None and alone["populations"] == denser["populations"][1:]
    assert at_load({"scaled": {"trace": "x"}}, 2) is None
    assert at_load({**chat, "arrivals": {"kind": "recorded", "trace": "x"}}, 2) is None


def test_how_many_values_may_lie_above_a_percentile() -> None:
    """One more, and the percentile of any values lies above the limit; that many, and it may keep it."""
    import numpy as np

    for count in (1, 2, 19, 20, 21, 100, 1001):
        for percent in (50.0, 90.0, 95.0, 99.9):
            above = most_above(percent, count)
            values = np.zeros(count)
            values[count - above - 1 :] = 1e-9
            assert np.percentile(values, percent) > 0
            if above:
                values[: count - above] = -1e9
                assert np.percentile(values, percent) < 0 or (count - 1) * percent % 100 == 0 or above < 2


@pytest.mark.parametrize("limit", [0.02, 0.3, 1.0, 1.7, 5.0, 63.0])
def test_the_largest_load_is_found(limit: float) -> None:
    """It holds, and one that is more than the precision larger does not."""
    search = capacity_search(0.01)
    load = next(search)
    while True:
        try:
            load = search.send(load <= limit)
        except StopIteration as end:
            found = end.value
            break
    assert limit / 1.0101 <= found <= limit or (limit == 63.0 and found >= 32)


def finds(search: Generator[float, bool, float], limit: float) -> tuple[float, int]:
    """The result of a search for this limit, and the number of loads that it tried."""
    load, count = next(search), 1
    while True:
        try:
            load, count = search.send(load <= limit), count + 1
        except StopIteration as end:
            return end.value, count


def test_a_search_that_begins_nearby_finds_the_same_load() -> None:
    """Of 2,000 made-up limits, wherever it begins; with half the trials if that is near."""
    rng = random.Random(7)
    tried = {"whole": 0, "near": 0}
    for number in range(2000):
        limit = 2 ** rng.uniform(-7, 7)
        precision = rng.choice([0.001, 0.01, 0.1])
        is_near = number % 2 == 0
        guess = min(limit * rng.uniform(0.95, 1.05), 63) if is_near else 2 ** rng.uniform(-7, 7)
        low = finds(capacity_search(min(COARSE * precision, 0.5)), guess)[0]
        high = next(each for each in loads_above(low, precision) if each > guess)
        found, count = finds(capacity_search(precision), limit)
        other, other_count = finds(capacity_search_near(precision, low, high), limit)
        assert found == other, (limit, precision, low, high)
        if is_near and 1 / 64 <= limit < 64 and low and precision < 0.1:
            tried["whole"] += count
            tried["near"] += other_count
    assert tried["near"] < 0.6 * tried["whole"]


def loads_above(low: float, precision: float) -> Iterator[float]:
    """Loads of a coarse search above one of them, in order."""
    step = max(low, 1 / 64) / 64
    yield from (low + step * number for number in range(1, 10_000))


class Samples:
    """Trials of made-up samples, each with a largest load of its own."""

    def __init__(self, limits: Sequence[float]) -> None:
        self.limits = limits
        self.num_trials = 0

    def results(self, trials: Sequence[FleetTrial]) -> list[TrialResult]:
        self.num_trials += len(trials)
        return [
            TrialResult(
                trial.load <= self.limits[trial.seed],
                {},
                num_requests=round(3e5 * trial.load),
                num_unfinished=trial.seed,
                span_s=300.0,
            )
            for trial in trials
        ]


def test_samples_share_where_their_largest_loads_are_looked_for() -> None:
    """Each gets the load that a search of its own finds, whatever the others need."""
    rng, num_alone, num_trials = random.Random(9), 0, 0
    for number in range(300):
        near = 2 ** rng.uniform(-2.5, 2.5)
        spread = 1.05 if number % 2 else 8.0
        limits = [near * spread ** rng.uniform(-1, 1) for _ in range(5)]
        made: Any = Samples(limits)
        found = largest_loads(made, 1, 5, 0.01)
        own = [finds(capacity_search(0.01), limit) for limit in limits]
        assert [each.factor for each in found] == [factor for factor, _ in own]
        assert [each.requests_per_s for each in found] == pytest.approx([1e3 * f for f, _ in own], rel=1e-4)
        assert [each.num_unanswered for each in found] == [0, 1, 2, 3, 4]
        if number % 2:
            num_alone, num_trials = num_alone + sum(count for _, count in own), num_trials + made.num_trials
    assert num_trials < 0.7 * num_alone
    for limit, factor in ((1e-9, 0.0), (1e9, 64.0)):
        made = Samples([limit, limit])
        assert [each.factor for each in largest_loads(made, 1, 2, 0.01)] == [factor, factor]


@pytest.mark.parametrize("num_at_once", [1, 2, 4])
def test_dearer_fleets_are_tried_on_idle_processes_only(num_at_once: int) -> None:
    """By hand: the cheapest passes with one replica, so five samples of it end the search.

    With four processes its first trial leaves three to the others; its samples leave none.
    """
    asked: list[tuple[int, int]] = []

    def results(trials: Sequence[FleetTrial]) -> Iterable[TrialResult]:
        asked.extend((trial.settings["x"], trial.seed) for trial in trials)
        return [TrialResult(True, {"ttft_s.p95": 0.5}) for _ in trials]

    made = [Candidate({"x": name}, 1.0 + name, 1, 30) for name in range(4)]
    winner = Search([OBJECTIVE], 5, 0.95, results, num_at_once=num_at_once).cheapest(made)
    assert winner is made[0]
    others = [(name, 0) for name in range(1, num_at_once)]
    assert asked == [(0, 0), *others, (0, 1), (0, 2), (0, 3), (0, 4)]


@pytest.mark.long(reason="runs commands in processes of their own", moderate=True)
def test_the_command_prints_a_plan_and_its_commands(spec: Path) -> None:
    """The command that it prints simulates the fleet, which holds the objectives; so does the JSON say."""
    prices = spec.parent / "prices.toml"
    prices.write_text("h100 = 2.5\nl40s = 2.0\n")
    common = ["plan", str(spec), "--gpu", "h100,l40s", "--prices", str(prices), "--max-gpus", "4"]
    common += ["--slo", PROBLEMS[1], "--replications", "2", "--confidence", "0.8", "--no-pools"]
    common += ["--judge-s", "0"]
    done = warm.run("sundog", *common, "--manifest", str(spec.parent / "vllm.yaml"))
    assert done.returncode == 0, done.stderr
    assert "Sized by mean lengths" in done.stdout and "Headroom" in done.stdout
    line = next(line.strip() for line in done.stdout.splitlines() if line.strip().startswith("sundog sweep"))
    again = warm.run(*shlex.split(line), "--replications", "2", "--warmup-s", "0", "--json")
    assert all(run["slo_held"] == 1 for run in json.loads(again.stdout)["cells"][0]["runs"]), again.stderr
    found = json.loads(warm.run("sundog", *common, "--json").stdout)
    winner = found["winner"]
    assert winner["cost_per_h"] == winner["gpus"] * {"h100": 2.5, "l40s": 2.0}[winner["settings"]["gpu"]]
    assert f"Buy {winner['replicas']} x {winner['settings']['gpu']}" in done.stdout
    manifest = (spec.parent / "vllm.yaml").read_text()
    assert f"replicas: {winner['replicas']}\n" in manifest
    assert f"nvidia.com/gpu: {winner['gpus'] // winner['replicas']}}}" in manifest
    least, most = (found["winner_range"][side] for side in ("least", "most"))
    size = f"{least['gpus']} to {most['gpus'] if most else 'more than 4'} GPUs"
    assert (f"holds; {size}" in done.stdout) == (least != most)
    assert {each["settings"]["gpu"] for each in found["candidates"]} == {"h100", "l40s"}


@pytest.mark.long(reason="searches fleets by whole replays; test_plan.py plans one")
def test_the_largest_load_of_a_fleet(spec: Path) -> None:
    """Two replicas hold more than one, and a fleet that cannot hold says so."""
    common = ["capacity", str(spec), "--slo", PROBLEMS[0], "--replications", "2", "--resolution", "0.1"]
    common += ["--judge-s", "0"]
    rates = []
    for count in ("1", "2"):
        done = warm.run("sundog", *common, "--replicas", count, "--json")
        assert done.returncode == 0, done.stderr
        rates.append(json.loads(done.stdout)["rate"][0])
    assert rates[1] > 1.5 * rates[0] > 0
    done = warm.run("sundog", *common, "--slo", "p95(ttft)<0.0001")
    assert "does not meet" in done.stdout


@pytest.mark.long(keep=1, reason="more cases of the law whose first `make test` runs", moderate=True)
@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ([], "--slo names no objective"),
        (["--slo", "ttft=0.5"], "--slo names no objective"),
        (["--slo", "p95(ttft)<1", "--replicas", "2"], "a plan searches replicas"),
        (["--slo", "p95(ttft)<1", "--vary", "replicas=1,2"], "a plan searches replicas"),
        (["--slo", "tenant web: p95(ttft)<1"], "has no tenant web; it has chat, rag"),
        (["--slo", "p95(ttft)<1", "--gpu", "h1000"], "Did you mean"),
    ],
)
def test_a_plan_that_cannot_be_is_refused(spec: Path, words: list[str], reason: str) -> None:
    """In one line, before any trial where that can be known."""
    done = warm.run("sundog", "plan", str(spec), *words)
    assert reason in done.stderr + done.stdout and "Traceback" not in done.stderr
