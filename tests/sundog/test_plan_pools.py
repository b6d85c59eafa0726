"""Pools for prefill and decode among a plan's candidates, by the command line."""

import json
import math
import shlex
from itertools import pairwise
from pathlib import Path

import pytest

from sundog.planning.pools import PoolsCandidate, _sizes
from tests import warm

SPEC = """
duration_s = 8
arrivals = {kind = "poisson", rate_per_s = 14}
prompt = {kind = "lognormal", mean = 3000, median = 2500, smallest = 500, largest = 8000}
output = {kind = "lognormal", mean = 200, median = 150, largest = 800}
"""
TERMS = ("--gpu", "h100", "-tp", "1", "--max-gpus", "10", "--slo", "p95(ttft)<0.5,p95(tpot)<0.01")
ONCE = ("--replications", "1", "--no-tune", "--jobs", "1")


@pytest.fixture(scope="module")
def spec(tmp_path_factory: pytest.TempPathFactory) -> str:
    (path := tmp_path_factory.mktemp("plan") / "long.toml").write_text(SPEC)
    return str(path)


def plan(spec: str, *words: str) -> str:
    """Return what a plan prints; trials are kept, and shared by all of these plans."""
    done = warm.run("sundog", "plan", spec, *TERMS, *ONCE, "--out", f"{spec}-trials", *words)
    assert done.returncode == 0, done.stderr
    return done.stdout


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
    texts = [Path(manifest).read_text().split("---\n"), Path(values).read_text().split("prefill:\n")[::-1]]
    for parts in texts:
        assert all(f"replicas: {number}\n" in part for number, part in zip(numbers, parts, strict=True))
    found = json.loads(plan(spec, "--json"))
    assert found["winner"]["settings"]["pool"] == "+".join(pools)
    assert found["winner"]["gpus"] == found["winner"]["replicas"] == sum(numbers)
    alike = json.loads(plan(spec, "--no-pools", "--json"))
    assert not any("pool" in each["settings"] for each in alike["candidates"])
    assert alike["winner"] is None or alike["winner"]["gpus"] > found["winner"]["gpus"]


def test_pools_survive_with_one_engine_more_of_each(spec: str) -> None:
    """What holds is the same; either kind may be the one that is lost."""
    one, more = (
        json.loads(plan(spec, *words, "--json"))["winner"]
        for words in ((), ("--survive", "1", "--max-gpus", "14"))
    )
    assert more["replicas"] == one["replicas"] + 2 == more["gpus"] == more["cost_per_h"]


@pytest.mark.parametrize("need", [(0.1, 0.2), (3.0, 1.0), (1.3, 4.1), (1.0, 1.0)])
@pytest.mark.parametrize("spare", [0, 2])
def test_fleets_grow_by_one_engine_toward_what_is_needed(need: tuple[float, float], spare: int) -> None:
    """Each costs more than the one before, and the largest below a price is the last that costs less."""
    sizes = tuple(_sizes(*need, (2, 4), 80))
    assert sizes[0] == (1, 1)
    for (a, b), (c, d) in pairwise(sizes):
        assert (c - a) + (d - b) == 1 and c >= a and d >= b
    prefill, decode = sizes[-1]
    assert math.isclose(prefill / decode, need[0] / need[1], rel_tol=0.35)
    fleet = PoolsCandidate({}, 0.0, 0, len(sizes), spare, prices=(2.0, 3.5), gpus=(2, 4), sizes=sizes)
    prices = [fleet.price_of(count) for count in range(1, len(sizes) + 1)]
    assert prices == sorted(prices)
    for price in (0.0, 5.5, 6.0, 31.0, 1e9):
        assert fleet.most_below(price) == sum(each < price for each in prices)


def test_pools_are_searched_and_not_given(spec: str) -> None:
    done = warm.run("sundog", "plan", spec, *TERMS, "--pool", "both=h100:x2")
    assert done.returncode == 2 and "--pool is given, and pools are what is searched" in done.stderr
