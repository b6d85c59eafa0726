"""Ends of commands: results, a one-line refusal, an interrupt, or a bug with a request to report it."""

import codecs
import io
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import click
import pytest

from sundog.actors.config import ConfigError
from sundog.ends import _plainly, leaves, run_to_its_end
from tests import warm

TRACE = "traces/chat-poisson-2rps-5min.jsonl.gz"
LONG = "traces/reasoning-gamma-1rps-5min.jsonl.gz"


def sundog(*arguments: str) -> subprocess.CompletedProcess[str]:
    return warm.run("sundog", *arguments)


def ended(error: BaseException, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    """The exit code and stderr of a command that raises this."""

    def body() -> None:
        raise error

    with pytest.MonkeyPatch.context() as patch, pytest.raises(SystemExit) as caught:
        patch.setattr("sys.argv", ["sundog"])
        run_to_its_end(click.Command("command", callback=body))
    assert isinstance(caught.value.code, int)
    return caught.value.code, capsys.readouterr().err


def nested(*errors: Exception, depth: int = 3) -> ExceptionGroup[Exception]:
    group = ExceptionGroup("several actors failed together", list(errors))
    for _ in range(depth):
        group = ExceptionGroup("a nursery", [group])
    return group


def test_a_refusal_is_one_line_however_deep(capsys: pytest.CaptureFixture[str]) -> None:
    """The first of it among what several actors raised, though others died of it."""
    refusal = ConfigError("num_gpu_blocks is 5:\n  give more")
    for error in (refusal, nested(refusal), nested(RuntimeError("runner-0 died"), refusal)):
        assert ended(error, capsys) == (2, "sundog: num_gpu_blocks is 5: give more\n")


@pytest.mark.long(keep=1, reason="more cases of the law whose first `make test` runs", moderate=True)
@pytest.mark.parametrize("as_json", [(), ("--json",)])
def test_a_full_disk_under_stdout_is_one_line(as_json: tuple[str, ...]) -> None:
    """As `sundog replay … > FILE` finds when there is no room for FILE."""
    with open("/dev/full", "w") as full:
        command = [
            sys.executable,
            "-m",
            "sundog",
            "replay",
            TRACE,
            "--limit",
            "3",
            "--num-gpu-blocks",
            "20000",
        ]
        done = subprocess.run(
            [*command, *as_json], stdout=full, stderr=subprocess.PIPE, text=True, timeout=120
        )
    assert done.returncode == 2
    assert done.stderr == "sundog: cannot write the results: No space left on device\n"


@pytest.mark.long(reason="runs commands in processes of their own", moderate=True)
def test_a_terminal_that_is_not_utf8_is_given_what_it_can_show(tmp_path: Path) -> None:
    """And a file whose name is no text is named all the same."""
    odd = os.fsencode(tmp_path) + b"/caf\xe9.jsonl"
    shutil.copyfile(TRACE, odd)
    for encoding in ("ascii", "utf-8"):
        done = subprocess.run(
            [sys.executable, "-m", "sundog", "replay", odd, "--limit", "3"],
            capture_output=True,
            env={**os.environ, "PYTHONIOENCODING": encoding},
            timeout=120,
        )
        assert (done.returncode, b"caf\\udce9.jsonl on llama" in done.stdout) == (0, True), done.stderr
    command = [sys.executable, "-m", "sundog", "trace", TRACE]
    done = subprocess.run(
        command, capture_output=True, env={**os.environ, "PYTHONIOENCODING": "ascii"}, timeout=120
    )
    assert done.returncode == 0, done.stderr


def test_a_bug_keeps_its_traceback_and_asks_to_be_reported(capsys: pytest.CaptureFixture[str]) -> None:
    """In its first line."""
    code, err = ended(nested(KeyError("block 7")), capsys)
    assert code == 1
    assert err.splitlines()[0].startswith("sundog: this is a bug in Sundog; please report it")
    assert "Traceback" in err and "block 7" in err


def test_an_interrupt_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    """Alone, or among other errors."""
    for error in (KeyboardInterrupt(), BaseExceptionGroup("x", [KeyboardInterrupt(), ValueError()])):
        code, err = ended(error, capsys)
        assert code == 130 and err.strip() == "sundog: interrupted"


def test_the_leaves_of_an_error_come_in_order() -> None:
    """Of groups in groups; an error that is no group is its own."""
    first, second = ValueError(1), ValueError(2)
    assert list(leaves(ExceptionGroup("a", [ExceptionGroup("b", [first]), second]))) == [first, second]
    assert list(leaves(first)) == [first]


@pytest.mark.long(keep=1, reason="more cases of the law whose first `make test` runs", moderate=True)
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["serve", "--num-gpu-blocks", "5", "--port", "0"], "--num-gpu-blocks 5 cannot hold"),
        (["emulate", "--gpu", "h100", "--host", "198.51.100.1", "--port", "0"], "--host"),
        (["repaly", TRACE], "Did you mean replay"),
        (["replay", TRACE, "--max-num-sequences", "3"], "--max-num-seqs"),
        (["replay"], "TRACE"),
        (["report"], "RUN"),
        (["serve", "/no/model", "--messages"], "--record DIR"),
        (["schedule", "tests/golden/01_light.trace.json.gz", "-o", "/no/folder/log"], "/no/folder/log"),
    ],
)
def test_what_cannot_work_is_refused_in_one_line(arguments: list[str], message: str) -> None:
    """By whichever actor, at whatever depth, and by the command line itself."""
    done = sundog(*arguments)
    assert done.returncode == 2 and done.stdout == "", done.stderr
    assert message in done.stderr and len(done.stderr.splitlines()) == 1, done.stderr


@pytest.mark.long(reason="runs commands in processes of their own", moderate=True)
def test_ctrl_c_ends_a_replay_in_one_line(tmp_path: Path) -> None:
    """While it runs; a second one is not needed."""
    command = [sys.executable, "-m", "sundog", "replay", LONG, "--no-decode-runs", "--max-model-len", "40000"]
    process = subprocess.Popen(
        [*command, "--out", str(tmp_path / "run")], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    while process.poll() is None and not any(tmp_path.iterdir()):
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 130, err
    assert out == "" and "Traceback" not in err
    assert sum(line.startswith("sundog: ") for line in err.splitlines()) == 1, err


ON_IMPORT = """
import os, runpy, signal, sys
module = sys.argv.pop(1)
class CtrlC:
    def find_spec(self, name, path, target=None):
        if name == module:
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, CtrlC())
runpy.run_module("sundog", run_name="__main__")
"""


@pytest.mark.parametrize("module", ["sundog.cli", "sundog.actors.core.policies", "sundog.fast"])
def test_ctrl_c_ends_a_command_that_has_hardly_begun(module: str) -> None:
    """In one line, while the command line itself is imported."""
    done = subprocess.run(
        [sys.executable, "-c", ON_IMPORT, module], capture_output=True, text=True, timeout=120
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "sundog: interrupted\n")


def test_ctrl_c_while_ranges_are_computed_keeps_the_run(tmp_path: Path) -> None:
    """It is whole by then, but for its ranges."""
    words = ["sundog.sim.validation.predict", "replay", TRACE, "--limit", "5", "--out", str(tmp_path / "run")]
    done = subprocess.run(
        [sys.executable, "-c", ON_IMPORT, *words], capture_output=True, text=True, timeout=120
    )
    assert (done.returncode, done.stdout) == (130, ""), done.stderr
    assert os.listdir(tmp_path) == ["run"]
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["num_finished"] == 5 and "ranges_s" not in summary and "partial_until_s" not in summary


@pytest.mark.long(keep=1, reason="more cases of the law whose first `make test` runs", moderate=True)
@pytest.mark.parametrize("arguments", [["trace", TRACE, "--json"], ["replay", "--help"]])
def test_whoever_stops_reading_is_told_nothing(arguments: list[str]) -> None:
    """As in `sundog replay … | head -1`."""
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [sys.executable, "-m", "sundog", *arguments], stdout=writer, stderr=subprocess.PIPE, timeout=120
    )
    os.close(writer)
    assert done.stderr == b"" and done.returncode == 1


def test_without_a_command_there_is_help() -> None:
    """On stdout; and it says which version runs, and how."""
    assert "Commands:" in sundog().stdout
    version = sundog("--version").stdout.strip()
    assert version.startswith("sundog 0.") and ("plain" in version or "compiled" in version)


@pytest.mark.long(reason="runs commands in processes of their own", moderate=True)
def test_a_mistake_is_a_line_of_json_where_the_log_is() -> None:
    """Found while options are read, or later; without the option it is a line for people."""
    asked = ("emulate", "--gpu", "h100", "--log-format")
    for wrong in (("--max-num-seqs", "0"), ("--model", "no-such-model"), ("--no-such-option",)):
        done = sundog(*asked, "json", *wrong)
        (line,) = [json.loads(line) for line in done.stderr.splitlines()]
        assert done.returncode == 2 and line["level"] == "error", done.stderr
        assert line["message"].startswith("sundog: ") and wrong[-1] in line["message"]
        assert sundog(*asked, "text", *wrong).stderr == line["message"] + "\n"


def test_a_bug_is_a_line_of_json_where_the_log_is() -> None:
    """With its traceback as a field."""
    script = (
        "import click, sys; from sundog.ends import run_to_its_end\n"
        "sys.argv = ['sundog', 'serve', '--log-format=json']\n"
        "def body(words): raise RuntimeError('lost')\n"
        "run_to_its_end(click.Command('serve', callback=body, params=[click.Argument(['words'], nargs=-1)],"
        " context_settings={'ignore_unknown_options': True}))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    (line,) = [json.loads(line) for line in done.stderr.splitlines()]
    assert done.returncode == 1 and line["level"] == "critical" and "bug in Sundog" in line["message"]
    assert "RuntimeError: lost" in line["exception"]


def test_signs_that_a_terminal_does_not_have_are_said_plainly() -> None:
    """Ours as a typewriter would, names of others by their numbers."""
    stream = io.TextIOWrapper(raw := io.BytesIO(), encoding="ascii")
    codecs.register_error("plain", _plainly)
    stream.reconfigure(errors="plain")
    stream.write("5 ± 1 → größe")
    stream.flush()
    assert raw.getvalue() == b"5 +- 1 -> gr\\xf6\\xdfe"


@pytest.mark.long(reason="runs commands in processes of their own", moderate=True)
def test_only_options_that_are_spelled_alike_are_suggested() -> None:
    """A suggestion that misleads is worse than none."""
    for command, given, meant in (
        ("replay", "--modle", "--model"),
        ("replay", "--max-seqs", "--max-num-seqs"),
        ("replay", "--maxnumseqs", "--max-num-seqs"),
        ("replay", "--num-replicas", "--replicas"),
        ("bench", "--autoscale", None),
        ("replay", "--batch-size", None),
        ("serve", "--rate", None),
    ):
        done = sundog(command, "x", given, "1")
        assert done.returncode == 2 and f"No such option '{given}'." in done.stderr
        assert ("Did you mean" in done.stderr) == (meant is not None) and (meant or "") in done.stderr


@pytest.mark.parametrize("closed", [(1,), (0, 1, 2)])
def test_a_closed_stream_is_the_null_device(closed: tuple[int, ...], tmp_path: Path) -> None:
    """As `>&-` and some daemons leave it: results go nowhere, and no file takes the stream's number."""
    redirected = " ".join(f"{number}>&-" for number in closed)
    words = [sys.executable, "-m", "sundog", "replay", TRACE, "--limit", "3", "--out", str(tmp_path / "run")]
    done = subprocess.run(
        ["/bin/sh", "-c", f"{shlex.join(words)} {redirected}"], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "" and "Traceback" not in done.stderr
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["num_requests"] == 3


def test_commands_need_no_docstrings() -> None:
    """`python -OO` has none; nothing but lines of the help is lost."""
    words = [sys.executable, "-OO", "-m", "sundog"]
    for arguments in (["--help"], ["replay", "--help"], ["replay", TRACE, "--limit", "3", "--json"]):
        done = subprocess.run([*words, *arguments], capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
