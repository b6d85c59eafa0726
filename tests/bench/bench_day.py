"""Cost of simulating a day of 345,456 requests, as a whole process: docs/plans/day.toml on one H100, and on
four.

Compiled (in a copy, if there is a C compiler) and plain, which print the same bytes. `--compiled` leaves out
the plain runs, which take minutes.
"""

import shutil
import sys
import tempfile
from pathlib import Path

from tests.bench.runs import ROOT, copied, replayed, took

NUM_REQUESTS = 345_456
OPTIONS = f"--limit {NUM_REQUESTS} --model llama-3.1-8b --gpu h100 --replicas "


def main() -> None:
    """Print a line for each fleet: CPU seconds, peak memory, and what a request takes."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        sources = {"compiled": copied(folder / "compiled", compiled=True)} if shutil.which("cc") else {}
        if "--compiled" not in sys.argv:
            sources["plain"] = copied(folder / "plain", compiled=False)
        trace = folder / "day.jsonl.gz"
        made = took(
            next(iter(sources.values())),
            ["workload", str(ROOT / "docs" / "plans" / "day.toml"), "-o", str(trace)],
        )
        print(f"making the workload: {made.cpu_s:.1f} s of CPU", flush=True)
        for replicas in (1, 4):
            printed = set()
            for how, source in sources.items():
                taken = replayed(source, trace, f"{OPTIONS}{replicas}")
                printed.add(taken.printed)
                print(
                    f"replicas {replicas}, {how:<8} {taken.cpu_s:>6.1f} s of CPU, {taken.megabytes:>5.0f} MB,"
                    f" {taken.cpu_s / NUM_REQUESTS * 1e6:>4.0f} us a request",
                    flush=True,
                )
            if len(sources) > 1:
                print("the same bytes" if len(printed) == 1 else "DIFFERENT bytes", flush=True)


if __name__ == "__main__":
    main()
