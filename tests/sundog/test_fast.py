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


NEEDS_COMPILER = pytest.mark.skipif(not shutil.which("cc"), reason="there is no C compiler")
FROM_SOURCE = pytest.mark.skipif(bool(fast.built()), reason="the simulator is compiled already")


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    """The source of the simulator in a folder of its own."""
    ignore = shutil.ignore_patterns("__pycache__", "runtime", "assets")
    for name in ("sundog", "traces"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=ignore)
    for file in ROOT.glob("*.*"):
        if file.is_file():
            shutil.copy(file, tmp_path)
    return tmp_path


@NEEDS_COMPILER
@FROM_SOURCE
@pytest.mark.long(rare=True, reason="compiles the simulator")
@pytest.mark.parametrize("below", ["sundog/actors/core/", ""])
def test_compiled_or_not_a_run_gives_the_same_bytes(copied: Path, below: str) -> None:
    """What decides, or every module; and a build older than its source says so instead of running."""
    plain = replayed(copied, "plain")
    built = python(copied, "-m", "sundog.fast", "build", "0", below)
    assert built.returncode == 0, built.stdout.decode() + built.stderr.decode()
    which = python(copied, "-c", "import sundog.actors.core.step.plan as p; print(p.__file__)")
    assert which.stdout.strip().endswith(b".so")
    libraries = fast.built(copied)
    assert len(libraries) == sum(name.startswith(below) for name in fast.MODULES) + 1
    assert copied not in {path.parent for path in libraries}, "not where it is not looked for"
    assert replayed(copied, "plain2") == plain
    assert b"compiled" in python(copied, "-m", "sundog", "--version").stdout
    source = copied / "sundog" / "actors" / "core" / "step" / "plan.py"
    later = time.time() + 3600
    os.utime(source, (later, later))
    refused = python(copied, "-m", "sundog", "--help")
    assert refused.returncode == 2 and b"actors/core/step/plan.py changed" in refused.stderr
    fast.remove(copied)
    assert python(copied, "-m", "sundog", "--help").returncode == 0


def test_every_module_that_is_compiled_exists() -> None:
    """And policies, which people write, are none of them."""
    assert all((ROOT / name).is_file() for name in fast.MODULES)
    assert not any("policies" in name for name in fast.MODULES)
