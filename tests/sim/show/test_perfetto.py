"""Messages on disk and the Perfetto trace: reproducible, from simulations and servers."""

import gzip
import json
import resource
from collections import Counter
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from sundog.actors.core.config import ConfigError
from sundog.actors.graph import open_graph
from sundog.actors.messages import Generate, Sampling
from sundog.sim.explain.load import load
from sundog.sim.files.run_files import MESSAGES as NAME
from sundog.sim.record.journal_file import JournalFile, MessageFile
from sundog.sim.record.journal_rows import Header
from sundog.sim.replay import replay
from sundog.sim.show.perfetto import export
from sundog.sim.trace.record import TraceRequest
from tests.actors.fakes import FakeBackend, engine_config, read
from tests.sim.toy import CAPACITY, COST
from tests.sundog.test_runs import refused, sundog

ROWS = [TraceRequest(f"q{i}", i * 0.002, 30 + i, 20 + i) for i in range(12)]


def ns(time_us: float) -> int:
    """As the viewer counts."""
    return round(time_us * 1000)


def recorded(folder: Path) -> list[dict[str, Any]]:
    """A small run with messages; the lines of the file."""
    config = engine_config(max_model_len=160, num_gpu_blocks=CAPACITY.num_blocks)
    with closing(MessageFile(folder, "a1")) as tap:
        journal = JournalFile(folder, Header.of(config, run="a1"))
        replay(ROWS, config, COST, CAPACITY, listeners=[journal], tap=tap)
    lines = gzip.decompress((folder / NAME).read_bytes()).splitlines()[1:]
    return [json.loads(line) for line in lines]


def events(folder: Path) -> list[dict[str, Any]]:
    path = folder / "trace.json"
    num_events, left_out = export(folder, path)
    assert not left_out
    found: list[dict[str, Any]] = json.loads(path.read_text())["traceEvents"]
    assert len(found) == num_events
    return found


def test_messages_are_the_same_bytes_every_time(tmp_path: Path) -> None:
    """And in order of time, with everyone's part in a step."""
    rows = recorded(tmp_path / "a")
    recorded(tmp_path / "b")
    assert (tmp_path / "a" / NAME).read_bytes() == (tmp_path / "b" / NAME).read_bytes()
    assert [row["time"] for row in rows] == sorted(row["time"] for row in rows)
    kinds = Counter((row["from"], row["to"], row["message"]) for row in rows)
    num_steps = kinds["scheduler-0", "executor-0", "Batch"]
    assert num_steps == kinds["executor-0", "scheduler-0", "StepResult"]
    # The last, without tokens, finds AsyncLLM gone.
    assert num_steps - 1 == kinds["scheduler-0", "async-llm", "StepOutput"]
    assert kinds["client", "async-llm", "Generate"] == len(ROWS)
    for name in ("a", "b"):
        export(tmp_path / name, tmp_path / name / "trace.json.gz")
    a, b = ((tmp_path / name / "trace.json.gz").read_bytes() for name in ("a", "b"))
    assert a == b


def test_every_request_has_a_track_that_its_phases_tile(tmp_path: Path) -> None:
    """Begins and ends in pairs, the phases inside the request, steps one after another."""
    recorded(tmp_path)
    found = events(tmp_path)
    for row in ROWS:
        own = [e for e in found if e.get("id") == row.request_id]
        (start, *_), (*_, end) = own, own
        assert start["name"] == end["name"] == row.request_id
        inner = own[1:-1]
        assert [e["ph"] for e in inner] == ["b", "e"] * (len(inner) // 2)
        assert [e["ts"] for e in own] == sorted(e["ts"] for e in own)
        assert inner[0]["ts"] == start["ts"] and inner[-1]["ts"] == end["ts"]
    slices = [e for e in found if e["ph"] == "X"]
    for before, after in pairwise(slices):
        assert ns(before["ts"]) + ns(before["dur"]) <= ns(after["ts"])
    ended = [name for e in slices for name in e["args"]["ended"]]
    assert sorted(ended) == sorted(load(tmp_path).requests)
    tracks = {e["args"]["name"] for e in found if e["ph"] == "M"}
    assert {"async-llm", "router", "scheduler-0", "executor-0", "runner-0.0"} <= tracks


async def test_a_backend_with_real_tokens_gives_the_same_schema(tmp_path: Path) -> None:
    """Prompts and answers span out of the files."""
    config = engine_config()
    with closing(MessageFile(tmp_path, None)) as tap:
        journal = JournalFile(tmp_path, Header.of(config))
        async with open_graph(config, [FakeBackend()], listeners=[journal], tap=tap) as llm:
            await read(await llm.ask(Generate((77701, 77702), Sampling(max_tokens=3))))
    text = gzip.decompress((tmp_path / NAME).read_bytes()).decode()
    assert "77701" not in text
    assert {e["ph"] for e in events(tmp_path)} == {"M", "X", "C", "b", "e", "i"}


LONG = [TraceRequest(f"q{i}", i * 0.02, 30 + i % 7, 5 + i % 11) for i in range(300)]


@pytest.fixture(scope="module")
def long_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three hundred requests in six seconds, one of them much slower than the others."""
    folder = tmp_path_factory.mktemp("long")
    config = engine_config(max_model_len=400, num_gpu_blocks=CAPACITY.num_blocks)
    rows = sorted([*LONG, TraceRequest("slow", 3.0, 30, 300)], key=lambda row: row.arrival_s)
    with closing(MessageFile(folder, "a1")) as tap:
        journal = JournalFile(folder, Header.of(config, run="a1"))
        replay(rows, config, COST, CAPACITY, listeners=[journal], tap=tap)
    return folder


def drawn(folder: Path, output: Path, *options: object) -> tuple[list[dict[str, Any]], str]:
    """The events that the command writes, and what it says."""
    done = sundog("perfetto", folder, "-o", output, *options)
    assert done.returncode == 0, done.stderr
    found: list[dict[str, Any]] = json.loads(output.read_text())["traceEvents"]
    return found, done.stderr


def requests_of(found: list[dict[str, Any]]) -> set[str]:
    return {e["id"] for e in found if "id" in e}


@pytest.mark.long(reason="draws hundreds of thousands of events")
def test_a_span_of_seconds_is_drawn_in_full(long_run: Path, tmp_path: Path) -> None:
    """All steps, messages and requests of that time, and nothing else."""
    whole, _ = drawn(long_run, tmp_path / "all.json")
    part, said = drawn(long_run, tmp_path / "part.json", "--from", 2, "--to", 2.5)
    assert "left out" not in said and 0 < len(part) < len(whole) / 4
    for event in part:
        if event["ph"] in "Xi":
            assert event["ts"] + event.get("dur", 0) >= 2e6 and event["ts"] <= 2.5e6
    inside = [e for e in whole if e["ph"] == "X" and e["ts"] <= 2.5e6 and e["ts"] + e["dur"] >= 2e6]
    assert [e for e in part if e["ph"] == "X"] == inside
    arrived = {row.request_id for row in LONG if 2 <= row.arrival_s <= 2.5}
    assert arrived <= requests_of(part) and len(requests_of(part)) < 60
    behind, said = drawn(long_run, tmp_path / "behind.json", "--from", 9_999)
    assert not requests_of(behind) and "all 301 requests (none runs in these seconds)" in said


@pytest.mark.long(reason="replays many requests, or many random cases", moderate=True)
def test_of_many_requests_the_slowest_and_some_others_are_drawn(long_run: Path, tmp_path: Path) -> None:
    """As many as were asked for; how many are left out is said."""
    found, said = drawn(long_run, tmp_path / "few.json", "--requests", 20)
    assert len(requests_of(found)) == 20 and "slow" in requests_of(found)
    assert "left out: 281 of 301 requests" in said
    none, _ = drawn(long_run, tmp_path / "none.json", "--requests", 0)
    assert not requests_of(none)


def test_a_long_run_is_bounded_and_what_is_left_out_is_said(
    long_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Batches that follow each other are one slice, which holds what each of them did; messages end."""
    monkeypatch.setattr("sundog.sim.show.perfetto.MOST_SLICES", 40)
    monkeypatch.setattr("sundog.sim.show.perfetto.MOST_MESSAGES", 100)
    path = tmp_path / "bounded.json"
    exported = export(long_run, path)
    found = json.loads(path.read_text())["traceEvents"]
    slices = [e for e in found if e["ph"] == "X"]
    history = load(long_run)
    assert sum(e["args"]["steps"] for e in slices) == sum(q.num_steps for q in history.queues.values())
    assert len(slices) < 120 and any("batches: " in e["name"] for e in slices)
    ended = [name for e in slices for name in e["args"]["ended"]]
    assert sorted(ended) == sorted(history.requests)
    assert sum(e["ph"] == "i" for e in found) == 100
    assert [text.split()[0] for text in exported.left_out] == ["single", "messages"]
    for before, after in pairwise(slices):
        assert ns(before["ts"]) + ns(before["dur"]) <= ns(after["ts"])


def test_a_trace_is_whole_or_absent(long_run: Path, tmp_path: Path) -> None:
    """A full disk leaves what stood there, and no part of a new one."""
    path = tmp_path / "run.json"
    path.write_text("older")
    limit = (4000, 4000)
    done = sundog(
        "perfetto", long_run, "-o", path, before=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    )
    refused(done, "cannot write", "run.json")
    assert path.read_text() == "older" and list(tmp_path.iterdir()) == [path]
    refused(sundog("perfetto", long_run, "--from", 3, "--to", 2), "--to is 2, before --from 3")


@pytest.mark.long(reason="runs commands in processes of their own", moderate=True)
def test_a_log_of_decisions_is_whole_or_absent(tmp_path: Path) -> None:
    """Likewise."""
    trace, log = "tests/golden/12_async_heavy.trace.json.gz", tmp_path / "run.log.jsonl"
    log.write_text("older")
    limit = (4000, 4000)
    done = sundog(
        "schedule", trace, "-o", log, before=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    )
    refused(done, "cannot write")
    assert log.read_text() == "older" and list(tmp_path.iterdir()) == [log]


def test_what_cannot_be_written_or_drawn_is_said(tmp_path: Path) -> None:
    """A folder without a record, a file in the way."""
    with pytest.raises(ConfigError, match=r"no journal.jsonl.gz"):
        export(tmp_path, tmp_path / "x.json")
    recorded(tmp_path)
    with pytest.raises(ConfigError, match="cannot write"):
        export(tmp_path, tmp_path / "no" / "x.json")
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot write"):
        MessageFile(tmp_path / "file", None)
