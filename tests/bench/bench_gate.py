"""Whether the working tree is slower than a commit: `python -m tests.bench gate BASE`.

Twelve commands run in both, in turn, for five rounds, and what counts is the CPU time of the whole process:
a busy machine disturbs both sides of a pair alike. A case fails if it takes more than a tenth longer in four
rounds of five; one failure is enough to fail.
"""

import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from statistics import median

from tests.bench.runs import A100, H100, ROOT, Taken, committed, copied, long_answers, poisson, took

ROUNDS, ENOUGH = 5, 4
SLOWER = 1.10
SESSIONS = ROOT / "traces" / "sessions-diurnal-10min.jsonl.gz"
SMALL = "--model llama-3.1-8b --gpu h100 --num-gpu-blocks 900 --max-model-len 8192"


def cases(folder: Path) -> dict[str, str]:
    """The commands by name; `OUT` stands for a folder that does not exist yet."""
    calm, busy = poisson(8, folder, 5_000), poisson(32, folder, 4_000)
    replay, long = f"replay {calm} --json {A100}", long_answers(folder)
    return {
        "start": f"{replay} --limit 1",
        "calm": replay,
        "calm, synchronous": f"{replay} --no-async-scheduling",
        "calm, step by step": f"{replay} --limit 1000 --no-decode-runs",
        "calm, kept": f"{replay} --limit 2000 --out OUT",
        "four replicas": f"replay {busy} --json {A100} --replicas 4",
        "host overhead": f"replay {busy} --json {H100}",
        "overload": f"replay {busy} --json {A100}",
        "overload, vtc": f"replay {busy} --json {A100} --limit 1500 --policy vtc",
        "long answers": f"replay {long} --json {H100} --replicas 2",
        "shared prefixes": f"replay {SESSIONS} --json {SMALL}",
        "roofline": f"{replay} --limit 2000 --cost roofline",
    }


def judge(pairs: list[tuple[float, float]]) -> bool:
    """Whether a case is slower: (seconds before, seconds now) of each round."""
    return sum(now > SLOWER * before for before, now in pairs) >= ENOUGH


def run(before: Path, now: Path, commands: dict[str, str], take: Callable[[Path, str], float]) -> list[str]:
    """The cases that are slower now; prints a line for each."""
    slower = []
    for name, command in commands.items():
        pairs = [(take(before, command), take(now, command)) for _ in range(ROUNDS)]
        verdict = "SLOWER" if judge(pairs) else ""
        ratio = median(b / a for a, b in pairs)
        least_s, now_s = (min(side) for side in zip(*pairs, strict=True))
        print(f"{name:<20} {least_s:>6.2f} s {now_s:>6.2f} s {ratio:>6.2f}  {verdict}", flush=True)
        if verdict:
            slower.append(name)
    return slower


def cpu_s(source: Path, command: str) -> float:
    """CPU seconds of a command, whose results, if it keeps any, are dropped."""
    with tempfile.TemporaryDirectory() as out:
        taken: Taken = took(source, command.replace("OUT", f"{out}/run").split())
    return taken.cpu_s


def main(base: str = "HEAD") -> None:
    """Compare the working tree with `base`, both compiled if there is a compiler; exit 1 if it is slower."""
    compiled = shutil.which("cc") is not None
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        before = committed(base, folder / "before", compiled=compiled)
        now = copied(folder / "now", compiled=compiled)
        print(f"CPU seconds          {base:>8}      now  ratio")
        slower = run(before, now, cases(folder), cpu_s)
    if slower:
        sys.exit(f"slower by more than a tenth in {ENOUGH} rounds of {ROUNDS}: {', '.join(slower)}")
