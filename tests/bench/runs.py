"""Common parts of the benchmarks of replays: traces, copies of the source, and the cost of a whole
command.
"""

import compileall
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np

ROOT = Path(__file__).parents[2]
TRACES = ROOT.parent / "shared" / "traces"
A100 = (
    "--model llama-2-7b --gpu a100 --num-gpu-blocks 7000 --max-num-seqs 128"
    " --max-num-batched-tokens 2048 --max-model-len 4096 --no-host-overhead"
)
H100 = "--model llama-3.1-8b --gpu h100 --max-num-seqs 256 --max-num-batched-tokens 8192"


class CommandFailed(Exception):
    """A command that was to be measured ended with an error."""


class Taken(NamedTuple):
    """What a command took, its own processes included, and what it printed."""

    cpu_s: float
    wall_s: float
    megabytes: float
    printed: bytes


def poisson(rate_per_s: float, folder: Path, count: int = 10_000) -> Path:
    """Exponential gaps, then prompts of 128 to 1,024 and outputs of 32 to 256 tokens."""
    return generated(folder / f"poisson{count // 1000}k_r{rate_per_s:g}.csv", rate_per_s, count, (32, 257))


def long_answers(folder: Path, count: int = 600) -> Path:
    """The same with 500 to 8,000 tokens of output: runs of hundreds of steps."""
    return generated(folder / "long_answers.csv", 2.0, count, (500, 8001))


def long_prompts(folder: Path, count: int = 1_000) -> Path:
    """Conversations in Mooncake's form: prompts of up to 60,000 tokens, each behind one before it."""
    rng, rows, num_ids = np.random.default_rng(42), list[str](), 0
    told: list[list[int]] = [[] for _ in range(count // 8)]
    for index in range(count):
        ids = told[rng.integers(len(told))]
        num_new = int(rng.integers(2, 30))
        ids += range(num_ids, num_ids + num_new)
        num_ids += num_new
        row = {
            "timestamp": index * 300,
            "input_length": 512 * len(ids),
            "output_length": int(rng.integers(20, 300)),
        }
        rows.append(json.dumps({**row, "hash_ids": ids}))
        if len(ids) > 90:
            ids.clear()
    path = folder / "long_prompts.jsonl"
    path.write_text("\n".join(rows) + "\n")
    return path


def generated(path: Path, rate_per_s: float, count: int, outputs: tuple[int, int]) -> Path:
    """A trace of Poisson arrivals."""
    rng = np.random.default_rng(42)
    arrivals = np.cumsum(rng.exponential(1 / rate_per_s, count))
    prompts, answers = rng.integers(128, 1025, count), rng.integers(*outputs, count)
    rows = (f"{a:.6f},{p},{o}\n" for a, p, o in zip(arrivals, prompts, answers, strict=True))
    path.write_text("arrived_at,num_prefill_tokens,num_decode_tokens\n" + "".join(rows))
    return path


def copied(folder: Path, *, compiled: bool) -> Path:
    """A copy of the working tree's source, plain or compiled, to run in."""
    ignore = shutil.ignore_patterns("__pycache__", "*.so", "assets")
    shutil.copytree(ROOT / "sundog", folder / "sundog", ignore=ignore)
    shutil.copy(ROOT / "pyproject.toml", folder)
    return _made(folder, compiled)


def is_commit(name: str) -> bool:
    """Whether git knows a commit of this name."""
    command = ["git", "rev-parse", "--quiet", "--verify", f"{name}^{{commit}}"]
    return subprocess.run(command, cwd=ROOT, capture_output=True, check=False).returncode == 0


def committed(commit: str, folder: Path, *, compiled: bool) -> Path:
    """The source as it is in a commit, plain or compiled, to run in."""
    command = ["git", "archive", "--format=tar", commit, "actors", "sim", "sundog", "pyproject.toml"]
    with tempfile.TemporaryFile() as packed:
        subprocess.run(command, cwd=ROOT, stdout=packed, check=True)
        packed.seek(0)
        with tarfile.open(fileobj=packed) as archive:
            archive.extractall(folder, filter="data")
    return _made(folder, compiled)


def _made(folder: Path, compiled: bool) -> Path:
    """With bytecode, as pip leaves it: even where the environment tells Python to write none."""
    compileall.compile_dir(folder, quiet=1)
    if compiled:
        command = [sys.executable, "-m", "sundog.fast", "build"]
        subprocess.run(command, cwd=folder, env=paths(folder), capture_output=True, check=True)
    return folder


def paths(source: Path) -> dict[str, str]:
    """An environment in which the modules are those of `source`, wherever sundog is installed from."""
    return {**os.environ, "PYTHONPATH": str(source)}


def replayed(source: Path, trace: Path, options: str) -> Taken:
    """A replay in a source, as a whole process."""
    return took(source, ["replay", str(trace), "--json", *options.split()])


def took(source: Path, arguments: list[str]) -> Taken:
    """What `sundog` with these arguments takes; it must succeed."""
    return measured([sys.executable, "-m", "sundog", *arguments], source, paths(source))


def measured(command: list[str], folder: Path, environment: dict[str, str]) -> Taken:
    """What a command takes in a folder; it must succeed."""
    with tempfile.TemporaryFile() as printed:
        start = time.perf_counter()
        child = subprocess.Popen(
            command, cwd=folder, env=environment, stdout=printed, stderr=subprocess.DEVNULL
        )
        _, status, used = os.wait4(child.pid, 0)
        wall_s = time.perf_counter() - start
        child.returncode = os.waitstatus_to_exitcode(status)
        if child.returncode:
            raise CommandFailed(f"{' '.join(command)} failed")
        printed.seek(0)
        return Taken(used.ru_utime + used.ru_stime, wall_s, used.ru_maxrss / 1024, printed.read())
