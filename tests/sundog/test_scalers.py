"""Autoscaling by the command line: `--scaler NAME` and files."""

import json
from pathlib import Path
from typing import Any

import pytest

from sim.trace.jsonl_rows import write_trace
from sim.trace.record import TraceRequest
from tests import warm
from tests.test_layers import ROOT

SCALES = ("--replicas", "4", "--scale-every-s", "1", "--scale-start-s", "2")


@pytest.fixture
def trace(tmp_path: Path) -> str:
    rows = [TraceRequest(f"r{n}", 0.2 * n, 2000, 60) for n in range(60)]
    write_trace(path := str(tmp_path / "trace.jsonl"), rows, provenance="test")
    return path


def run(*arguments: str) -> Any:
    return warm.run("sundog", "replay", *arguments)


@pytest.mark.parametrize(
    "scaler", ["keda:target=1", "hpa:target=0.5", "docs/scalers/grow_early.py:GrowEarly"]
)
def test_a_fleet_grows_by_a_name_or_a_file(trace: str, scaler: str) -> None:
    """Fewer GPU-hours than all replicas all the time, and not fewer than engines computed."""
    done = run(trace, *SCALES, "--scaler", scaler, "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    scaling = found["fleet"]["scaling"]
    assert found["num_finished"] == 60 and scaling["num_starts"] > 0
    assert scaling["busy_gpu_hours"] <= scaling["gpu_hours"] < scaling["all_gpu_hours"]


def test_start_up_delays_are_swept_and_engines_may_crash_meanwhile(trace: str, tmp_path: Path) -> None:
    options = ("--replicas", "4", "--scaler", "keda:target=1", "--scale-every-s", "1")
    done = warm.run("sundog", "sweep", trace, *options, "--vary", "scale_start_s=1,5")
    assert done.returncode == 0 and "scale_start_s=5" in done.stdout, done.stderr
    (file := tmp_path / "faults.toml").write_text(
        '[[fault]]\nkind = "dead-engine"\nat_s = 4\nreplica = 0\ndown_s = 1\n'
    )
    done = run(trace, *SCALES, "--scaler", "keda:target=1", "--faults", str(file), "--json")
    assert json.loads(done.stdout)["fleet"]["faults"][0]["kind"] == "dead-engine"
    assert "GPU-hours" in run(trace, *SCALES, "--scaler", "keda:target=1").stdout


@pytest.mark.parametrize("kept", [False, True])
def test_a_fleet_pays_for_the_gpus_that_it_had(trace: str, tmp_path: Path, kept: bool) -> None:
    """A sweep's hours and price are a replay's, also from runs that it kept, and less than all cost."""
    price = ("--gpu-price-per-h", "3")
    options = (*SCALES[:2], "--vary", "scaler=keda:target=1", *SCALES[2:], *price, "--warmup-s", "0")
    metrics = ("--metric", "gpu_hours", "--metric", "cost_per_million_output_tokens")
    out = ("--out", str(tmp_path / "sweep")) if kept else ()
    done = warm.run("sundog", "sweep", trace, *options, *metrics, "--json", *out)
    assert done.returncode == 0, done.stderr
    (found,) = json.loads(done.stdout)["cells"]
    grown, whole = (
        json.loads(run(trace, *some, *price, "--json").stdout)
        for some in ((*SCALES, "--scaler", "keda:target=1"), SCALES[:2])
    )
    cost, scaling = grown["cost_per_million_output_tokens"], grown["fleet"]["scaling"]
    assert cost < 0.9 * whole["cost_per_million_output_tokens"]
    assert found["intervals"]["cost_per_million_output_tokens"][0] == pytest.approx(cost)
    assert found["intervals"]["gpu_hours"][0] == pytest.approx(
        grown["duration_s"] / 3600 * 4 * scaling["gpu_hours"] / scaling["all_gpu_hours"]
    )


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--scaler", "kedo"), "kedo"),
        (("--scaler", "keda:target=0"), "target is 0"),
        (("--scaler", "keda", "--scale-least", "9"), "--scale-least is 9"),
        (("--scaler", "keda", "--pool", "both=h100:x2"), "--scaler is for equal engines"),
    ],
)
def test_a_scaler_that_cannot_be_is_refused_in_one_line(
    trace: str, options: tuple[str, ...], words: str
) -> None:
    done = run(trace, *options)
    assert done.returncode == 2 and words in done.stderr, done.stderr


def test_a_scaler_that_fails_ends_the_run_by_its_name(trace: str, tmp_path: Path) -> None:
    (file := tmp_path / "mine.py").write_text(
        "from actors.core.scalers import ScaledFleet, Scaler\n\n"
        "class Mine(Scaler):\n    def want(self, fleet: ScaledFleet) -> int:\n        return 1 // 0\n"
    )
    done = run(trace, *SCALES, "--scaler", f"{file}:Mine")
    assert done.returncode == 2 and "want raised ZeroDivisionError" in done.stderr, done.stderr


def test_the_example_of_the_documentation_is_its_file() -> None:
    text = (ROOT / "docs/fleets.md").read_text(encoding="utf-8")
    assert (ROOT / "docs/scalers/grow_early.py").read_text(encoding="utf-8") in text
