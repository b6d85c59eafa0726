"""Performance gate: `python -m tests.bench gate BASE` fails if the working tree is slower than a commit.

`python -m tests.bench gate [BASE] --dynamo PYTHON` prints other cases beside Dynamo's mocker
(`beside_dynamo.py`), and decides nothing. Calls of a request are counted by `python -m tests.bench.counts`.

With `--cases NAME,…` only some cases run, and with `--plain` nothing is compiled. Thirteen commands run
in both, in turn, for up to five rounds, and what counts is the CPU time of the whole process: a busy machine
disturbs both sides of a pair alike. A case fails if it takes more than a tenth longer in four rounds of five;
its rounds end as soon as that is decided, for equal trees after two. One failure is enough to fail. Where the
two do not print and keep the same bytes, the line says so, and that is no failure.
"""

import argparse
import hashlib
import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from typing import NamedTuple, TypeVar

from tests.bench.beside_dynamo import table, version
from tests.bench.replay_cases import TIMED
from tests.bench.runs import (
    A100,
    H100,
    ROOT,
    committed,
    copied,
    is_commit,
    long_answers,
    long_prompts,
    poisson,
    took,
)

ROUNDS, ENOUGH = 5, 4
SLOWER = 1.10
SESSIONS = ROOT / "traces" / "sessions-diurnal-10min.jsonl.gz"
SMALL = "--model llama-3.1-8b --gpu h100 --num-gpu-blocks 900 --max-model-len 8192"


class Ran(NamedTuple):
    """A command's CPU seconds, and a digest of all that it printed and kept."""

    cpu_s: float
    digest: str


Take = Callable[[Path, str], Ran]
Case = TypeVar("Case")


def cases(folder: Path) -> dict[str, str]:
    """The commands by name; `OUT` stands for a folder that does not exist yet."""
    calm, busy = poisson(8, folder, 5_000), poisson(32, folder, 4_000)
    replay, long = f"replay {calm} --json {A100}", long_answers(folder)
    return {
        "start": f"{replay} --limit 1",
        "calm": replay,
        "synchronous": f"{replay} --no-async-scheduling",
        "step-by-step": f"{replay} --limit 1000 --no-decode-runs",
        "kept": f"{replay} --limit 2000 --out OUT",
        "replicas": f"replay {busy} --json {A100} --replicas 4",
        "host-overhead": f"replay {busy} --json {H100}",
        "overload": f"replay {busy} --json {A100}",
        "vtc": f"replay {busy} --json {A100} --limit 1500 --policy vtc",
        "long-answers": f"replay {long} --json {H100} --replicas 2",
        "long-prompts": f"replay {long_prompts(folder)} --json {H100} --replicas 2 --num-gpu-blocks 20000",
        "prefixes": f"replay {SESSIONS} --json {SMALL}",
        "roofline": f"{replay} --limit 2000 --cost roofline",
    }


def judge(pairs: list[tuple[float, float]]) -> bool | None:
    """Whether a case is slower, of (seconds before, seconds now) in each round; None if more are needed."""
    num_slower = sum(now > SLOWER * before for before, now in pairs)
    if num_slower >= ENOUGH:
        return True
    return False if num_slower + ROUNDS - len(pairs) < ENOUGH else None


def run(before: Path, now: Path, commands: Mapping[str, str], take: Take) -> list[str]:
    """The cases that are slower now; prints a line for each."""
    slower = []
    for name, command in commands.items():
        pairs: list[tuple[float, float]] = []
        digests = set()
        while judge(pairs) is None:
            # Each goes first in turn: whatever the first of a pair pays, both pay.
            order = (before, now) if len(pairs) % 2 == 0 else (now, before)
            ran = {source: take(source, command) for source in order}
            pairs.append((ran[before].cpu_s, ran[now].cpu_s))
            digests |= {each.digest for each in ran.values()}
        words = ["SLOWER"] * bool(judge(pairs)) + ["other bytes"] * (len(digests) > 1)
        ratio = median(b / a for a, b in pairs)
        least_s, now_s = (min(side) for side in zip(*pairs, strict=True))
        print(f"{name:<20} {least_s:>6.2f} s {now_s:>6.2f} s {ratio:>6.2f}  {', '.join(words)}", flush=True)
        if judge(pairs):
            slower.append(name)
    return slower


def ran(source: Path, command: str) -> Ran:
    """What a command takes and gives; results that it keeps are read and dropped."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        taken = took(source, command.replace("OUT", str(out)).split())
        digest = hashlib.sha256(taken.printed)
        for path in sorted(out.glob("*")):
            digest.update(path.name.encode() + path.read_bytes().replace(folder.encode(), b""))
        return Ran(taken.cpu_s, digest.hexdigest())


def chosen(commands: Mapping[str, Case], names: str | None) -> Mapping[str, Case]:
    """The cases that are asked for, by name with commas between, or all."""
    if names is None:
        return commands
    unknown = [name for name in names.split(",") if name not in commands]
    if unknown:
        sys.exit(f"--cases: there is no {', '.join(unknown)}; known: {', '.join(commands)}")
    return {name: commands[name] for name in names.split(",")}


def trees(asked: argparse.Namespace, folder: Path) -> dict[str, Path]:
    """The sources to compare, compiled unless that was refused: `now`, and the commit if one is given."""
    compiled = shutil.which("cc") is not None and not asked.plain
    # Compiling takes longer than most cases: on two cores both are done in the time of one.
    with ThreadPoolExecutor(2) as both:
        made = {"now": asked.now or both.submit(copied, folder / "now", compiled=compiled)}
        if asked.base:
            old = asked.before or both.submit(committed, asked.base, folder / "before", compiled=compiled)
            made[asked.base] = old
        return {name: each if isinstance(each, Path) else each.result() for name, each in made.items()}


def main(arguments: list[str]) -> None:
    """Compare the working tree with a commit; exit 1 if it is slower, 2 if there is no such commit."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench gate", description=__doc__)
    parser.add_argument("base", nargs="?", help="the commit to compare with")
    parser.add_argument("--cases", help="names with commas between; all if not given")
    parser.add_argument("--plain", action="store_true", help="compile nothing")
    parser.add_argument("--dynamo", type=Path, metavar="PYTHON", help="a Python that has Dynamo's wheel")
    for name, whose in (("now", "the working tree"), ("before", "BASE")):
        parser.add_argument(
            f"--{name}", type=Path, metavar="FOLDER", help=f"{whose}, copied and compiled before"
        )
    asked = parser.parse_args(arguments)
    if asked.base is None and asked.dynamo is None:
        parser.error("give the commit to compare with, or --dynamo PYTHON")
    if asked.base is not None and not is_commit(asked.base):
        parser.error(f"git knows no commit {asked.base}; give a branch, a tag or the beginning of a hash")
    if asked.dynamo is not None:
        version(asked.dynamo)
    asked.dynamo, asked.now, asked.before = (
        each and each.absolute() for each in (asked.dynamo, asked.now, asked.before)
    )
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        commands = {} if asked.dynamo else chosen(cases(folder), asked.cases)
        beside = chosen(TIMED, asked.cases) if asked.dynamo else {}
        found = trees(asked, folder)
        for line in table(beside, asked.dynamo, found, folder) if asked.dynamo else ():
            print(line, flush=True)
        if asked.dynamo:
            return
        print(f"CPU seconds          {asked.base:>8}      now  ratio", flush=True)
        slower = run(found[asked.base], found["now"], commands, ran)
    if slower:
        sys.exit(f"slower by more than a tenth in {ENOUGH} rounds of {ROUNDS}: {', '.join(slower)}")
