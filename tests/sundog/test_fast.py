"""The compiled simulator: same source, same bytes, and an old build is refused."""

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from sundog import fast

ROOT = Path(__file__).parents[2]
TRACE = "traces/chat-poisson-2rps-5min.jsonl.gz"


def python(folder: Path, *arguments: str) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, check=False)


def replayed(folder: Path, out: str) -> dict[str, bytes]:
    """Everything a replay writes with preemptions."""
    options = "--model llama-3.1-8b --gpu h100 --num-gpu-blocks 600 --max-model-len 4096 --json"
    done = python(folder, "-m", "sundog", "replay", TRACE, *options.split(), "--out", out)
    assert done.returncode == 0, done.stderr.decode()
    files = {path.name: path.read_bytes() for path in (folder / out).iterdir()}
    return {"stdout": done.stdout, **files}


@pytest.mark.skipif(not shutil.which("cc"), reason="there is no C compiler")
@pytest.mark.skipif(bool(fast.built()), reason="the simulator is compiled already")
def test_compiled_or_not_a_run_gives_the_same_bytes(tmp_path: Path) -> None:
    """In a copy of the source; and a build older than its source says so instead of running."""
    ignore = shutil.ignore_patterns("__pycache__", "runtime", "assets")
    for name in ("actors", "sim", "sundog", "traces"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=ignore)
    for file in ROOT.glob("*.*"):
        if file.is_file():
            shutil.copy(file, tmp_path)
    plain = replayed(tmp_path, "plain")
    built = python(tmp_path, "-m", "sundog.fast", "build", "0")
    assert built.returncode == 0, built.stderr.decode()
    which = python(tmp_path, "-c", "import actors.core.plan as p; print(p.__file__)")
    assert which.stdout.strip().endswith(b".so")
    libraries = fast.built(tmp_path)
    assert len(libraries) == len(fast.MODULES) + 1
    assert tmp_path not in {path.parent for path in libraries}, "not where it is not looked for"
    assert replayed(tmp_path, "plain2") == plain
    source = tmp_path / "actors" / "core" / "plan.py"
    later = time.time() + 3600
    os.utime(source, (later, later))
    refused = python(tmp_path, "-m", "sundog", "--help")
    assert refused.returncode == 2 and b"actors/core/plan.py changed" in refused.stderr
    fast.remove(tmp_path)
    assert python(tmp_path, "-m", "sundog", "--help").returncode == 0
