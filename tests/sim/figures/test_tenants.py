"""Limits that requests bring, fairness while tenants wait, stages: through the command line."""

import json
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sundog.sim.figures.tenants import tenants_of
from sundog.sim.record.rows import Rows
from sundog.sim.trace.jsonl_rows import OWN_FORMAT, OWN_VERSION, UNITS
from tests import warm

HEADER = json.dumps({"format": OWN_FORMAT, "version": OWN_VERSION, "units": UNITS}) + "\n"


def row(arrival_s: float, **more: object) -> str:
    return json.dumps({"arrival_s": arrival_s, "prompt_tokens": 200, "output_tokens": 20, **more}) + "\n"


def sundog(*arguments: str) -> subprocess.CompletedProcess[str]:
    return warm.run("sundog", *arguments)


def summary(path: Path, *options: str) -> dict[str, Any]:
    done = sundog("replay", str(path), "--json", *options)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def trace(tmp_path: Path, *rows: str) -> Path:
    path = tmp_path / "trace.jsonl"
    if not path.exists() or rows:
        path.write_text(HEADER + "".join(rows))
    return path


@pytest.mark.long(keep=1, reason="more cases of the law whose first `make test` runs", moderate=True)
@pytest.mark.parametrize("name", ["slo_ttft_s", "slo_tpot_s", "slo_e2e_s"])
def test_a_request_is_held_to_its_own_limit(tmp_path: Path, name: str) -> None:
    """Before the common one, which is for those without; kept on disk, too."""
    rows = (row(0, **{name: 1e-6}), row(5, **{name: 60.0}), row(10))
    path = trace(tmp_path, *rows)
    assert summary(path)["slo_attainment"] == pytest.approx(2 / 3)
    common = name.removeprefix("slo_").removesuffix("_s")
    assert summary(path, "--slo", f"{common}=0.000001")["slo_attainment"] == pytest.approx(1 / 3)
    out = tmp_path / "run"
    kept = summary(path, "--slo", f"{common}=0.000001", "--out", str(out))
    assert kept == summary(path, "--slo", f"{common}=0.000001")
    done = sundog("replay", str(trace(tmp_path, row(0, **{name: -1}))))
    assert done.returncode == 2 and name in done.stderr


def test_the_stages_of_a_request_are_its_whole_time(tmp_path: Path) -> None:
    """Queueing, prefill, decode, and what the front end takes."""
    found = summary(trace(tmp_path, row(0), row(0), row(0)), "--max-num-seqs", "1", "--no-host-overhead")
    parts = [found[name]["mean"] for name in ("queueing_s", "prefill_s", "decode_s")]
    assert min(parts) > 0 and sum(parts) == pytest.approx(found["e2e_s"]["mean"])


@pytest.mark.long(reason="runs commands in processes of their own", moderate=True)
def test_fairness_is_of_service_while_several_wait(tmp_path: Path) -> None:
    """One tenant's flood is first in the queue: fcfs serves it alone, vtc both; totals are the same."""
    flood = [row(0, tenant="greedy") for _ in range(40)]
    path = trace(tmp_path, *flood, *(row(0.001, tenant="modest") for _ in range(10)))
    one = ("--max-num-seqs", "2")
    first, fair = summary(path, *one), summary(path, *one, "--policy", "vtc")
    assert first["fairness"] < 0.7 < 0.9 < fair["fairness"] <= 1
    assert first["slowdown_fairness"] != fair["slowdown_fairness"]
    assert first["tenants"]["modest"]["slowdown"] > fair["tenants"]["modest"]["slowdown"]
    alone = summary(trace(tmp_path, row(0, tenant="a"), row(50, tenant="b")))
    assert alone["fairness"] is None, "nobody waits beside another: there is nothing to be fair about"
    printed = sundog("replay", str(trace(tmp_path, *flood, row(0.001, tenant="b"))), *one)
    assert "greedy" in printed.stdout and "40 of 40" in printed.stdout and "prefill" in printed.stdout


@pytest.mark.long(reason="runs commands in processes of their own", moderate=True)
def test_a_sweep_ranks_by_a_tenants_figure(tmp_path: Path) -> None:
    """And refuses one that there is not, by name."""
    rows = [row(0, tenant="greedy") for _ in range(40)] + [row(0.001, tenant="b.c") for _ in range(10)]
    asked = ("sweep", str(trace(tmp_path, *rows)), "--max-num-seqs", "2", "--vary", "policy=fcfs,vtc")
    done = sundog(*asked, "--metric", "tenant.b.c.ttft_mean_s", "--metric", "fairness", "--json")
    assert done.returncode == 0, done.stderr
    assert [cell["rank"] for cell in json.loads(done.stdout)["cells"]] == [2, 1]
    done = sundog(*asked, "--metric", "tenant.b.c.ttft")
    assert done.returncode == 2 and "ttft" in done.stderr


def test_a_share_is_of_what_was_served_while_both_waited() -> None:
    """By hand: a is given all of the first second, in which both wait, and b the next, when it alone does."""
    count = np.array
    rows = Rows(
        count([0.0, 0.0, 0.0]),
        count([0.0, 1.0, 1.0]),
        count([0.0, 1.0, 1.0]),
        count([1.0, 2.0, 2.0]),
        *(count([1, 1, 1]), count([100, 100, 100]), *(count([0, 0, 0]) for _ in range(3))),
        *(np.zeros(3, dtype=np.int64), np.ones(3, dtype=bool), ["stop"] * 3, ["a", "a", "b"]),
        *(np.full(3, np.nan) for _ in range(3)),
    )
    found = tenants_of(rows, None, 0.0)
    assert found.figures["a"].share_while_waiting == pytest.approx(2, rel=0.02)
    assert found.figures["b"].share_while_waiting == pytest.approx(0, abs=0.02)
    assert found.fairness == pytest.approx(0.5, rel=0.05)
    assert found.figures["b"].slowdown == pytest.approx(2)


@pytest.mark.long(reason="runs commands in processes of their own", moderate=True)
def test_compare_shows_stages_and_tenants(tmp_path: Path) -> None:
    """Beside the figures of all; a tenant in both runs alone."""
    rows = [row(i / 100, tenant="greedy") for i in range(40)] + [row(0.5, tenant="[b]") for _ in range(10)]
    path = trace(tmp_path, *rows)
    for policy in ("fcfs", "vtc"):
        summary(path, "--max-num-seqs", "2", "--policy", policy, "--out", str(tmp_path / policy))
    done = sundog("compare", str(tmp_path / "fcfs"), str(tmp_path / "vtc"), "--json")
    assert done.returncode == 0, done.stderr
    figures = {each["name"]: each for each in json.loads(done.stdout)["figures"]}
    assert figures["[b]: E2E mean"]["second"] < figures["[b]: E2E mean"]["first"]
    assert figures["greedy: E2E mean"]["second"] > figures["greedy: E2E mean"]["first"]
    assert figures["decode mean"]["first"] > figures["prefill mean"]["first"] > 0
    printed = sundog("compare", str(tmp_path / "fcfs"), str(tmp_path / "vtc"))
    assert "[b]: TTFT p99" in printed.stdout and "prefill mean" in printed.stdout
