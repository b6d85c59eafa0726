"""What replaying a trace costs, as a whole process: seconds, peak memory, and the same bytes.

Llama-2-7B on an A100 with 7,000 blocks of 16, 128 sequences, 2,048 tokens a step and a context of
4,096; the reasoning trace on eight H100 of Llama-3.1-8B. The Poisson traces are generated; public
ones are read where the folder with them lies beside the project, and skipped elsewhere.
"""

import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

TRACES = Path("..") / "shared" / "traces"
A100 = (
    "--model llama-2-7b --gpu a100 --num-gpu-blocks 7000 --max-num-seqs 128"
    " --max-num-batched-tokens 2048 --max-model-len 4096 --no-host-overhead"
)
H100 = "--model llama-3.1-8b --gpu h100 --replicas 8 --router round-robin"


def poisson(rate_per_s: float, folder: Path) -> Path:
    """10,000 requests: exponential gaps, then prompts of 128 to 1,024 and outputs of 32 to 256."""
    rng = np.random.default_rng(42)
    arrivals = np.cumsum(rng.exponential(1 / rate_per_s, 10_000))
    prompts, outputs = rng.integers(128, 1025, 10_000), rng.integers(32, 257, 10_000)
    path = folder / f"poisson10k_r{rate_per_s:g}.csv"
    rows = (f"{a:.6f},{p},{o}\n" for a, p, o in zip(arrivals, prompts, outputs, strict=True))
    path.write_text("arrived_at,num_prefill_tokens,num_decode_tokens\n" + "".join(rows))
    return path


def measure(trace: Path, options: str) -> tuple[float, float, bytes]:
    """Wall seconds, the peak of megabytes among children so far, and what was printed."""
    command = [sys.executable, "-m", "sundog", "replay", str(trace), "--json", *options.split()]
    start = time.perf_counter()
    done = subprocess.run(command, capture_output=True, check=True)
    seconds = time.perf_counter() - start
    return seconds, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024, done.stdout


def main() -> None:
    """Print a line per trace; decode runs on, and off for the ratio and the equality."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        jobs = [
            (poisson(8, folder), A100),
            (poisson(32, folder), A100 + " --replicas 4"),
            (TRACES / "bench_azure_conv_4k.csv.gz", A100),
            (TRACES / "servegen_deepseek-r1_5rps_20min.csv.gz", H100),
        ]
        print(f"{'trace':<42} {'runs':>8} {'peak':>8} {'no runs':>9} {'ratio':>6}  bytes")
        for trace, options in jobs:
            if not trace.exists():
                print(f"{trace.name:<42} skipped: not here")
                continue
            seconds, megabytes, printed = measure(trace, options)
            slow, _, expected = measure(trace, options + " --no-decode-runs")
            same = "the same" if printed == expected else "DIFFERENT"
            print(
                f"{trace.name:<42} {seconds:>6.1f} s {megabytes:>5.0f} MB {slow:>7.1f} s"
                f" {slow / seconds:>6.1f}  {same}",
                flush=True,
            )


if __name__ == "__main__":
    main()
