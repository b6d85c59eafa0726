"""Cost of replaying a trace, as a whole process: CPU and wall seconds, peak memory, and equality of the
bytes.

Llama-2-7B on an A100 with 7,000 blocks of 16, 128 sequences, 2,048 tokens a step and a context of
4,096; the reasoning trace on eight H100 of Llama-3.1-8B. The Poisson traces are generated; public
ones are read where the folder with them lies beside the project, and skipped elsewhere. Each runs
compiled (in a copy, if there is a C compiler), plain, and plain without decode runs. Then, compiled: a
hundred thousand requests on one H100, sixteen replicas at sixteen times the load, dynamic policies under
overload against first come, first served, and a million requests written to disk.
"""

import shutil
import tempfile
from pathlib import Path

from tests.bench.runs import A100, H100, TRACES, copied, poisson, replayed

EIGHT = "--model llama-3.1-8b --gpu h100 --replicas 8 --router round-robin"


def main() -> None:
    """Print a line per trace: what compiling and what decode runs save, and the equality."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        plain = copied(folder / "plain", compiled=False)
        fast = copied(folder / "compiled", compiled=True) if shutil.which("cc") else plain
        traces(plain, fast, folder)
        many_requests(fast, folder)
        scaling(fast, folder)
        policies(fast, folder)
        million(fast, folder)


def traces(plain: Path, fast: Path, folder: Path) -> None:
    """CPU (and wall) seconds of each trace."""
    jobs = [
        (poisson(8, folder), A100),
        (poisson(32, folder), A100 + " --replicas 4"),
        (TRACES / "bench_azure_conv_4k.csv.gz", A100),
        (TRACES / "servegen_deepseek-r1_5rps_20min.csv.gz", EIGHT),
    ]
    print("CPU (wall) seconds                     compiled          peak     plain            ratio  no runs")
    for trace, options in jobs:
        if not trace.exists():
            print(f"{trace.name:<38} skipped: not here")
            continue
        best, interpreted = replayed(fast, trace, options), replayed(plain, trace, options)
        slow = replayed(plain, trace, options + " --no-decode-runs")
        same = "the same" if best.printed == interpreted.printed == slow.printed else "DIFFERENT"
        print(
            f"{trace.name:<38} {best.cpu_s:>5.2f} ({best.wall_s:>5.2f}) {best.megabytes:>7.0f} MB"
            f" {interpreted.cpu_s:>6.2f} ({interpreted.wall_s:>5.2f}) {interpreted.cpu_s / best.cpu_s:>6.1f}"
            f" {slow.cpu_s:>7.2f}  {same} bytes",
            flush=True,
        )


def many_requests(source: Path, folder: Path) -> None:
    """A hundred thousand requests: here a request's cost counts, and not the start."""
    for rate_per_s in (8, 32):
        taken = replayed(source, poisson(rate_per_s, folder, 100_000), H100)
        print(
            f"100,000 requests at {rate_per_s}/s: {taken.cpu_s:.2f} s, {taken.megabytes:.0f} MB", flush=True
        )


def scaling(source: Path, folder: Path) -> None:
    """Sixteen replicas at sixteen times the load against sixteen times one replica's time."""
    one = replayed(source, poisson(8, folder), A100)
    many = replayed(source, poisson(128, folder, 160_000), A100 + " --replicas 16")
    print(
        f"16 replicas at 16 times the load: {many.cpu_s:.2f} s, {many.megabytes:.0f} MB;"
        f" {many.cpu_s / (16 * one.cpu_s):.2f} of 16 times one's {one.cpu_s:.2f} s",
        flush=True,
    )


def policies(source: Path, folder: Path) -> None:
    """Dynamic policies where thousands wait, against first come, first served."""
    trace = poisson(32, folder)
    fcfs = replayed(source, trace, A100).cpu_s
    for policy in ("vtc", "mlfq"):
        taken = replayed(source, trace, f"{A100} --policy {policy}")
        print(f"overload, {policy}: {taken.cpu_s:.2f} s, {taken.cpu_s / fcfs:.1f} of fcfs", flush=True)


def million(source: Path, folder: Path) -> None:
    """A million requests with results on disk, and a tenth of them: memory does not follow."""
    trace, out = poisson(8, folder, 1_000_000), f" --out {folder / 'run'}"
    for limit in (100_000, 1_000_000):
        taken = replayed(source, trace, f"{A100} --limit {limit}{out}")
        print(f"{limit:,} requests to Parquet: {taken.cpu_s:.1f} s, {taken.megabytes:.0f} MB", flush=True)


if __name__ == "__main__":
    main()
