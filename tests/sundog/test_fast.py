"""The compiled simulator: same source, same bytes, and an old build is refused."""

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from sundog import fast, profiled
from tests.bench import replay_cases

ROOT = Path(__file__).parents[2]
TRACE = "traces/chat-poisson-2rps-5min.jsonl.gz"


def python(folder: Path, *arguments: str) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, check=False)


def replayed(folder: Path, out: str) -> dict[str, bytes]:
    """Everything a replay writes with preemptions."""
    options = "--model llama-3.1-8b --gpu h100 --num-gpu-blocks 600 --max-model-len 4096 --json"
    done = python(folder, "-m", "sundog", "replay", TRACE, *options.split(), "--out", out)
    assert done.returncode == 0, done.stderr.decode()
    files = {path.name: path.read_bytes() for path in (folder / out).iterdir()}
    return {"stdout": done.stdout, **files}


NEEDS_COMPILER = pytest.mark.skipif(not shutil.which("cc"), reason="there is no C compiler")
FROM_SOURCE = pytest.mark.skipif(bool(fast.built()), reason="the simulator is compiled already")


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    """The source of the simulator in a folder of its own."""
    ignore = shutil.ignore_patterns("__pycache__", "runtime", "assets")
    for name in ("sundog", "traces"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=ignore)
    for file in ROOT.glob("*.*"):
        if file.is_file():
            shutil.copy(file, tmp_path)
    return tmp_path


@NEEDS_COMPILER
@FROM_SOURCE
@pytest.mark.long(rare=True, reason="compiles the simulator")
@pytest.mark.parametrize(
    ("options", "below"),
    [(["0"], "sundog/actors/core/"), (["0"], ""), (["--pgo", "1"], "sundog/actors/core/")],
)
def test_compiled_or_not_a_run_gives_the_same_bytes(copied: Path, options: list[str], below: str) -> None:
    """What decides, or every module, and by a profile; and a build older than its source says so instead of
    running.
    """
    plain = replayed(copied, "plain")
    before = {path for path in copied.rglob("*") if "__pycache__" not in path.parts}
    built = python(copied, "-m", "sundog.fast", "build", *options, below)
    assert built.returncode == 0, built.stdout.decode() + built.stderr.decode()
    left = {path for path in copied.rglob("*") if "__pycache__" not in path.parts} - before
    assert {path.suffix for path in left} == {".so"}, "a build leaves nothing but libraries"
    which = python(copied, "-c", "import sundog.actors.core.step.plan as p; print(p.__file__)")
    assert which.stdout.strip().endswith(b".so")
    libraries = fast.built(copied)
    assert len(libraries) == sum(name.startswith(below) for name in fast.MODULES) + 1
    assert copied not in {path.parent for path in libraries}, "not where it is not looked for"
    assert replayed(copied, "plain2") == plain
    assert b"compiled" in python(copied, "-m", "sundog", "--version").stdout
    source = copied / "sundog" / "actors" / "core" / "step" / "plan.py"
    later = time.time() + 3600
    os.utime(source, (later, later))
    refused = python(copied, "-m", "sundog", "--help")
    assert refused.returncode == 2 and b"actors/core/step/plan.py changed" in refused.stderr
    fast.remove(copied)
    assert python(copied, "-m", "sundog", "--help").returncode == 0


def test_every_module_that_is_compiled_exists() -> None:
    """And policies, which people write, are none of them."""
    assert all((ROOT / name).is_file() for name in fast.MODULES)
    assert not any("policies" in name for name in fast.MODULES)


def compiler(folder: Path, script: str) -> SimpleNamespace:
    """A C compiler of setuptools: a shell script that may call the real one."""
    path = folder / "cc"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return SimpleNamespace(compiler_so=[str(path)], linker_exe=[str(path)])


@NEEDS_COMPILER
@pytest.mark.parametrize(
    ("script", "reason"),
    [
        (
            'case "$*" in *-fprofile-*) echo "unknown argument" >&2; exit 1;; esac; exec cc "$@"',
            "unknown argument",
        ),
        (
            'for each; do shift; case "$each" in -f*) ;; *) set -- "$@" "$each";; esac; done; exec cc "$@"',
            "no counts",
        ),
        ("exit 3", "exit code 3"),
    ],
    ids=["refuses", "ignores", "fails"],
)
def test_a_compiler_without_profiles_is_named(tmp_path: Path, script: str, reason: str) -> None:
    """One that refuses the options, and one that takes them and counts nothing."""
    said = profiled.why_not(compiler(tmp_path, script))
    assert said is not None and reason in said and "\n" not in said
    missing = SimpleNamespace(compiler_so=[str(tmp_path / "absent")], linker_exe=[])
    assert "No such file" in str(profiled.why_not(missing))


@pytest.mark.parametrize(
    ("training", "reason"), [("raise SystemExit('no click')", "no click"), ("", "it left no counts")]
)
def test_a_training_that_fails_leaves_the_options_as_they_were(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    training: str,
    reason: str,
) -> None:
    """It says why in a line; the library that counts is not kept."""
    (tmp_path / "sundog").mkdir()
    (tmp_path / "sundog" / "__init__.py").touch()
    (tmp_path / "sundog" / "profiled.py").write_text(training)
    made = tmp_path / "lib" / "sundog" / "compiled.so"
    made.parent.mkdir(parents=True)
    library = SimpleNamespace(extra_compile_args=["-O2"], extra_link_args=[])
    seen = []

    def build() -> None:
        seen.append((library.extra_compile_args, library.extra_link_args))
        made.touch()

    monkeypatch.chdir(tmp_path)
    profiled.train(library, made, tmp_path / "objects", build)
    ((compiled, linked),) = seen
    assert set(profiled.COUNTING) <= {*compiled} and [*profiled.COUNTING] == linked
    assert (library.extra_compile_args, library.extra_link_args) == (["-O2"], [])
    assert not made.exists()
    (line,) = capsys.readouterr().err.splitlines()
    assert line == f"sundog: compiled without a profile: the training failed: {reason}"


@pytest.mark.long(reason="replays thousands of requests")
def test_every_replay_of_the_training_runs(tmp_path: Path) -> None:
    """With prefix hits, transfers between pools, and preemptions: what is common in replays."""
    profiled.replay_all(tmp_path)
    assert {path.stem for path in tmp_path.glob("*.jsonl")} == profiled.REPLAYS.keys()
    for name, replay in profiled.REPLAYS.items():
        lines = (tmp_path / f"{name}.jsonl").read_text().splitlines()
        assert len(lines) == 1 + replay.num_requests


def test_no_benchmark_is_trained_on() -> None:
    """A profile that fits the benchmarks' own traces would flatter them."""
    for replay in profiled.REPLAYS.values():
        for case in replay_cases.TIMED.values():
            assert replay.options != " ".join(case.options())
    lengths = {(replay.prompt_tokens, replay.output_tokens) for replay in profiled.REPLAYS.values()}
    assert not lengths & {((128, 1_024), (32, 256)), ((128, 1_024), (500, 8_000))}
