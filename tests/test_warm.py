"""A command in a fork of imported code equals one in a fresh interpreter."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests import warm
from tests.live import live

pytestmark = pytest.mark.skipif(not warm.can(), reason="forks take Linux")
TRACE = "traces/chat-poisson-2rps-5min.jsonl.gz"


@pytest.mark.parametrize(
    "arguments",
    [
        ("--version",),
        ("replay", TRACE, "--limit", "5", "--json"),
        ("replay", TRACE, "--limit", "nan"),
        ("replai",),
    ],
)
def test_a_fork_says_and_ends_as_a_fresh_interpreter_does(arguments: tuple[str, ...]) -> None:
    """Stdout, stderr and exit code; the usage line, too."""
    afresh = subprocess.run([sys.executable, "-m", "sundog", *arguments], capture_output=True, text=True)
    forked = warm.run("sundog", *arguments)
    assert (forked.returncode, forked.stdout, forked.stderr) == (
        afresh.returncode,
        afresh.stdout,
        afresh.stderr,
    )


def test_a_fork_is_a_child_that_is_stopped_and_waited_for() -> None:
    """By signals; what has ended is reaped once, and then known."""
    process = warm.popen("sundog", "emulate", "--port", "0", "--gpu", "h100", "--model", "qwen3-8b")
    assert process.stderr is not None
    with process.stderr as said:
        assert process.poll() is None
        assert any("Sundog serves" in line for line in said)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0 == process.poll()
    with pytest.raises(ChildProcessError):
        os.waitpid(process.pid, os.WNOHANG)


def test_a_fork_has_the_environment_and_the_folder_of_the_test(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As they are when it begins."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "trace.csv").write_text("arrived_at,num_prefill_tokens,num_decode_tokens\n0,5,5\n")
    assert warm.run("sundog", "replay", "trace.csv", "--json").returncode == 0
    wide = warm.run("sundog", "replay", "--help").stdout
    monkeypatch.setenv("COLUMNS", "40")
    narrow = warm.run("sundog", "replay", "--help").stdout
    assert 0 < len(wide.splitlines()) < len(narrow.splitlines())


def test_what_engines_are_forked_from_is_a_child_of_its_server_and_ends_with_it() -> None:
    """As a fresh one: named, a child as its engine is, with no descriptor of the server but its own."""
    pytest.importorskip("torch", reason="the engine extra is not installed")
    psutil = pytest.importorskip("psutil")
    with live("sundog", "serve", "--port", "0") as server:
        (forks,), (engine,) = server.below("sundog engines"), server.below("sundog engine ")
        assert server.complete(max_tokens=2).status_code == 200
        assert (forks.name(), engine.name()) == ("sundog engines", "sundog engine 0")
        assert os.getpgid(forks.pid) == forks.pid != os.getpgid(server.process.pid)
        assert not [each for each in forks.net_connections("tcp") if each.status == "LISTEN"]
        server.hurt(signal.SIGKILL)
        server.ended()
        assert not psutil.wait_procs([forks, engine], timeout=60)[1]
