"""The parts of `make gpu` that a machine without a GPU can run."""

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.bench import bench_gpu

ROOT = Path(__file__).resolve().parents[2]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)


@pytest.mark.long(reason="computes many steps of a model", moderate=True)
def test_without_a_gpu_one_line_says_so() -> None:
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    ended = run("tests.gpu")
    assert ended.returncode == 2 and not ended.stdout
    assert ended.stderr.count("\n") == 1 and "sees no CUDA device" in ended.stderr


@pytest.mark.long(rare=True, reason="runs the GPU's benchmark on the CPU")
def test_the_benchmark_writes_what_it_measures(tmp_path: Path) -> None:
    """The whole flow but for transformers' own, on a tiny model; a part that fails leaves an error."""
    out = tmp_path / "out.json"
    ended = run("tests.bench.bench_gpu", "--device", "cpu", "--tiny", "--no-library", "--out", str(out))
    assert ended.returncode == 0, ended.stdout + ended.stderr
    found = json.loads(out.read_text())
    assert {"device", "torch", "transformers", "python", "bytes_per_s", "flops_per_s"} <= found.keys()
    assert [row["part"] for row in found["rows"]] == ["make", "load", "decode", "decode", "prefill"]
    assert all(row["step_ms"] > 0 and row["share_of_bandwidth"] > 0 for row in found["rows"][2:4])
    assert found["rows"][4]["tokens_per_s"] > 0


def test_a_part_that_fails_or_hangs_is_a_row_and_the_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Parts that end with a line, with nothing, and not at all; their rows before that are kept."""
    python = tmp_path / "python"
    python.write_text(
        """#!/bin/sh
case "$*" in
*" device "*) echo 'ROW {"part": "device", "device": "A (small) one", "bytes_per_s": 1.0}'; exit 1;;
*" make "*) echo "no memory" >&2; exit 3;;
*" engine "*) echo 'ROW {"model": "m", "part": "load"}'; sleep 60 & sleep 60;;
*) echo 'ROW {"model": "m", "part": "transformers", "batch": 1, "step_ms": 1.0, "tokens_per_s": 1.0}';;
esac
"""
    )
    python.chmod(0o755)
    outcomes = tmp_path / "outcomes"
    outcomes.write_text('{"test": "a", "outcome": "failed", "error": "it is wrong"}\n')
    monkeypatch.setattr(sys, "executable", str(python))
    monkeypatch.setattr(bench_gpu, "MOST_S", dict.fromkeys(bench_gpu.MOST_S, 2.0))
    given = ["--device", "cpu", "--tiny", "--folder", str(tmp_path), "--tests", str(outcomes)]
    monkeypatch.setattr(sys, "argv", ["gpu", *given])
    begin_s = time.monotonic()
    assert bench_gpu.main() == 1 and time.monotonic() - begin_s < 30
    found = json.loads((tmp_path / "gpu-a-small-one.json").read_text())
    assert found["bytes_per_s"] == 1.0 and found["tests"]["failures"][0]["error"] == "it is wrong"
    errors = {row["part"]: row["error"] for row in found["rows"] if "error" in row}
    assert errors["device"].startswith("it ended with status 1")
    assert errors["make"] == "it ended with status 3: no memory"
    assert errors["engine"].startswith("it took more than 2 s")
    assert [row["part"] for row in found["rows"] if "error" not in row] == ["load", "transformers"]


@pytest.mark.long(reason="hides packages from a whole run of the GPU's command")
def test_torch_transformers_and_pytest_are_all_it_takes() -> None:
    """A machine with a GPU may have nothing else of ours, and reaches no registry."""
    pytest.importorskip("torch")
    absent = ("pydantic", "trio", "msgspec", "cbor2", "llguidance", "quart", "hypercorn", "jiter", "tomli_w")
    needed = ("sundog.runtime.engine.model_loader", "sundog.runtime.lora.adapters")
    needed += ("tests.runtime.scheduled", "tests.runtime.mixtures")
    needed += ("tests.runtime.models", "tests.bench.bench_gpu", "tests.bench.engine_models")
    code = f"import sys; sys.modules |= dict.fromkeys({absent}); import {', '.join(needed)}"
    ended = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=300
    )
    assert ended.returncode == 0, ended.stderr
