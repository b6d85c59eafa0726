"""Runs on disk are complete or absent: a command leaves one run, or files that name their state."""

import contextlib
import json
import os
import resource
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from sundog.options.config_file import from_here
from sundog.options.engine import EngineOptions
from sundog.options.row import rows
from tests import warm

TRACE = "traces/chat-poisson-2rps-5min.jsonl.gz"
FILES = ["config.toml", "journal.jsonl.gz", "requests.parquet", "steps.parquet", "summary.json"]


def sundog(
    *arguments: object, before: Callable[[], None] | None = None
) -> "subprocess.CompletedProcess[str]":
    """The command line; `before` is called in a fresh interpreter's process before it."""
    if before is None:
        return warm.run("sundog", *arguments)
    command = [sys.executable, "-m", "sundog", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, preexec_fn=before)


def replay(folder: Path, *arguments: object, limit: int = 20) -> None:
    done = sundog("replay", TRACE, "--limit", limit, "--out", folder, *arguments)
    assert done.returncode == 0, done.stderr


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def refused(done: "subprocess.CompletedProcess[str]", *words: str) -> None:
    """One line that holds the words, and exit code 2."""
    assert done.returncode == 2, done.stderr
    assert len(done.stderr.strip().splitlines()) == 1, done.stderr
    for word in words:
        assert word in done.stderr


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A whole run, with its messages."""
    folder = tmp_path_factory.mktemp("runs") / "whole"
    replay(folder, "--messages")
    return folder


@pytest.fixture
def copied(run: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(run, tmp_path / "copy"))


def test_a_replay_that_cannot_work_leaves_the_older_run_as_it_was(copied: Path, tmp_path: Path) -> None:
    """It fails at its third row, when files have long been opened; nothing lies beside."""
    bad = tmp_path / "bad.csv"
    bad.write_text("arrived_at,num_prefill_tokens,num_decode_tokens\n0,5,5\n1,5,5\n2,-5,5\n")
    before = contents(copied)
    refused(sundog("replay", bad, "--out", copied), "line 4")
    assert contents(copied) == before
    assert names(tmp_path) == ["bad.csv", "copy"]


def test_a_run_replaces_an_older_one_whole(copied: Path, tmp_path: Path) -> None:
    """The messages of the older run are gone with it, and so is what was drawn of it."""
    assert sundog("perfetto", copied).returncode == 0
    assert "messages.jsonl.gz" in names(copied) and "perfetto.json.gz" in names(copied)
    replay(copied, "--seed", 1)
    assert names(copied) == FILES
    assert names(tmp_path) == ["copy"]


def test_a_folder_of_something_else_is_refused(tmp_path: Path) -> None:
    """By the name of what is there, which stays; so is a file in the way."""
    notes = tmp_path / "notes" / "thesis.txt"
    notes.parent.mkdir()
    notes.write_text("dear")
    refused(sundog("replay", TRACE, "--limit", 5, "--out", notes.parent), "thesis.txt", "another folder")
    assert notes.read_text() == "dear" and names(tmp_path) == ["notes"]
    refused(sundog("replay", TRACE, "--limit", 5, "--out", notes), "it is a file")


def test_every_file_carries_the_id_of_the_run(run: Path, tmp_path: Path) -> None:
    """The same for the same input, another for another seed."""
    replay(tmp_path / "again", "--messages")
    assert contents(tmp_path / "again") == contents(run)
    replay(tmp_path / "other", "--seed", 1)
    ids = [json.loads((f / "summary.json").read_text())["run_id"] for f in (run, tmp_path / "other")]
    assert ids[0] != ids[1]


@pytest.mark.parametrize("name", ["requests.parquet", "steps.parquet", "config.toml", "journal.jsonl.gz"])
def test_a_file_of_another_run_is_refused_by_name(copied: Path, tmp_path: Path, name: str) -> None:
    """Whoever mixes two runs by hand is told which file does not belong."""
    replay(tmp_path / "other", "--seed", 1)
    shutil.copy(tmp_path / "other" / name, copied / name)
    command = ["explain", copied] if "journal" in name else ["report", copied, "-o", tmp_path / "r.html"]
    refused(sundog(*command), f"{name} is of run", "and summary.json of run")


def test_messages_of_another_run_are_not_drawn(copied: Path, tmp_path: Path) -> None:
    """The trace for a viewer shows one run."""
    replay(tmp_path / "other", "--seed", 1, "--messages")
    shutil.copy(tmp_path / "other" / "messages.jsonl.gz", copied)
    refused(sundog("perfetto", copied), "messages.jsonl.gz is of run")


def test_a_full_disk_is_one_line_and_no_run(tmp_path: Path) -> None:
    """Files may have 20 kB; a run of 300 requests has more."""
    limit = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))  # noqa: E731
    done = sundog("replay", TRACE, "--limit", 300, "--out", tmp_path / "run", before=limit)
    refused(done, "cannot write", "File too large")
    assert names(tmp_path) == []


def interrupted(folder: Path, number: int) -> "subprocess.Popen[str]":
    """A long replay that gets a signal once its journal has grown."""
    command = [sys.executable, "-m", "sundog", "replay", TRACE, "--out", str(folder), "--no-decode-runs"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    journal = folder.with_name(f"{folder.name}.partial") / "journal.jsonl.gz"
    for _ in range(6000):
        with contextlib.suppress(FileNotFoundError):
            if journal.stat().st_size > 30_000:
                break
        time.sleep(0.01)
    os.kill(process.pid, number)
    return process


def test_a_run_that_ctrl_c_ends_is_readable_and_says_that_it_is_a_part(tmp_path: Path) -> None:
    """Beside its place, with figures and journal up to the instant; the next run goes on."""
    process = interrupted(tmp_path / "run", signal.SIGINT)
    stdout, stderr = process.communicate(timeout=120)
    assert process.returncode not in (0, 2)
    assert stdout == "" and "run.partial" in stderr
    assert names(tmp_path) == ["run.partial"]
    part = tmp_path / "run.partial"
    summary = json.loads((part / "summary.json").read_text())
    assert 0 < summary["num_finished"] < summary["num_requests"] < 605
    until_s = summary["partial_until_s"]
    shown = sundog("report", part, "-o", tmp_path / "r.html")
    assert shown.returncode == 0
    assert f"{part} is a part of a run: it broke off at {until_s:,.3f} s" in shown.stderr
    explained = sundog("explain", part)
    assert explained.returncode == 0 and "is a part of a run" in explained.stderr
    assert f"{summary['num_requests'] - summary['num_finished']:,} unfinished" in explained.stdout
    replay(tmp_path / "run")
    assert names(tmp_path / "run") == FILES


def test_a_run_that_was_killed_can_be_explained(tmp_path: Path) -> None:
    """Its journal is read up to where it breaks off; a report says what is missing."""
    process = interrupted(tmp_path / "run", signal.SIGKILL)
    process.communicate(timeout=120)
    assert names(tmp_path) == ["run.partial"]
    explained = sundog("explain", tmp_path / "run.partial")
    assert explained.returncode == 0 and "is a part of a run" in explained.stderr
    refused(sundog("report", tmp_path / "run.partial"), "was killed", "sundog explain")


def test_two_replays_do_not_write_one_folder(tmp_path: Path) -> None:
    """The second is refused while the first is at work."""
    process = interrupted(tmp_path / "run", signal.SIGSTOP)
    try:
        refused(sundog("replay", TRACE, "--limit", 5, "--out", tmp_path / "run"), "another run")
    finally:
        os.kill(process.pid, signal.SIGKILL)
        process.communicate(timeout=120)


def served(folder: Path, number: int) -> None:
    """A server that answers one request, and then gets a signal."""
    command = [sys.executable, "-m", "sundog", "emulate", "--gpu", "h100", "--port", "0", "--record", folder]
    process = subprocess.Popen([*command, "--messages"], stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    line = next(line for line in process.stderr if "Sundog serves" in line)
    url = next(word for word in line.split() if word.startswith("http"))
    answer = httpx.post(f"{url}/completions", json={"prompt": "Hello", "max_tokens": 3}, timeout=30)
    assert answer.status_code == 200, answer.text
    time.sleep(0.3)
    os.kill(process.pid, number)
    process.communicate(timeout=120)


def test_a_server_that_starts_again_keeps_the_record_of_the_one_that_was_killed(tmp_path: Path) -> None:
    """Each start has its own number; the latest is explained, and any by its name."""
    served(tmp_path, signal.SIGKILL)
    first = contents(tmp_path)
    assert sorted(first) == ["journal-0001.jsonl.gz", "messages-0001.jsonl.gz"]
    served(tmp_path, signal.SIGINT)
    assert {name: (tmp_path / name).read_bytes() for name in first} == first
    killed, latest = sundog("explain", tmp_path / "journal-0001.jsonl.gz"), sundog("explain", tmp_path)
    assert killed.returncode == latest.returncode == 0
    assert "1 request" in killed.stdout and "is a part of a run" in killed.stderr
    assert "journal-0002" in latest.stdout and "1 request" in latest.stdout
    assert "part" not in latest.stderr
    assert sundog("perfetto", tmp_path).returncode == 0
    refused(sundog("replay", TRACE, "--limit", 5, "--out", tmp_path), "journal-0001.jsonl.gz")


def test_a_server_does_not_write_into_the_run_of_a_replay(copied: Path) -> None:
    """The two kinds of record are kept apart."""
    before = contents(copied)
    refused(sundog("emulate", "--gpu", "h100", "--port", 0, "--record", copied), "the run of a replay")
    assert contents(copied) == before


def test_what_reads_a_journal_names_the_option_where_there_is_none(tmp_path: Path) -> None:
    """Of a run that was told to keep none; the tables are there all the same."""
    replay(tmp_path / "run", "--no-journal")
    assert names(tmp_path / "run") == [name for name in FILES if "journal" not in name]
    for command in ("explain", "perfetto"):
        refused(sundog(command, tmp_path / "run"), "has no journal.jsonl.gz", "keeps one with --journal")
    refused(sundog("replay", TRACE, "--journal"), "--journal needs a folder", "--out DIR")


def test_a_run_too_long_for_a_journal_says_so(tmp_path: Path) -> None:
    """In one line that names the option; a run that was told to keep its journal, or none, says nothing."""
    lowered = "import sundog.sim.record.run_output as r; r.MOST_JOURNALLED = 10"
    shorter = f"{lowered}; from sundog.__main__ import main; main()"
    said = {}
    for option in ("", "--journal", "--no-journal"):
        folder = tmp_path / f"run{option}"
        arguments = ["replay", TRACE, "--limit", "20", "--out", str(folder), *option.split()]
        done = subprocess.run([sys.executable, "-c", shorter, *arguments], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        said[option] = [line for line in done.stderr.splitlines() if "journal" in line]
        assert ("journal.jsonl.gz" in names(folder)) is (option == "--journal")
    assert (
        len(said[""]) == 1 and "more than 10 requests" in said[""][0] and "--journal keeps it" in said[""][0]
    )
    assert not said["--journal"] and not said["--no-journal"]


POLICY = """
from sundog import Policy


class Mine(Policy):
    pass
"""
SESSIONS = """
duration_s = 20
arrivals = {kind = "poisson", rate_per_s = 4}
prompt = {kind = "fixed", tokens = 500}
output = {kind = "fixed", tokens = 100}
[sessions]
turns = {kind = "fixed", tokens = 3}
followup = {kind = "fixed", tokens = 100}
pause_mean_s = 2
pause_median_s = 1.9
"""


def test_requests_of_sessions_are_paired_by_id_and_paths_are_those_of_the_caller(tmp_path: Path) -> None:
    """Their later turns arrive at instants of their own in each run; another seed has none of them."""
    (tmp_path / "mine.py").write_text(POLICY)
    (tmp_path / "chat.toml").write_text(SESSIONS)
    for seed in ("0", "1"):
        trace = tmp_path / f"chat{seed}.jsonl"
        assert not sundog("workload", tmp_path / "chat.toml", "--seed", seed, "-o", trace).returncode
    policy = f"{tmp_path / 'mine.py'}:Mine"
    for name, seats, seed in (("two", 2, 0), ("three", 3, 0), ("other", 2, 1)):
        words = "--max-num-seqs", seats, "--policy", policy, "--out", tmp_path / "runs" / name
        assert not sundog("replay", tmp_path / f"chat{seed}.jsonl", *words).returncode
    for other, is_paired in (("three", True), ("other", False)):
        done = sundog("compare", tmp_path / "runs" / "two", tmp_path / "runs" / other, "--json")
        assert json.loads(done.stdout)["is_paired"] is is_paired
    (row,) = [row for row in rows(EngineOptions) if row.name == "policy"]
    # The run's own folder lies two below the file; the current folder is somewhere else.
    here = str(from_here(row, "../../mine.py:Mine", tmp_path / "runs" / "two"))
    file, _, name = here.partition(":")
    assert Path(file).resolve() == (tmp_path / "mine.py").resolve() and name == "Mine"
    assert from_here(row, "fcfs", tmp_path / "runs" / "two") == "fcfs"


@pytest.mark.long(reason="runs compare and the command it prints")
def test_the_command_that_compare_prints_can_be_given(tmp_path: Path) -> None:
    """It names what both runs were given; none is printed where the GPU decided one of them."""
    limits: dict[str, tuple[object, ...]] = {
        "six": ("--max-num-seqs", 6),
        "seven": ("--max-num-seqs", 7),
        "gpus": (),
    }
    for name, options in limits.items():
        replay(tmp_path / name, *options, limit=100)
    done = sundog("compare", tmp_path / "six", tmp_path / "seven")
    (hint,) = [line for line in done.stdout.splitlines() if "runs of each" in line]
    command = shlex.split(hint.split(": sundog ")[1])
    command[command.index("--replications") + 1] = "2"
    repeated = sundog(*command)
    assert repeated.returncode == 0 and "max_num_seqs=6" in repeated.stdout, repeated.stderr
    done = sundog("compare", tmp_path / "six", tmp_path / "gpus")
    (hint,) = [line for line in done.stdout.splitlines() if "runs of each" in line]
    assert hint.endswith("runs of each.")
