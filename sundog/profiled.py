"""Profile-guided optimisation of the compiled simulator: `make fast PGO=1`, for gcc.

The shared library is compiled twice. The first one counts its branches and calls while short replays run; the
second is laid out by the counts. The traces of these replays are generated here, and no benchmark reads them,
so that a benchmark shows what users gain. Only speed depends on the counts, never a result.

    python -m sundog.profiled FOLDER    # the replays; their traces are written below FOLDER
"""

import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

COUNTING = ("-fprofile-generate", "-fprofile-update=single")
"""Options for a library that counts its branches and calls."""
BY_COUNTS = ("-fprofile-use", "-fprofile-partial-training", "-flto=auto")
"""Options for a library that is laid out by the counts. Code without counts stays as without a profile."""
QUIET = ("-Wno-error", "-Wno-missing-profile", "-Wno-coverage-mismatch")
"""Options for warnings that are due to a profile alone."""

HEADER = {
    "format": "sundog-trace",
    "version": 1,
    "units": {"arrival_s": "seconds", "prompt_tokens": "tokens", "output_tokens": "tokens"},
    "hash_block_tokens": 64,
}
BLOCK_TOKENS = 64
"""Tokens of a prompt that share an id."""


@dataclass(frozen=True)
class TrainingReplay:
    """Requests that arrive at random, and the options that they are replayed with."""

    options: str
    num_requests: int
    rate_per_s: float
    prompt_tokens: tuple[int, int]
    output_tokens: tuple[int, int]
    num_conversations: int = 0
    """Conversations that requests continue; 0 for prompts that share nothing."""


SMALL = "--model llama-2-7b --gpu a100"
LARGE = "--model llama-3.1-8b --gpu h100"
REPLAYS = {
    "poisson": TrainingReplay(
        f"{SMALL} --max-num-seqs 96", 1_500, 5.0, prompt_tokens=(50, 1_500), output_tokens=(10, 300)
    ),
    "synchronous": TrainingReplay(
        f"{SMALL} --no-async-scheduling", 1_500, 7.0, prompt_tokens=(50, 1_500), output_tokens=(10, 300)
    ),
    "fleet": TrainingReplay(
        f"{LARGE} --replicas 3 --router least-requests",
        1_000,
        60.0,
        prompt_tokens=(50, 800),
        output_tokens=(10, 200),
    ),
    "pools": TrainingReplay(
        "--model llama-3.1-8b --pool prefill=h100:x2 --pool decode=h100:x3",
        1_000,
        30.0,
        prompt_tokens=(50, 1_500),
        output_tokens=(10, 250),
    ),
    "conversations": TrainingReplay(
        f"{LARGE} --replicas 2 --num-gpu-blocks 15000",
        800,
        6.0,
        prompt_tokens=(100, 900),
        output_tokens=(20, 300),
        num_conversations=60,
    ),
    "long-answers": TrainingReplay(
        f"{LARGE} --replicas 2", 250, 2.0, prompt_tokens=(50, 1_000), output_tokens=(300, 6_000)
    ),
    "overload": TrainingReplay(
        f"{SMALL} --num-gpu-blocks 3000 --policy vtc",
        700,
        30.0,
        prompt_tokens=(50, 1_000),
        output_tokens=(10, 300),
    ),
}
"""Replays that import only what a build has: none keeps tables, which need pyarrow."""


def rows(replay: TrainingReplay, seed: int) -> Iterator[dict[str, object]]:
    """Yield the rows of a replay's trace."""
    chance = random.Random(seed)
    told: list[list[int]] = [[] for _ in range(replay.num_conversations)]
    now_s, num_ids = 0.0, 0
    for _ in range(replay.num_requests):
        now_s += chance.expovariate(replay.rate_per_s)
        num_tokens = chance.randint(*replay.prompt_tokens)
        row: dict[str, object] = {
            "arrival_s": round(now_s, 6),
            "output_tokens": chance.randint(*replay.output_tokens),
        }
        if told:
            ids = chance.choice(told)
            num_new = -(-num_tokens // BLOCK_TOKENS)
            ids += range(num_ids, num_ids + num_new)
            num_ids += num_new
            num_tokens = BLOCK_TOKENS * len(ids)
            row["hash_ids"] = list(ids)
            if len(ids) > 300:
                ids.clear()
        yield row | {"prompt_tokens": num_tokens}


def replay_all(folder: Path) -> None:
    """Run every replay, each in a process of its own, with the package that this process imports.

    Raises:
        subprocess.CalledProcessError: A replay failed; its `stderr` says why.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for seed, (name, replay) in enumerate(REPLAYS.items(), start=1_000):
        trace = folder / f"{name}.jsonl"
        lines = [HEADER, *rows(replay, seed)]
        trace.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
        # Not `-m sundog`, which ends without the exit handlers that write the counts.
        code = "from sundog.cli import main; main()"
        command = [sys.executable, "-c", code, "replay", str(trace), "--json", "--no-ranges"]
        command += replay.options.split()
        subprocess.run(command, capture_output=True, text=True, check=True)


def why_not(compiler: Any) -> str | None:
    """Return why this compiler of setuptools cannot use a profile as gcc does; None if it can."""
    with tempfile.TemporaryDirectory(prefix="sundog-profile-") as name:
        source, made, program = (Path(name) / each for each in ("probe.c", "probe.o", "probe"))
        source.write_text("int main(void) { return 0; }\n", encoding="utf-8")
        for options in (COUNTING, BY_COUNTS):
            commands: list[list[str]] = [
                [*compiler.compiler_so, *options, "-c", str(source), "-o", str(made)],
                [*compiler.linker_exe, *options, str(made), "-o", str(program)],
                [str(program)],
            ]
            for command in commands:
                if said := _failure(command, name):
                    return said
            if not made.with_suffix(".gcda").exists():
                return f"{compiler.compiler_so[0]} writes no counts as gcc does"
    return None


def _failure(command: Sequence[str], folder: str) -> str | None:
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    except OSError as error:
        return f"{command[0]}: {error.strerror}"
    lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
    return f"{command[0]}: {lines[0]}" if done.returncode else None


def train(library: Any, path: Path, objects: Path, build: Callable[[], None]) -> None:
    """Build a library that counts, replay with it, and set the options that use the counts.

    The counts lie beside the object files, which must be written again in the same place. If replays fail,
    a line says why, and the library keeps its options.

    Args:
        library: The extension of setuptools that the compiled modules share.
        path: Where `build` puts it, `.../sundog/NAME.so`; the modules lie below the same folder.
        objects: Folder below which the object files lie.
        build: What compiles all extensions.
    """
    own, own_link = list(library.extra_compile_args), list(library.extra_link_args)
    library.extra_compile_args = [*own, *COUNTING, *QUIET]
    library.extra_link_args = [*own_link, *COUNTING]
    build()
    used: tuple[str, ...] = BY_COUNTS
    with tempfile.TemporaryDirectory(prefix="sundog-profile-") as name:
        _copy(Path.cwd() / "sundog", Path(name) / "sundog", without=("*.so", "__pycache__", "runtime"))
        _copy(path.parent, Path(name) / "sundog", without=("*.py", "__pycache__", "runtime"))
        paths = os.pathsep.join(filter(None, (name, os.environ.get("PYTHONPATH"))))
        command = [sys.executable, "-m", "sundog.profiled", str(Path(name) / "traces")]
        done = subprocess.run(
            command,
            cwd=name,
            env={**os.environ, "PYTHONPATH": paths},
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    why = None
    if done.returncode:
        why = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
    elif not any(objects.rglob("*.gcda")):
        why = "it left no counts"
    if why is not None:
        print(f"sundog: compiled without a profile: the training failed: {why}", file=sys.stderr)
        used = ()
    path.unlink()
    library.extra_compile_args = [*own, *used, *(QUIET if used else ())]
    library.extra_link_args = [*own_link, *used]


def _copy(source: Path, folder: Path, without: Sequence[str]) -> None:
    shutil.copytree(source, folder, ignore=shutil.ignore_patterns(*without), dirs_exist_ok=True)


def main(folder: Path) -> None:
    """Run all replays; exit with the last line of the first that fails."""
    try:
        replay_all(folder)
    except subprocess.CalledProcessError as error:
        sys.exit((error.stderr.strip().splitlines() or [str(error)])[-1])


if __name__ == "__main__":
    main(Path(sys.argv[1]))
