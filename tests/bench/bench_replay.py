"""What replaying a trace costs, as a whole process: seconds, peak memory, and the same bytes.

Llama-2-7B on an A100 with 7,000 blocks of 16, 128 sequences, 2,048 tokens a step and a context of
4,096; the reasoning trace on eight H100 of Llama-3.1-8B. The Poisson traces are generated; public
ones are read where the folder with them lies beside the project, and skipped elsewhere. Each runs
compiled (`make fast`, in a copy, if there is a C compiler), plain, and plain without decode runs.
Then, compiled: sixteen replicas at sixteen times the load, and a million requests written to disk.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parents[2]
TRACES = ROOT.parent / "shared" / "traces"
A100 = (
    "--model llama-2-7b --gpu a100 --num-gpu-blocks 7000 --max-num-seqs 128"
    " --max-num-batched-tokens 2048 --max-model-len 4096 --no-host-overhead"
)
H100 = "--model llama-3.1-8b --gpu h100 --replicas 8 --router round-robin"


def poisson(rate_per_s: float, folder: Path, count: int = 10_000) -> Path:
    """Exponential gaps, then prompts of 128 to 1,024 and outputs of 32 to 256 tokens."""
    rng = np.random.default_rng(42)
    arrivals = np.cumsum(rng.exponential(1 / rate_per_s, count))
    prompts, outputs = rng.integers(128, 1025, count), rng.integers(32, 257, count)
    path = folder / f"poisson{count // 1000}k_r{rate_per_s:g}.csv"
    rows = (f"{a:.6f},{p},{o}\n" for a, p, o in zip(arrivals, prompts, outputs, strict=True))
    path.write_text("arrived_at,num_prefill_tokens,num_decode_tokens\n" + "".join(rows))
    return path


def copied(name: str, folder: Path) -> Path:
    """A copy of the source, plain or compiled, to run in."""
    copy, ignore = folder / name, shutil.ignore_patterns("__pycache__", "*.so", "assets")
    for part in ("actors", "sim", "sundog"):
        shutil.copytree(ROOT / part, copy / part, ignore=ignore)
    shutil.copy(ROOT / "pyproject.toml", copy)
    if name == "compiled":
        command = [sys.executable, "-m", "sundog.fast", "build"]
        subprocess.run(command, cwd=copy, capture_output=True, check=True)
    return copy


def measure(source: Path, trace: Path, options: str) -> tuple[float, float, bytes]:
    """Wall seconds, peak megabytes, and what was printed."""
    command = [sys.executable, "-m", "sundog", "replay", str(trace), "--json", *options.split()]
    with tempfile.TemporaryFile() as printed:
        start = time.perf_counter()
        child = subprocess.Popen(command, cwd=source, stdout=printed, stderr=subprocess.DEVNULL)
        _, status, used = os.wait4(child.pid, 0)
        seconds = time.perf_counter() - start
        child.returncode = os.waitstatus_to_exitcode(status)
        assert child.returncode == 0, f"{' '.join(command)} failed"
        printed.seek(0)
        return seconds, used.ru_maxrss / 1024, printed.read()


def main() -> None:
    """Print a line per trace: what compiling and what decode runs save, and the equality."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        jobs = [
            (poisson(8, folder), A100),
            (poisson(32, folder), A100 + " --replicas 4"),
            (TRACES / "bench_azure_conv_4k.csv.gz", A100),
            (TRACES / "servegen_deepseek-r1_5rps_20min.csv.gz", H100),
        ]
        plain = copied("plain", folder)
        fast = copied("compiled", folder) if shutil.which("cc") else plain
        print(
            f"{'trace':<38} {'compiled':>9} {'peak':>8} {'plain':>8} {'ratio':>6} {'no runs':>9}"
            f" {'ratio':>6}  bytes"
        )
        for trace, options in jobs:
            if not trace.exists():
                print(f"{trace.name:<38} skipped: not here")
                continue
            best, megabytes, printed = measure(fast, trace, options)
            seconds, _, interpreted = measure(plain, trace, options)
            slow, _, expected = measure(plain, trace, options + " --no-decode-runs")
            same = "the same" if printed == interpreted == expected else "DIFFERENT"
            print(
                f"{trace.name:<38} {best:>7.2f} s {megabytes:>5.0f} MB {seconds:>6.2f} s"
                f" {seconds / best:>6.1f} {slow:>7.1f} s {slow / seconds:>6.1f}  {same}",
                flush=True,
            )
        scaling(fast, folder)
        million(fast, folder)


def scaling(source: Path, folder: Path) -> None:
    """Sixteen replicas at sixteen times the load against sixteen times one replica's time."""
    one, _, _ = measure(source, poisson(8, folder), A100)
    many, megabytes, _ = measure(source, poisson(128, folder, 160_000), A100 + " --replicas 16")
    print(
        f"16 replicas at 16 times the load: {many:.2f} s, {megabytes:.0f} MB;"
        f" {many / (16 * one):.2f} of 16 times one's {one:.2f} s",
        flush=True,
    )


def million(source: Path, folder: Path) -> None:
    """A million requests with results on disk, and a tenth of them: memory does not follow."""
    trace, out = poisson(8, folder, 1_000_000), f" --out {folder / 'run'}"
    for limit in (100_000, 1_000_000):
        seconds, megabytes, _ = measure(source, trace, f"{A100} --limit {limit}{out}")
        print(f"{limit:,} requests to Parquet: {seconds:.1f} s, {megabytes:.0f} MB", flush=True)


if __name__ == "__main__":
    main()
