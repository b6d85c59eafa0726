"""Pools for prefill and decode among a plan's candidates, by the command line."""

import json
import math
import re
import shlex
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from sundog.options.engine import EngineOptions
from sundog.options.simulation import LoadOptions, ReadingOptions, TargetOptions, TermsOptions
from sundog.planning.planner import planned
from sundog.planning.pools import Need, PoolsCandidate, _sizes
from sundog.planning.search import Candidate
from sundog.planning.trial import TrialRunner
from tests import warm

SPEC = """
duration_s = 8
arrivals = {kind = "poisson", rate_per_s = 14}
prompt = {kind = "lognormal", mean = 3000, median = 2500, smallest = 500, largest = 8000}
output = {kind = "lognormal", mean = 200, median = 150, largest = 800}
"""
TERMS = ("--gpu", "h100", "-tp", "1", "--max-gpus", "10", "--slo", "p95(ttft)<0.5,p95(tpot)<0.01")
ONCE = ("--replications", "1", "--no-tune", "--jobs", "1", "--judge-s", "0")


@pytest.fixture(scope="module")
def spec(tmp_path_factory: pytest.TempPathFactory) -> str:
    (path := tmp_path_factory.mktemp("plan") / "long.toml").write_text(SPEC)
    return str(path)


def plan(spec: str, *words: str) -> str:
    """Return what a plan prints; trials are kept, and shared by all of these plans."""
    done = warm.run("sundog", "plan", spec, *TERMS, *ONCE, "--out", f"{spec}-trials", *words)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.long(reason="searches fleets by whole replays; test_plan.py plans one")
def test_pools_are_bought_where_equal_replicas_cost_more(spec: str, tmp_path: Path) -> None:
    """Its commands simulate the fleet, which holds the objectives, and serve both pools; so do the files."""
    manifest, values = str(tmp_path / "vllm.yaml"), str(tmp_path / "llm-d.yaml")
    shown = plan(spec, "--manifest", manifest, "--llm-d", values)
    lines = [line.strip() for line in shown.splitlines()]
    (again,) = (shlex.split(line) for line in lines if line.startswith("sundog "))
    pools = [word for word in again if "=h100:tp1x" in word]
    assert [pool.partition("=")[0] for pool in pools] == ["prefill", "decode"]
    assert f"Buy {', '.join(pools)} (" in shown
    cells = json.loads(warm.run(*again, "--replications", "2", "--warmup-s", "0", "--json").stdout)["cells"]
    assert cells[0]["runs"][0]["slo_held"] == 1
    served = [line for line in lines if line.startswith("vllm serve") and "NixlConnector" in line]
    assert ["for prefill" in line for line in served] == [True, False]
    numbers = [int(pool.rpartition("x")[2]) for pool in pools]
    texts = [
        Path(manifest).read_text().split("---\n")[::2],
        Path(values).read_text().split("prefill:\n")[::-1],
    ]
    for parts in texts:
        assert all(f"replicas: {number}\n" in part for number, part in zip(numbers, parts, strict=True))
    found = json.loads(plan(spec, "--json"))
    assert found["winner"]["settings"]["pool"] == "+".join(pools)
    assert found["winner"]["gpus"] == found["winner"]["replicas"] == sum(numbers)
    alike = json.loads(plan(spec, "--no-pools", "--json"))
    assert not any("pool" in each["settings"] for each in alike["candidates"])
    assert alike["winner"] is None or alike["winner"]["gpus"] > found["winner"]["gpus"]


@pytest.mark.long(reason="replays many requests, or many random cases", moderate=True)
def test_pools_survive_with_one_engine_more_of_each(spec: str) -> None:
    """What holds is the same; either kind may be the one that is lost."""
    one, more = (
        json.loads(plan(spec, *words, "--json"))["winner"]
        for words in ((), ("--survive", "1", "--max-gpus", "14"))
    )
    assert more["replicas"] == one["replicas"] + 2 == more["gpus"] == more["cost_per_h"]


@pytest.mark.long(reason="searches fleets by whole replays; test_plan.py plans one")
def test_a_fleet_may_be_of_two_gpus(spec: str, tmp_path: Path) -> None:
    """Prompts where a multiplication is cheap, answers where memory is fast: one kind costs more."""
    (prices := tmp_path / "prices.toml").write_text("h100 = 1.0\nh200 = 1.5\n")
    shown = plan(spec, "--gpu", "h100,h200", "--prices", str(prices))
    assert "Buy prefill=h100:tp1x2, decode=h200:tp1x1 (3 GPUs), 3.50 an hour." in shown
    assert "# 2 times, for prefill on h100," in shown and "# once, for decode on h200," in shown
    found = json.loads(plan(spec, "--gpu", "h100,h200", "--prices", str(prices), "--json"))
    tried = [each["settings"].get("pool", "") for each in found["candidates"]]
    assert {len(set(re.findall(r"h\d+", pool))) for pool in tried if pool} == {1, 2}
    assert sum(each["trials"] for each in found["candidates"] if "pool" in each["settings"]) <= 10


@pytest.mark.long(keep=1, reason="more seeds of the law whose first cases `make test` runs")
@pytest.mark.parametrize(
    "slo", ["p95(ttft)<0.5,p95(tpot)<0.011", "p50(ttft)<0.1", "mean(ttft)<0.2,p99(tpot)<0.02"]
)
def test_fleets_that_are_left_out_would_have_failed(tmp_path: Path, slo: str) -> None:
    """With an engine less of either kind than the least, and enough of the other, objectives are missed."""
    (path := tmp_path / "heavy.toml").write_text(SPEC.replace("per_s = 14", "per_s = 150"))
    target = replace(TargetOptions(), gpu="h100")
    given = str(path), ReadingOptions(), EngineOptions(), target, LoadOptions(), TermsOptions(slo=slo)
    problem = planned(*given, ["h100", "l40s"], {}, None, 64, has_ranks=True)
    machines = [(each, simulated) for each, simulated in problem._candidates(1) if simulated is not None]
    run, num_checked = TrialRunner(problem.plan).trial, 0
    for fleet in problem._pools(machines):
        for less in ((fleet.least[0] - 1, 30), (30, fleet.least[1] - 1)):
            if min(less):
                result = run(replace(fleet, sizes=(less,), most=1, tried={}).trial(1))
                assert not result.is_held and result.refused is None, (fleet.settings_of(1, 0), less)
                num_checked += 1
    assert num_checked


@pytest.mark.parametrize("need", [(0.1, 0.2), (3.0, 1.0), (1.3, 4.1), (1.0, 1.0)])
@pytest.mark.parametrize("spare", [0, 2])
def test_fleets_grow_by_one_engine_toward_what_is_needed(need: tuple[float, float], spare: int) -> None:
    """Each costs more than the one before, and the largest below a price is the last that costs less."""
    sizes = tuple(_sizes(Need(need[0], 1), Need(need[1], 1), (2, 4), 80))
    assert sizes[0] == (1, 1)
    for (a, b), (c, d) in pairwise(sizes):
        assert (c - a) + (d - b) == 1 and c >= a and d >= b
    prefill, decode = sizes[-1]
    assert math.isclose(prefill / decode, need[0] / need[1], rel_tol=0.35)
    parts = Candidate({}, 2.0, 2, 0), Candidate({}, 3.5, 4, 0)
    fleet = PoolsCandidate({}, 0.0, 0, len(sizes), spare, parts=parts, sizes=sizes)
    prices = [fleet.price_of(count) for count in range(1, len(sizes) + 1)]
    assert prices == sorted(prices)
    for price in (0.0, 5.5, 6.0, 31.0, 1e9):
        assert fleet.most_below(price) == sum(each < price for each in prices)


def test_pools_are_searched_and_not_given(spec: str) -> None:
    done = warm.run("sundog", "plan", spec, *TERMS, "--pool", "both=h100:x2")
    assert done.returncode == 2 and "--pool cannot be given, since a plan searches pools" in done.stderr
