"""Messages on disk and the trace for a viewer: the same files every time, of either world."""

import gzip
import json
from collections import Counter
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from actors.core.config import ConfigError
from actors.graph import open_graph
from actors.messages import Generate, Sampling
from sim.explain.load import load
from sim.files.run_files import MESSAGES as NAME
from sim.record.journal_file import JournalFile
from sim.record.journal_rows import Header
from sim.record.message_file import MessageFile
from sim.replay import replay
from sim.show.perfetto import export
from sim.trace.record import TraceRequest
from tests.actors.fakes import FakeBackend, engine_config, read
from tests.sim.toy import CAPACITY, COST

ROWS = [TraceRequest(f"q{i}", i * 0.002, 30 + i, 20 + i) for i in range(12)]


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
    num_events = export(folder, path)
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
        assert before["ts"] + before["dur"] <= after["ts"] + 0.002
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
