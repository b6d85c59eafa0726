"""Cost of a run inside a sweep, whose processes serve many runs: 48 settings of one Poisson trace."""

import os
import shutil
import tempfile
from pathlib import Path

from tests.bench.runs import A100, copied, poisson, took

NUM_RUNS = 48


def main() -> None:
    """Print CPU seconds a run, and of the same run as a process of its own."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        source = copied(folder / "source", compiled=shutil.which("cc") is not None)
        trace = str(poisson(8, folder))
        settings = ",".join(str(128 + number) for number in range(NUM_RUNS))
        options = A100.replace("--max-num-seqs 128 ", "").split()
        vary = ["--vary", f"max_num_seqs={settings}", "--jobs", str(os.cpu_count() or 1)]
        sweep = took(source, ["sweep", trace, *vary, "--json", *options])
        alone = took(source, ["replay", trace, "--json", *A100.split()])
        print(
            f"{NUM_RUNS} runs: {sweep.cpu_s / NUM_RUNS:.2f} s of CPU each, {sweep.wall_s:.1f} s in all;"
            f" one alone {alone.cpu_s:.2f} s",
            flush=True,
        )


if __name__ == "__main__":
    main()
