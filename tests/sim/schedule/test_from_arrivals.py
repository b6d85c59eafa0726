"""Traces of arrivals in seconds, decided step by step by `sundog schedule`."""

import gzip
import json
from pathlib import Path

import pytest

from actors.config import EngineConfig, SchedulerConfig
from sim.schedule.step_trace import by_steps
from sim.trace.jsonl_rows import write_trace
from sim.trace.record import TraceRequest
from tests.sundog.test_runs import refused, sundog

LIMITS = ("--num-gpu-blocks", 400, "--max-num-seqs", 8, "--max-model-len", 4096)
SESSIONS = "traces/sessions-diurnal-10min.jsonl.gz"
AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens"


def log_of(path: Path) -> list[dict[str, object]]:
    data = path.read_bytes()
    text = gzip.decompress(data) if path.suffix == ".gz" else data
    return [json.loads(line) for line in text.splitlines()]


def prompt(ids: tuple[int, ...] | None, num_tokens: int, number: int = 0) -> tuple[int, ...]:
    request = TraceRequest(f"r{number}", 0.0, num_tokens, 1, ids, 4 if ids else 0)
    other = TraceRequest("other", 0.0, 1, 1)
    rows = by_steps([other] * number + [request], EngineConfig(SchedulerConfig()), 1.0).rows
    tokens = rows[-1].submit.prompt_token_ids
    assert tokens is not None
    return tokens


def test_prompts_begin_alike_where_the_trace_says_so() -> None:
    """And nowhere else."""
    a, b = prompt((1, 2, 3), 12), prompt((1, 2, 9), 11, 1)
    assert a[:8] == b[:8] and not set(a[8:]) & set(b[8:])
    assert (len(a), len(b)) == (12, 11)
    c, d = prompt(None, 5), prompt(None, 5, 1)
    assert not set(c) & set(d)
    e, f = prompt((1,), 6), prompt((1,), 6, 1)
    assert e[:4] == f[:4] and not set(e[4:]) & set(f[4:])


@pytest.mark.parametrize("policy", ["fcfs", "shortest-prompt", "vtc"])
def test_every_request_of_a_shipped_trace_is_decided(tmp_path: Path, policy: str) -> None:
    """Each ends by its length; prefixes that its sessions share are found."""
    log = tmp_path / "run.log.jsonl.gz"
    done = sundog("schedule", SESSIONS, "-o", log, "--limit", 60, "--policy", policy, *LIMITS)
    assert done.returncode == 0 and not done.stderr, done.stderr
    lines = log_of(log)
    ended = {}
    for line in lines:
        ended |= line.get("finished", {})  # type: ignore[operator]  # an object in every update
    assert len(ended) == 60 and set(ended.values()) == {"length"}
    assert any(hit for line in lines if line["ev"] == "sched" for hit in line["hit"].values())  # type: ignore[attr-defined]  # likewise
    assert lines[-1]["ev"] == "end"


def test_other_formats_and_lengths_of_steps(tmp_path: Path) -> None:
    """A trace in CSV; requests come by seconds, whatever the length of a step."""
    trace, log = tmp_path / "azure.csv", tmp_path / "log.jsonl"
    rows = [f"2023-11-16 18:17:0{n}.0000000,{50 + n},4" for n in range(5)]
    trace.write_text("\n".join([AZURE, *rows]) + "\n")
    for step_s, arrivals in ((0.5, [0, 2, 4, 6, 8]), (2.0, [0, 0, 1, 1, 2])):
        done = sundog("schedule", trace, "-o", log, "--step-seconds", step_s, *LIMITS)
        assert done.returncode == 0, done.stderr
        added = [line["step"] for line in log_of(log) if line["ev"] == "add"]
        if step_s == 0.5:
            assert added == sorted(added) and len(set(added)) == 5
        assert len(added) == len(arrivals)


def test_a_trace_that_stalls_says_so(tmp_path: Path) -> None:
    """By the request that can never run."""
    trace, log = tmp_path / "trace.jsonl", tmp_path / "log.jsonl"
    write_trace(str(trace), [TraceRequest("big", 0.0, 900, 9)], provenance="test", hash_block_tokens=16)
    done = sundog("schedule", trace, "-o", log, "--num-gpu-blocks", 40)
    assert done.returncode == 0 and "request big has 900 tokens" in done.stderr, done.stderr


def test_a_trace_that_cannot_be_read_is_refused_as_replay_refuses_it(tmp_path: Path) -> None:
    """By line and column."""
    trace = tmp_path / "azure.csv"
    trace.write_text(f"{AZURE}\n2023-11-16 18:17:03.0000000,-5,4\n")
    refused(sundog("schedule", trace, "-o", tmp_path / "x", *LIMITS), "line 2", "ContextTokens")
