"""`sundog bench`: a load on a live server leaves a run that all commands for runs accept."""

import json
import os
import re
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from sundog.actors.config import ConfigError
from sundog.cli import cli
from sundog.sim.record.run_directory import open_run
from tests.live import EMULATED, Live, live
from tests.sundog.test_runs import names, refused, sundog

WORK = """
duration_s = 2
[arrivals]
kind = "poisson"
rate_per_s = 12
[prompt]
kind = "uniform"
smallest = 16
largest = 90
[output]
kind = "uniform"
smallest = 2
largest = 24
[system_prompts]
tokens = 32
"""


def inside(*arguments: object) -> str:
    """What a command prints, run in this process: starting one takes longer than most commands."""
    done = CliRunner().invoke(cli, [*map(str, arguments)], catch_exceptions=False)
    assert done.exit_code == 0
    return done.stdout


def until_busy(server: Live, process: "subprocess.Popen[Any]") -> None:
    """Wait until the server has answered some requests of the bench; as many as are no more on their way."""
    before = num_answered(server)
    while num_answered(server) < before + 5:
        assert process.poll() is None, "the bench has ended"
        time.sleep(0.01)


def num_answered(server: Live) -> int:
    """A line of the server's log for each."""
    return sum("E2E" in line for line in server.said)


@pytest.fixture(scope="module")
def server() -> Iterator[Live]:
    with live(*EMULATED) as found:
        yield found


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("work") / "work.toml"
    path.write_text(WORK)
    return path


@pytest.fixture(scope="module")
def run(server: Live, work: Path) -> Path:
    """A run that a client made, with what a simulation says beside it."""
    folder = work.parent / "run"
    done = sundog("bench", server.url, work, "--out", folder, "--simulate", "h100", "--slo", "ttft=60")
    assert done.returncode == 0, done.stderr
    assert re.search(r"measured +predicted +from +to +error", done.stdout) and "sent late by" in done.stdout
    return folder


@pytest.mark.long(reason="runs commands in processes of their own", moderate=True)
def test_a_run_of_clients_has_what_they_saw(run: Path) -> None:
    """Lengths of the workload, hits of shared prompts; what only engines know is absent."""
    tables = ["requests.parquet", "steps.parquet"]
    assert names(run) == ["config.toml", *tables, "summary.json", "trace.jsonl.gz"]
    summary = json.loads((run / "summary.json").read_text())
    assert summary["num_finished"] == summary["num_requests"] == summary["ttft_s"]["count"] > 10
    assert summary["prefix_hit_tokens"] >= 32 * (summary["num_requests"] - 3)
    assert summary["slo_attainment"] == 1.0
    for name in ("num_steps", "kv_use_mean", "num_preemptions", "queueing_s", "busy_fraction"):
        assert summary[name] is None
    assert summary["client"]["errors"] == {}
    rows = pq.read_table(run / "requests.parquet").to_pylist()
    assert [row["arrival_s"] for row in rows] == sorted(row["arrival_s"] for row in rows)
    for row in rows:
        assert row["arrival_s"] <= row["sent_s"] <= row["first_token_s"] <= row["finish_s"]
        assert 48 <= row["num_prompt_tokens"] <= 122 and 2 <= row["num_output_tokens"] <= 24
        assert row["first_scheduled_s"] is row["num_preemptions"] is row["error"] is None


@pytest.mark.long(reason="runs every command that reads a run")
def test_every_reader_of_runs_reads_it(run: Path, tmp_path: Path) -> None:
    """And says what clients cannot know."""
    page = tmp_path / "page.html"
    replayed = tmp_path / "replayed"
    for command, words in (
        (("report", run, "-o", page), str(page)),
        (("replay", run, "--gpu", "h100", "--model", "qwen3-8b", "--out", replayed), "TTFT"),
        (("compare", run, replayed), "TTFT mean"),
        (("validate", run), "qwen3-14b-h100"),
        (("calibrate", run, "-o", tmp_path / "cost.toml"), ""),
        (("trace", run), "requests in"),
    ):
        assert words in inside(*command)
    text = page.read_text()
    assert "without data on queues" in text and "Longest waits for a first token" in text
    refused(sundog("explain", run), "has no journal.jsonl.gz", "known to the server alone")


def test_a_run_is_run_again_from_its_config(run: Path) -> None:
    """With other clients: a closed loop, at the other endpoint."""
    done = inside("bench", "--config", run / "config.toml", "--clients", 4, "--endpoint", "chat", "--json")
    found = json.loads(done)
    assert found["measured"]["num_finished"] == found["predicted"]["num_finished"] > 10


@pytest.mark.long(reason="runs commands in processes of their own", moderate=True)
def test_ctrl_c_keeps_what_is_done(server: Live, work: Path, tmp_path: Path) -> None:
    """In a folder that says that it is a part."""
    slow = tmp_path / "slow.toml"
    slow.write_text(WORK.replace("duration_s = 2", "duration_s = 600"))
    command = [sys.executable, "-m", "sundog", "bench", server.url, str(slow), "--out", str(tmp_path / "run")]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    until_busy(server, process)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=120)
    assert process.returncode == 130 and "interrupted after" in said, said
    assert names(tmp_path) == ["run.partial", "slow.toml"]
    assert open_run(tmp_path / "run.partial").remark is not None


@pytest.mark.long(reason="runs commands in processes of their own", moderate=True)
def test_a_full_disk_is_one_line_and_no_run(server: Live, work: Path, tmp_path: Path) -> None:
    """Files may have 2 kB; the requests take more."""
    limit = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (2_000, 2_000))  # noqa: E731
    done = sundog("bench", server.url, work, "--out", tmp_path / "run", before=limit)
    refused(done, "cannot write", "File too large")
    assert names(tmp_path) == []


def test_an_empty_trace_is_refused(tmp_path: Path) -> None:
    """By its name, before anything is asked of a server that is not there."""
    empty = tmp_path / "empty.toml"
    empty.write_text(WORK.replace("rate_per_s = 12", "rate_per_s = 0.0001"))
    with pytest.raises(ConfigError, match="empty.toml has no request"):
        inside("bench", "http://127.0.0.1:1", empty)


def test_a_server_that_is_not_there_is_one_line(work: Path) -> None:
    """And so is one that wants a key."""
    refused(sundog("bench", "http://127.0.0.1:1", work), "127.0.0.1:1", "Connection refused")


@pytest.mark.long(reason="runs commands in processes of their own", moderate=True)
def test_a_key_is_taken_from_the_environment_and_kept_nowhere(work: Path, tmp_path: Path) -> None:
    """Without it the way out is named."""
    with live(*EMULATED, "--api-key", "secret") as server:
        refused(sundog("bench", server.url, work), "SUNDOG_API_KEY")
        key = lambda: os.environ.update(SUNDOG_API_KEY="secret")  # noqa: E731
        done = sundog("bench", server.url, work, "--limit", 2, "--out", tmp_path / "run", before=key)
    assert done.returncode == 0, done.stderr
    assert not [file for file in (tmp_path / "run").iterdir() if b"secret" in file.read_bytes()]


@pytest.mark.long(reason="runs commands in processes of their own", moderate=True)
def test_a_server_that_dies_midway_is_errors_by_kind(work: Path, tmp_path: Path) -> None:
    """The rest of the trace is asked as it was to be; what was answered is kept."""
    with live(*EMULATED) as server:
        command = [sys.executable, "-m", "sundog", "bench", server.url, str(work), "--scale", "0.5", "--json"]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        until_busy(server, process)
        server.process.kill()
        found = json.loads(process.communicate(timeout=120)[0])
    errors = found["client"]["errors"]
    assert process.returncode == 0
    assert errors.keys() <= {"no connection", "cut stream", "connection lost"} and errors["no connection"]
    assert found["num_finished"] + sum(errors.values()) == found["num_requests"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--max-num-seqs", 4), "--max-num-seqs applies only with --simulate GPU"),
        (("--rate", 3, "--clients", 2), "--rate cannot be combined with --clients"),
        (("--clients", 3, "--scale", 2), "--clients cannot be combined with --scale"),
        (("--timeout", "nan"), "--timeout is nan"),
        (("--tokenizer", "x"), "--tokenizer is for a trace, and"),
    ],
)
def test_what_makes_no_sense_is_refused_before_anything_is_asked(
    work: Path, arguments: tuple[object, ...], words: str
) -> None:
    """By the option's name; there is no server at all."""
    with pytest.raises((ConfigError, click.UsageError), match=words):
        cli.main(["bench", "http://127.0.0.1:1", str(work), *map(str, arguments)], standalone_mode=False)
