"""Child processes import our packages, and nothing from their working directory."""

import ast
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from threading import Thread

import httpx
import pytest

from sundog.runtime.host.python import module_command
from tests.live import Live
from tests.patience import START_S
from tests.test_layers import ROOT, sources

SHADOWS = ("actors", "json", "random", "runtime", "sim", "sundog", "tests", "tokenize", "trio")
"""Modules of ours, of the standard library and of others that lie in the user's folder."""
TRACE = ROOT / "traces" / "chat-poisson-2rps-5min.jsonl.gz"
SCRIPT = 'from sundog.__main__ import main\n\nif __name__ == "__main__":\n    main()\n'
"""The console script, as pip writes it."""
ALIKE = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}

STARTS = {
    "subprocess.Popen",
    "subprocess.run",
    "subprocess.call",
    "subprocess.check_call",
    "subprocess.check_output",
    "trio.run_process",
    "trio.lowlevel.open_process",
    "os.system",
    "os.popen",
    "os.execv",
    "os.posix_spawn",
    "get_context",
    "multiprocessing.get_context",
    "ray.init",
}
PLACES = {
    "runtime/native/build.py: subprocess.run": "the compiler",
    "runtime/ray/cluster.py: ray.init": "connects, from the folder of our packages",
    "runtime/ray/cluster.py: subprocess.Popen": "module_command",
    "runtime/ray/keeper.py: ray.init": "under PYTHONSAFEPATH, or without `-m` and `-c`",
    "runtime/structured/trial.py: subprocess.Popen": "module_command",
    "runtime/text/apart.py: subprocess.Popen": "module_command",
    "runtime/worker/forks.py: subprocess.Popen": "module_command, by whoever makes Forks",
    "runtime/worker/hop_probe.py: subprocess.Popen": "module_command",
    "sundog/builds/load_processes.py: get_context": "multiprocessing, within safe_path",
    "sundog/child.py: subprocess.Popen": "module_command",
    "sundog/commands/demo/page.py: trio.run_process": "module_command",
    "sundog/profiled.py: subprocess.run": "a compiler, and replays of a build in a temporary folder",
    "sundog/sweeps/workers.py: get_context": "multiprocessing, within safe_path",
}
"""Every place in our source that starts a program, and why that does not import from the current folder."""


def nodes() -> Iterator[tuple[str, ast.AST]]:
    """Whatever stands in those of our files that have a word of `STARTS`, `executable` or `-m` anywhere."""
    words = [name.rpartition(".")[2] for name in STARTS] + ["executable", '"-m"']
    for file in (file for folder in ("actors", "runtime", "sim", "sundog") for file in sources(folder)):
        text = (ROOT / file).read_text(encoding="utf-8")
        if any(word in text for word in words):
            yield from ((file, node) for node in ast.walk(ast.parse(text)))


def test_every_place_that_starts_a_program_is_listed() -> None:
    """Whoever adds one says how it is kept from the current folder."""
    calls = {(file, ast.unparse(node.func)) for file, node in nodes() if isinstance(node, ast.Call)}
    assert {f"{file}: {name}" for file, name in calls if name in STARTS} == PLACES.keys()


@pytest.mark.long(reason="starts a server, and asks it over sockets", moderate=True)
def test_one_file_alone_knows_how_a_python_is_started() -> None:
    """Nobody else names the interpreter, or builds a `-m` command."""
    names = {
        file
        for file, node in nodes()
        if (
            isinstance(node, ast.Attribute) and node.attr == "executable" and ast.unparse(node.value) == "sys"
        )
        or (isinstance(node, ast.Constant) and node.value == "-m")
    }
    assert names == {"runtime/host/python.py", "sundog/profiled.py"}  # which a build runs, in its own folder
    assert module_command("a.b", "c")[:2] == [sys.executable, "-P"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A user's folder, where each shadow ends the Python that imports it."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "sundog").write_text(SCRIPT)
    home = tmp_path / "home"
    home.mkdir()
    for name in SHADOWS:
        ends = f"import os\nos.write(2, b'{name}.py was imported\\n')\nos._exit(99)\n"
        (home / f"{name}.py").write_text(ends)
    return home


def started(folder: Path, *arguments: object, stdout: int = subprocess.PIPE) -> "subprocess.Popen[str]":
    """The console script, in that folder; packages are found by PYTHONPATH, installed or not."""
    script = folder.parent / "bin" / "sundog"
    return subprocess.Popen(
        [sys.executable, str(script), *map(str, arguments)],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_a_module_of_ours_is_run_from_where_this_one_is(folder: Path) -> None:
    """From the folder with shadows, with nothing installed: only the file itself says where the rest is."""
    command = module_command("sundog.commands.demo.client", "http://127.0.0.1:9")
    command.insert(1, "-S")
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=START_S)
    # Without site-packages the first import of another's package fails: in a file of ours.
    assert done.returncode == 1 and str(ROOT / "sundog") in done.stderr
    assert "was imported" not in done.stderr


@pytest.mark.long(reason="starts a server, and asks it over sockets", moderate=True)
def test_a_sweep_runs_beside_files_of_any_name(folder: Path) -> None:
    """Its processes are multiprocessing's."""
    with started(folder, "sweep", TRACE, "--limit", 5, "--vary", "policy=fcfs,vtc", "--jobs", 2) as sweep:
        out, err = sweep.communicate(timeout=START_S)
    assert sweep.returncode == 0 and "vtc" in out and "was imported" not in err, err


def test_a_grammar_is_tried_beside_files_of_any_name(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the process that compiles it."""
    pytest.importorskip("llguidance", reason="the extra `structured` is not installed")
    from sundog.actors.core.params.sampling import Constraint, ConstraintKind
    from sundog.runtime.structured.trial import Trial
    from tests.runtime.structured.test_matcher import END, TOKENIZER

    trial = Trial(TOKENIZER.to_str, END)
    monkeypatch.chdir(folder)
    try:
        assert trial.grammar(Constraint(ConstraintKind.JSON, json.dumps(ALIKE)), frozenset()).text
    finally:
        trial.close()


def test_a_hop_is_measured_beside_files_of_any_name(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the process that answers."""
    from sundog.runtime.worker import hop_probe

    monkeypatch.setattr(hop_probe, "NUM_ROUNDS", 2)
    monkeypatch.chdir(folder)
    assert hop_probe.measured_hops().submit > 0


@pytest.mark.parametrize(
    "command",
    [
        "emulate --gpu h100 --model qwen3-8b",
        pytest.param("serve", marks=pytest.mark.long(rare=True, reason="imports torch")),
    ],
)
def test_a_server_answers_beside_files_of_any_name(folder: Path, command: str) -> None:
    """With processes for HTTP and for grammars; those of engines, if it computes."""
    if command == "serve":
        pytest.importorskip("torch", reason="the engine extra is not installed")
    options = ("--port", "0", "--api-processes", "2")
    process = started(folder, *command.split(), *options, stdout=subprocess.DEVNULL)
    server = Live(process)
    reader = Thread(target=server.listen, daemon=True)
    reader.start()
    try:
        assert server.serves.wait(START_S) and server.url, server.said
        body: dict[str, object] = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 16}
        if command == "serve":
            form = {"type": "json_schema", "json_schema": {"name": "a", "schema": ALIKE}}
            body["response_format"] = form
        answer = httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=START_S)
        assert answer.status_code == 200, answer.text
        process.send_signal(signal.SIGTERM)
        assert process.wait(START_S) == 0
        assert not [line for line in server.said if "was imported" in line]
    finally:
        process.kill()
        process.wait()
        reader.join(START_S)
