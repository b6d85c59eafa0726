"""Number of calls per request of a replay, by cProfile: a count that does not depend on the machine.

    python -m tests.bench.counts            # the six cases against tests/bench/budget.toml
    python -m tests.bench.counts --write    # the counts as they are, to be argued for in the commit

Plain, every call counts, of functions and builtins. Compiled, the frames of Python that are left. A replay of
N requests and one of half as many are counted, each in a process of its own, and the difference is shared out
among the requests between: imports and what a run does once are in neither figure.
"""

import argparse
import compileall
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from sundog.fast import how
from tests.bench.replay_cases import CASES
from tests.bench.runs import ROOT, paths

BUDGET = Path(__file__).with_name("budget.toml")
OVER, SLACK = 1.02, 0.95
COUNTING = """
import cProfile, os, sys
from sundog.cli import main
printed = os.dup(1)
os.dup2(2, 1)
profile = cProfile.Profile()
try:
    profile.runcall(main)
except SystemExit as end:
    if end.code:
        raise
os.dup2(printed, 1)
found = profile.getstats()
frames = [each for each in found if not isinstance(each.code, str)]
print(*(sum(each.callcount for each in kind) for kind in (found, frames)))
"""


class Counts(NamedTuple):
    """Calls, and among them frames of Python, in a replay or for a request."""

    calls: float
    frames: float


def of_replay(source: Path, trace: Path, options: list[str], limit: int) -> Counts:
    """Count a whole replay in the modules of `source`, which must succeed."""
    command = [sys.executable, "-c", COUNTING, "replay", str(trace), *options, "--limit", str(limit)]
    environment = paths(source) | {"PYTHONHASHSEED": "0"}
    done = subprocess.run(command, cwd=source, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return Counts(*map(int, done.stdout.split()))


def of_request(source: Path, name: str, folder: Path) -> Counts:
    """Count what a request of a case adds to a replay."""
    for part in ("actors", "sim", "sundog"):  # or the first of both replays would count the compiling, too
        compileall.compile_dir(source / part, quiet=2)
    case = CASES[name]
    trace, options, most = case.make(folder), case.options(), case.num_counted
    part, whole = (of_replay(source, trace, options, limit) for limit in (most // 2, most))
    each = [(all_ - half) / (most - most // 2) for half, all_ in zip(part, whole, strict=True)]
    return Counts(*each)


def budget() -> dict[str, dict[str, float]]:
    """The budgets by kind (`plain`, `compiled`) and case."""
    return tomllib.loads(BUDGET.read_text(encoding="utf-8"))


def verdict(found: Mapping[str, float], allowed: Mapping[str, float]) -> list[str]:
    """Name the cases that exceed their budget by over 2 %, or fall short of it by over 5 %."""
    words = []
    for name, count in found.items():
        if count > OVER * allowed[name]:
            words.append(f"{name}: {count:.1f} a request, and {allowed[name]:g} are allowed")
        elif count < SLACK * allowed[name]:
            words.append(f"{name}: {count:.1f} a request: lower its budget of {allowed[name]:g}")
    return words


def counted(source: Path, kind: str, folder: Path, names: list[str] | None = None) -> dict[str, float]:
    """Count cases, all if not given: calls of a plain source, frames of a compiled one."""
    found = {name: of_request(source, name, folder) for name in names or CASES}
    return {name: each.calls if kind == "plain" else each.frames for name, each in found.items()}


def main() -> int:
    """Print the counts of this tree beside its budget; 1 if any differs."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.counts", description=__doc__)
    parser.add_argument("--write", action="store_true", help="make the counts the budget")
    asked = parser.parse_args()
    kind = "compiled" if how() == "compiled" else "plain"
    with tempfile.TemporaryDirectory() as folder:
        found = counted(ROOT, kind, Path(folder))
    known = budget()
    for name, count in found.items():
        print(f"{name:<16} {count:>8.1f}  {known.get(kind, {}).get(name, 0):>8g}")
    if asked.write:
        known[kind] = {name: round(count, 1) for name, count in found.items()}
        head = BUDGET.read_text(encoding="utf-8").split("\n[")[0].rstrip("\n")
        tables = [
            "\n".join([f"[{k}]", *(f"{n} = {v:g}" for n, v in rows.items())]) for k, rows in known.items()
        ]
        BUDGET.write_text("\n\n".join([head, *tables]) + "\n", encoding="utf-8")
        return 0
    words = verdict(found, known[kind])
    print("\n".join(words))
    return 1 if words else 0


if __name__ == "__main__":
    sys.exit(main())
