"""Autoscaling by the command line: `--scaler NAME` and files."""

import json
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import sundog
from sundog.sim.trace.jsonl_rows import write_trace
from sundog.sim.trace.record import TraceRequest
from tests import warm
from tests.test_layers import ROOT

EXPERTS = ("--model", "mixtral-8x7b", "--enable-expert-parallel")
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
        (("--scaler", "prefill=keda"), "--scaler names prefill, and no --pool is given"),
        (
            ("--scaler", "hpa", "--data-parallel-size", "2", *EXPERTS),
            "ranks that share experts step together",
        ),
    ],
)
def test_a_scaler_that_cannot_be_is_refused_in_one_line(
    trace: str, options: tuple[str, ...], words: str
) -> None:
    done = run(trace, *options)
    assert done.returncode == 2 and words in done.stderr, done.stderr


def test_a_scaler_that_fails_ends_the_run_by_its_name(trace: str, tmp_path: Path) -> None:
    (file := tmp_path / "mine.py").write_text(
        "from sundog.actors.core.scalers import ScaledFleet, Scaler\n\n"
        "class Mine(Scaler):\n    def want(self, fleet: ScaledFleet) -> int:\n        return 1 // 0\n"
    )
    done = run(trace, *SCALES, "--scaler", f"{file}:Mine")
    assert done.returncode == 2 and "want of the fleet at " in done.stderr, done.stderr
    # Python 3.14 has other words for it.
    assert re.search(r"raised ZeroDivisionError: .*by zero \(line 5\)", done.stderr)


def test_the_example_of_the_documentation_is_its_file() -> None:
    text = (ROOT / "docs/fleets.md").read_text(encoding="utf-8")
    assert (ROOT / "docs/scalers/grow_early.py").read_text(encoding="utf-8") in text


CASES = ROOT / "tests/sundog/scaling"
"""Two minutes of 12 requests/s (`burst`: then 0.5/s for 58 minutes; `silent`: then one at the end)."""


def scaling_of(name: str, scaler: str, **options: Any) -> dict[str, Any]:
    """The figures of a fleet of eight, or more, that scaled on one of the traces."""
    ran = sundog.replay(CASES / name, scaler=scaler, **({"replicas": 8} | options))
    found: dict[str, Any] = ran.figures["fleet"]["scaling"]
    return found


@pytest.mark.parametrize(
    ("scaler", "down_s"),
    [("keda:target=8", 300), ("keda:target=8,down_s=60", 60), ("keda:target=8,down_s=10", 0)],
)
def test_a_fleet_shrinks_by_the_most_that_was_wanted_in_its_window(scaler: str, down_s: int) -> None:
    """By hand: at 105 s 8 are wanted, at 120 s 5, at 135 s 1; each counts to the end of its window.

    60 s of start are paid for: 1 for an hour, 7 more from 15 s until 120 s and the window, then 4 for 15 s.
    """
    found = scaling_of("silent.csv.gz", scaler, gpu="l40s")
    last_s = 120 + down_s
    assert found["changes"] == [[0, 1], [15, 8], [last_s, 5], [last_s + 15, 1]] and found["num_starts"] == 7
    seconds = 3600 + 7 * (last_s - 15) + 4 * 15
    assert found["gpu_hours"] * 3600 == pytest.approx(seconds, abs=25)  # its last requests end a bit later


@pytest.mark.parametrize(
    ("scaler", "hours"), [("hpa", 1.22), ("attainment:ttft_s=0.2", 1.31), ("forecast:per_s=2", 1.79)]
)
def test_every_scaler_lets_a_fleet_shrink_when_nothing_comes(scaler: str, hours: float) -> None:
    """Within its window and two questions; the hours are far from the 8 of all replicas, and from none."""
    found = scaling_of("silent.csv.gz", scaler, gpu="l40s")
    quiet = [count for time_s, count in found["changes"] if 130 + 300 + 30 <= time_s < 3590]
    before = [count for time_s, count in found["changes"] if time_s < 130 + 300 + 30]
    assert not quiet and before[-1] == 1 and max(before) > 2
    assert found["gpu_hours"] == pytest.approx(hours, abs=0.01)


@pytest.mark.parametrize("replicas", [4, 16])
def test_releasing_replicas_orders_none(replicas: int, tmp_path: Path) -> None:
    """Four are wanted until 600 s, then three: three starts, whatever --replicas is."""
    (file := tmp_path / "step.py").write_text(
        "from sundog.actors.core.scalers import ScaledFleet, Scaler\n\n"
        "class Step(Scaler):\n    def want(self, fleet: ScaledFleet) -> int:\n"
        "        return 4 if fleet.now_s < 600 else 3\n"
    )
    found = scaling_of("slow.csv.gz", f"{file}:Step", gpu="h100", replicas=replicas, scale_start_s=30)
    assert found["changes"] == [[0, 1], [15, 4], [600, 3]] and found["num_starts"] == 3


def test_the_example_of_the_documentation_starts_what_it_wants() -> None:
    """Growing by two and shrinking by one: its starts are the rises of its line, a dozen in an hour."""
    found = scaling_of("burst.csv.gz", "docs/scalers/grow_early.py:GrowEarly", gpu="l40s")
    counts = [count for _, count in found["changes"]]
    assert found["num_starts"] == sum(max(b - a, 0) for a, b in pairwise(counts)) == 14
    assert len(counts) == 22 and found["gpu_hours"] == pytest.approx(1.36, abs=0.005)


def test_a_fleet_that_idles_for_days_is_asked_as_often() -> None:
    """32,797 questions; the two times of load are told apart by nothing but their hours."""
    found = scaling_of("gap.csv", "keda", gpu="h100", replicas=4)
    assert found["changes"] == [[0, 1]]
    assert found["gpu_hours"] == pytest.approx(491_960.9 / 3600, abs=0.01)


def test_a_window_of_ones_own_is_an_attribute(trace: str, tmp_path: Path) -> None:
    """It is over what `want` answered; one that is no number of seconds is refused by its name."""
    (file := tmp_path / "mine.py").write_text(
        "from sundog.actors.core.scalers import ScaledFleet, Scaler\n\n"
        "class Mine(Scaler):\n    def __init__(self, down_s: float = 3.0) -> None:\n"
        "        self.down_s = down_s\n\n"
        "    def want(self, fleet: ScaledFleet) -> int:\n"
        "        return 3 if fleet.now_s == 2 else 1\n"
    )
    done = run(trace, *SCALES, "--scaler", f"{file}:Mine", "--json")
    assert json.loads(done.stdout)["fleet"]["scaling"]["changes"] == [[0, 1], [2, 3], [6, 1]], done.stderr
    done = run(trace, *SCALES, "--scaler", f"{file}:Mine:down_s=-1")
    assert done.returncode == 2 and "down_s is -1: it must be a number at least 0" in done.stderr


POOLS = (
    "--pool",
    "prefill=h100:x3",
    "--pool",
    "decode=h100:x2",
    "--scale-every-s",
    "1",
    "--scale-start-s",
    "2",
)


def test_each_pool_has_a_scaler_of_its_own(trace: str) -> None:
    """Named by roles, or one for all; the hours of pools and the engines that do not scale add up."""
    done = run(trace, *POOLS, "--scaler", "prefill=keda:target=0.5,down_s=2,decode=keda:target=4", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)["fleet"]["scaling"]
    names = [pool["pool"] for pool in found["pools"]]
    assert names == ["prefill=h100:tp1x3", "decode=h100:tp1x2"]
    assert found["gpu_hours"] == pytest.approx(sum(pool["gpu_hours"] for pool in found["pools"]))
    assert found["num_starts"] == sum(pool["num_starts"] for pool in found["pools"]) > 0
    for scaler, num_pools in (("keda:target=1", 2), ("decode=keda:target=4", 1)):
        found = json.loads(run(trace, *POOLS, "--scaler", scaler, "--json").stdout)["fleet"]["scaling"]
        assert len(found["pools"]) == num_pools
        assert found["gpu_hours"] < found["all_gpu_hours"]
    assert "decode=h100:tp1x2" in run(trace, *POOLS, "--scaler", "keda:target=1").stdout


def test_a_sweep_puts_a_plus_between_the_scalers_of_pools(trace: str) -> None:
    options = (*POOLS, "--vary", "scaler=prefill=keda:target=1+decode=keda,keda:target=2")
    done = warm.run("sundog", "sweep", trace, *options, "--metric", "gpu_hours", "--json")
    assert done.returncode == 0, done.stderr
    assert [cell["settings"] for cell in json.loads(done.stdout)["cells"]] == [
        {"scaler": "prefill=keda:target=1+decode=keda"},
        {"scaler": "keda:target=2"},
    ]


@pytest.mark.parametrize(
    ("scaler", "words"),
    [
        ("both=keda", "--scaler names both, and the pools are decode, prefill"),
        ("prefill=keda,prefill=hpa", "--scaler names prefill twice"),
        ("prefill=,decode=hpa", "--scaler names prefill and no scaler"),
        ("prefill=keda,decode=kedo", "kedo"),
    ],
)
def test_a_scaler_of_a_pool_that_cannot_be_is_refused_in_one_line(
    trace: str, scaler: str, words: str
) -> None:
    done = run(trace, *POOLS, "--scaler", scaler)
    assert done.returncode == 2 and words in done.stderr, done.stderr
    done = run(trace, *POOLS, "--scaler", "decode=hpa", "--scale-least", "3")
    assert "--scale-least is 3, and the most of pool decode=h100:tp1x2 2" in done.stderr, done.stderr


def test_attainment_says_which_prompts_miss_its_objective_alone(tmp_path: Path) -> None:
    """Two of three are short. What the long one takes alone, played without a scaler, is above the limit."""
    rows = [TraceRequest(f"r{n}", 2.0 * n, 16_000 if n % 3 == 2 else 100, 4) for n in range(12)]
    write_trace(path := str(tmp_path / "long.jsonl"), rows, provenance="test")
    options = ("--replicas", "4", "--max-num-batched-tokens", "32768", "--no-host-overhead")
    done = run(path, *options, "--scaler", "attainment:ttft_s=0.2", "--json")
    assert done.returncode == 0, done.stderr
    missed = json.loads(done.stdout)["fleet"]["scaling"]["missed_alone"]
    assert (missed["num_prompts"], missed["num_missed"], missed["from_tokens"]) == (12, 4, 16_000)
    (line,) = [line for line in done.stderr.splitlines() if "--scaler" in line]
    assert "4 of 12 prompts miss ttft_s=0.2 alone on an engine" in line and "from 16,000 tokens on" in line
    alone = json.loads(run(path, *options, "--json").stdout)
    assert missed["from_s"] == pytest.approx(alone["ttft_s"]["p99"], rel=1e-3)
    done = run(path, *options, "--scaler", "attainment:ttft_s=60", "--json")
    assert "alone on" not in done.stderr
    assert json.loads(done.stdout)["fleet"]["scaling"]["missed_alone"] is None


def test_a_sweep_says_for_each_setting_which_prompts_miss_its_objective_alone(tmp_path: Path) -> None:
    """In the words of `replay`, once for each, and again where the runs are kept."""
    rows = [TraceRequest(f"r{n}", 2.0 * n, 16_000 if n % 3 == 2 else 100, 4) for n in range(12)]
    write_trace(path := str(tmp_path / "long.jsonl"), rows, provenance="test")
    options = ("--replicas", "4", "--max-num-batched-tokens", "32768", "--no-host-overhead")
    alone = run(path, *options, "--scaler", "attainment:ttft_s=0.2")
    (said,) = [line.partition(": ")[2] for line in alone.stderr.splitlines() if "alone on an engine" in line]
    varied = ("--vary", "scaler=attainment:ttft_s=0.2,attainment:ttft_s=60,hpa", "--jobs", "1")
    for kept in ((), ("--out", str(tmp_path / "kept")), ("--out", str(tmp_path / "kept"))):
        done = warm.run("sundog", "sweep", path, *options, *varied, *kept)
        assert done.returncode == 0, done.stderr
        lines = [line for line in done.stderr.splitlines() if "alone on an engine" in line]
        assert lines == [f"scaler=attainment:ttft_s=0.2: {said}"]
    found = sundog.sweep(
        path,
        vary={"scaler": ["attainment:ttft_s=0.2", "hpa"]},
        replicas=4,
        max_num_batched_tokens=32768,
        host_overhead=False,
        jobs=1,
        replications=1,
    )
    assert [text for text in found.remarks if "alone on" in text] == lines
