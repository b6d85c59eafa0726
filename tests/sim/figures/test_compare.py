"""Comparison of runs: equal ones show no difference, others do, with confidence intervals."""

import json
import math
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from sundog.actors.config import EngineConfig
from sundog.actors.core.config import SchedulerConfig
from sundog.actors.messages import Capacity
from sundog.sim.cost.roofline import Roofline
from sundog.sim.figures.compare import Comparison, Moved, compare
from sundog.sim.figures.metrics import summarize
from sundog.sim.hardware.gpu import load_gpu
from sundog.sim.hardware.model import load_model
from sundog.sim.record.run_directory import Run, open_run
from sundog.sim.replay import replay
from sundog.sim.show.comparison import print_comparison, to_json, verdict
from sundog.sim.workload.distributions import Poisson, Uniform
from sundog.sim.workload.spec import Workload
from tests.sim.record.runs import write_run

CONFIG = EngineConfig(
    scheduler=SchedulerConfig(max_num_seqs=8, max_num_batched_tokens=512, max_model_len=2048),
    decode_runs=True,
)


def run(path: Path, *, seats: int = 8, seed: int = 1, rate_per_s: float = 10.0) -> Run:
    rows = Workload(60.0, Poisson(rate_per_s), Uniform(20, 1000), Uniform(1, 200)).requests(seed)
    config = replace(CONFIG, scheduler=replace(CONFIG.scheduler, max_num_seqs=seats))
    cost = Roofline(load_model("llama-3.1-8b"), load_gpu("h100"))
    recorder = replay(rows, config, cost, Capacity(600, 16))
    write_run(path, recorder, summarize(recorder), {"max_num_seqs": seats, "seed": seed})
    return open_run(path)


@pytest.fixture(scope="module")
def fcfs(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return run(tmp_path_factory.mktemp("a") / "fcfs")


def test_a_run_does_not_differ_from_itself(fcfs: Run) -> None:
    """No setting, no figure, no request."""
    found = compare(fcfs, fcfs)
    assert found.is_paired and found.settings == {} and found.gained == found.lost == []
    assert {verdict(figure) for figure in found.figures} == {"no difference shown"}


@pytest.mark.long(reason="replays many requests, or many random cases", moderate=True)
def test_the_same_arrivals_are_compared_request_by_request(fcfs: Run, tmp_path: Path) -> None:
    """Twice the seats lower the queueing and raise the time per token; somebody pays for it."""
    found = compare(fcfs, run(tmp_path / "wide", seats=16))
    assert found.is_paired and found.settings == {"max_num_seqs": (8, 16)}
    by_name = {figure.name: figure for figure in found.figures}
    queueing = by_name["queueing mean"]
    assert queueing.change.mean == pytest.approx(queueing.second - queueing.first)
    assert verdict(queueing).startswith("lower by")
    assert verdict(by_name["TPOT p50"]).startswith("higher by")
    assert found.gained[0].second_s < found.gained[0].first_s
    assert found.lost[0].second_s > found.lost[0].first_s


@pytest.mark.long(reason="replays many requests, or many random cases", moderate=True)
def test_other_requests_are_compared_as_wholes(fcfs: Run, tmp_path: Path) -> None:
    """Another seed is another workload: quantiles cannot be tested, a heavier load can."""
    other = run(tmp_path / "heavy", seed=2, rate_per_s=40.0)
    found = compare(fcfs, other)
    assert not found.is_paired and found.gained == []
    by_name = {figure.name: figure for figure in found.figures}
    assert verdict(by_name["E2E mean"]).startswith("higher by")
    assert verdict(by_name["E2E p99"]) == "cannot be tested: different requests"


@pytest.mark.long(reason="replays many requests, or many random cases", moderate=True)
def test_the_page_and_its_json_say_the_same(fcfs: Run, tmp_path: Path) -> None:
    """Plain text of at most 100 columns; JSON without NaN."""
    other = run(tmp_path / "heavy", seed=2, rate_per_s=40.0)
    found = compare(fcfs, other)
    with (tmp_path / "page").open("w+") as file:
        print_comparison(found, ("fcfs", "heavy"), Console(file=file, width=100))
        file.seek(0)
        text = " ".join(file.read().split())  # a verdict may take two lines of its column
    data = json.loads(to_json(found))
    for row in data["figures"]:
        assert row["verdict"] in text and row["name"] in text
        assert "which are not paired" in text and "NaN" not in to_json(found)


def test_what_cannot_be_tested_says_why_and_what_to_do(fcfs: Run, tmp_path: Path) -> None:
    """Once below the table: too few requests, other requests, or a figure that has no test."""
    few = {name: run(tmp_path / name, seats=seats, rate_per_s=1.0) for name, seats in (("a", 8), ("b", 1))}
    found = compare(few["a"], few["b"])
    why = {figure.name: figure.untested for figure in found.figures}
    assert found.is_paired and why["E2E p99"] == "too few requests" and why["E2E mean"] is None
    text = " ".join(shown(found).split())
    assert text.count("Replay a longer trace") == 1 and "different requests" not in text
    other = compare(fcfs, run(tmp_path / "other", seed=2))
    text = " ".join(shown(other).split())
    assert text.count("Replay one trace with the same seed in both runs") == 1
    assert "too few requests" not in text
    for figure in other.figures:
        assert (figure.untested is None) != math.isnan(figure.change.half_width)


def shown(found: Comparison) -> str:
    out = StringIO()
    print_comparison(found, ("a", "b"), Console(file=out, width=100))
    return out.getvalue()


def test_what_is_shown_of_a_comparison_tells_its_two_sides_apart(fcfs: Run, tmp_path: Path) -> None:
    """Settings that were not given, small gains, and runs that have nothing in common."""
    found = compare(fcfs, run(tmp_path / "other", seed=1))
    moved = found._replace(
        settings={"slo": (None, "ttft=1")}, gained=[Moved("r1", 0.4512, 0.4488)], lost=[Moved("r2", 1.0, 3.0)]
    )
    text = shown(moved)
    assert "slo: not given → ttft=1" in text
    assert "r1 0.451 → 0.449 s" in text and "r2 1.00 → 3.00 s" in text
    nothing = shown(moved._replace(figures=[], gained=[], lost=[], num_finished=(3, 0, 0)))
    assert (
        "No request finished in both: there is nothing to compare." in nothing
        and "milliseconds" not in nothing
    )
