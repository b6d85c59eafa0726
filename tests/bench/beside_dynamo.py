"""Replay beside that of Dynamo's mocker: `python -m tests.bench gate [BASE] --dynamo PYTHON`.

PYTHON is that of an environment with Dynamo's wheel, which needs nothing else:

    python -m venv dynamo && dynamo/bin/pip install ai-dynamo-runtime==1.6.1

Both replay the same arrivals and lengths on the same fleets, in turn, as whole processes; Dynamo with its own
model of step times, so that its steps are not as long as ours: virtual seconds say how far they are apart.
The table is Markdown, for `results/replay-2-cores.md`.
"""

import json
import os
import platform
import subprocess
import sys
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import NamedTuple

from tests.bench.replay_cases import ReplayCase, mooncake
from tests.bench.runs import ROOT, CommandFailed, Taken, measured, paths, took

REPLAY = """
import json, sys
from dynamo._core import run_mocker_trace_replay
found = run_mocker_trace_replay([sys.argv[1]], trace_block_size=512, **json.loads(sys.argv[2]))
print(json.dumps(found.summary))
"""
DYNAMO = "dynamo"
NO_RANGES = "--no-ranges"
ROUNDS = "CPU seconds of processes / peak MB, in turn, the least of two rounds, of five below a second."
SETTLED_S = 1.0
"""What takes longer than this in CPU seconds has two rounds instead of five."""


class Side(NamedTuple):
    """The least CPU seconds and the peak memory of the rounds, and what came out."""

    cpu_s: float
    megabytes: float
    num_finished: int
    num_tokens: int
    virtual_s: float

    def shown(self) -> str:
        return f"{self.cpu_s:.2f} / {self.megabytes:.0f}"


def of_sundog(source: Path, trace: Path, options: list[str]) -> Side:
    taken = took(source, ["replay", str(trace), *options])
    found = json.loads(taken.printed)
    return _side(taken, found["num_finished"], found["output_tokens"], found["duration_s"])


def of_dynamo(python: Path, trace: Path, arguments: Mapping[str, object]) -> Side:
    command = [str(python), "-c", REPLAY, str(trace), json.dumps(arguments)]
    taken = measured(command, trace.parent, dict(os.environ))
    found = json.loads(taken.printed)
    num_tokens, virtual_s = found["total_output_tokens"], found["duration_ms"] / 1000
    return _side(taken, found["completed_requests"], num_tokens, virtual_s)


def _side(taken: Taken, num_finished: int, num_tokens: int, virtual_s: float) -> Side:
    return Side(taken.cpu_s, taken.megabytes, num_finished, num_tokens, virtual_s)


def known_to(source: Path, options: list[str]) -> list[str]:
    """Leave out of options what a commit of long ago has not."""
    command = [sys.executable, "-m", "sundog", "replay", "--help"]
    text = subprocess.run(
        command, cwd=source, env=paths(source), capture_output=True, text=True, check=True
    ).stdout
    return [word for word in options if word != NO_RANGES or "ranges" in text]


def in_turn(case: ReplayCase, python: Path, trees: Mapping[str, Path], folder: Path) -> dict[str, Side]:
    """Run a case on each side in turn, each first once; the least of all rounds."""
    trace = case.timed(folder)
    rows = mooncake(trace, folder / "dynamo.jsonl", case.most)
    limit = [] if case.most is None else ["--limit", str(case.most)]
    sides = {
        name: partial(of_sundog, source, trace, known_to(source, case.options()) + limit)
        for name, source in trees.items()
    } | {DYNAMO: partial(of_dynamo, python, rows, case.dynamo())}
    best: dict[str, Side] = {}
    num_rounds = number = 0
    while number < max(num_rounds, 2):
        for name in sorted([*sides], reverse=number % 2 == 1):
            try:
                found = sides[name]()
            except CommandFailed:
                if name in (next(iter(trees)), DYNAMO):
                    raise
                del sides[name]  # a commit from before there were such fleets
                continue
            best[name] = found if name not in best else min(best[name], found)
        number += 1
        num_rounds = 2 if max(each.cpu_s for each in best.values()) > SETTLED_S else 5
    outcomes = {(each.num_finished, each.num_tokens) for each in best.values()}
    assert len(outcomes) == 1, f"not the same requests were answered: {outcomes}"
    return best


def table(
    cases: Mapping[str, ReplayCase], python: Path, trees: Mapping[str, Path], folder: Path
) -> Iterator[str]:
    """The lines of the table; `trees` are those of this simulator, by name, the one that counts first."""
    now, *others = trees
    yield f"{commit()}, {processor()}, CPython {platform.python_version()}, Dynamo {version(python)}."
    yield ROUNDS
    yield ""
    heads = ["", *trees, "Dynamo", f"{now} / Dynamo", "aim", *(f"{now} / {name}" for name in others)]
    yield f"| {' | '.join([*heads, 'virtual s, ours and theirs'])} |"
    yield f"|{'---|' * (len(heads) + 1)}"
    for name, case in cases.items():
        found = in_turn(case, python, trees, folder)
        ours, theirs = found[now], found[DYNAMO]
        cells = [found[each].shown() if each in found else "–" for each in (*trees, DYNAMO)]
        cells += [f"**{ours.cpu_s / theirs.cpu_s:.2f}**", "–" if case.aim is None else f"{case.aim:g}"]
        cells += [f"{ours.cpu_s / found[each].cpu_s:.2f}" if each in found else "–" for each in others]
        yield f"| {' | '.join([name, *cells])} | {ours.virtual_s:,.0f}, {theirs.virtual_s:,.0f} |"


def version(python: Path) -> str:
    """Return the version of Dynamo's wheel."""
    code = "from importlib.metadata import version; print(version('ai-dynamo-runtime'))"
    done = subprocess.run([str(python), "-c", code], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"--dynamo: {python} has no ai-dynamo-runtime: pip install it there")
    return done.stdout.strip()


def commit() -> str:
    """Return the commit of the working tree, with a mark if it was changed since."""
    command = ["git", "describe", "--always", "--dirty", "--abbrev=8", "--exclude=*"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return f"Commit {done.stdout.strip()}" if done.returncode == 0 else "No commit"


def processor() -> str:
    """Return the processor's name, and how many of it may be used."""
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines() if os.name == "posix" else []
    names = [line.split(":")[1].strip() for line in lines if line.startswith("model name")]
    return f"{names[0] if names else platform.machine()}, {len(os.sched_getaffinity(0))} cores"
