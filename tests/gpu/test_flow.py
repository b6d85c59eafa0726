"""What `make gpu` does, as far as a machine without a GPU can do it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)


def test_without_a_gpu_one_line_says_so() -> None:
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    ended = run("tests.gpu")
    assert ended.returncode == 2 and not ended.stdout
    assert ended.stderr.count("\n") == 1 and "sees no CUDA device" in ended.stderr


@pytest.mark.long
def test_the_benchmark_writes_what_it_measures(tmp_path: Path) -> None:
    """The whole flow but for transformers' own, on a tiny model; a part that fails leaves an error."""
    out = tmp_path / "out.json"
    ended = run("tests.bench.bench_gpu", "--device", "cpu", "--tiny", "--no-library", "--out", str(out))
    assert ended.returncode == 0, ended.stdout + ended.stderr
    found = json.loads(out.read_text())
    assert {"device", "torch", "transformers", "python", "bytes_per_s", "flops_per_s"} <= found.keys()
    assert [row["part"] for row in found["rows"]] == ["load", "prefill", "decode", "decode"]
    assert all(row["step_ms"] > 0 and row["share_of_bandwidth"] > 0 for row in found["rows"][2:])
    assert found["rows"][1]["tokens_per_s"] > 0


def test_torch_transformers_and_pytest_are_all_it_takes() -> None:
    """A machine with a GPU may have nothing else of ours, and reaches no registry."""
    pytest.importorskip("torch")
    absent = ("pydantic", "trio", "msgspec", "cbor2", "llguidance", "quart", "hypercorn", "jiter", "tomli_w")
    needed = ("runtime.opening", "runtime.lora.adapters", "tests.runtime.scheduled", "tests.runtime.mixtures")
    needed += ("tests.runtime.models", "tests.bench.bench_gpu", "tests.bench.engine_models")
    code = f"import sys; sys.modules |= dict.fromkeys({absent}); import {', '.join(needed)}"
    ended = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=300
    )
    assert ended.returncode == 0, ended.stderr
