"""Traces of agents: rows that wait for others, as Dynamo records them."""

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from sundog.sim.trace.jsonl_rows import write_trace
from sundog.sim.trace.read import read_trace
from sundog.sim.trace.record import TraceError
from tests.sundog.test_runs import refused, sundog


def row(request_id: str, session: str, tokens: int = 600, **more: object) -> dict[str, object]:
    lengths = {"input_length": tokens, "output_length": 5}
    return {"request_id": request_id, "session_id": session, **lengths, **more}


PROGRAM = [
    row("plan", "lead", timestamp=1000, hash_ids=[1, 2, 3, 4, 5], prefix_reset=True, branches=["b0"]),
    row("other", "alone", timestamp=1200),
    row(
        "a0", "lead", timestamp=9000, wait_for=["plan"], delay=20, tool_wait_ms=1500, tool_events=[{"id": 1}]
    ),
    row("b0", "child", wait_for=["plan"], tool_wait_ms=40, tokens=1300, hash_ids=list(range(11))),
    row("join", "lead", wait_for=["a0", "b0"]),
]
"""An agent calls a tool while one that it started works, and then has both results."""


def written(folder: Path, rows: list[dict[str, object]]) -> str:
    path = folder / "agents.jsonl"
    path.write_text("".join(json.dumps(each) + "\n" for each in rows))
    return str(path)


def test_rows_wait_for_those_that_they_name(tmp_path: Path) -> None:
    """Pauses lie between the last end and the arrival; contents are by the one size that fits."""
    trace = read_trace(written(tmp_path, PROGRAM))
    assert trace.format == "agentic"
    rows = {each.request_id: each for each in trace}
    assert list(rows) == ["plan", "a0", "b0", "join", "other"], "by the earliest instants possible"
    assert rows["plan"].arrival_s == rows["join"].arrival_s == 1.0 and rows["plan"].after == ()
    assert rows["a0"].after == ("plan",) and rows["a0"].pause_s == 1.52
    assert rows["join"].after == ("a0", "b0") and rows["join"].pause_s == 0.0
    assert {each.hash_block_tokens for each in rows.values() if each.hash_ids} == {128}


def test_a_conversation_goes_on_after_its_last_row(tmp_path: Path) -> None:
    """Rows with `delay` alone are turns of a session."""
    turns = [
        row("", "s", timestamp=5),
        row("", "t", timestamp=6),
        row("", "s", delay=250),
        row("", "s", delay=100),
    ]
    for turn in turns:
        del turn["request_id"]
    rows = list(read_trace(written(tmp_path, turns)))
    assert [each.after for each in rows] == [(), ("r0000000",), ("r0000002",), ()]
    assert [each.pause_s for each in rows] == [0.0, 0.25, 0.1, 0.0]


def test_a_tool_may_take_hours(tmp_path: Path) -> None:
    """Waits are in milliseconds, as long as any time of a trace; others, and no times, are refused."""
    rows = [row("a", "s", timestamp=0), row("b", "s", wait_for=["a"], tool_wait_ms=9e6)]
    assert [each.pause_s for each in read_trace(written(tmp_path, rows))] == [0.0, 9000.0]
    for wrong in (-1, 1e13, float("nan")):
        rows[1]["tool_wait_ms"] = wrong
        with pytest.raises(TraceError, match="line 2"):
            list(read_trace(written(tmp_path, rows)))


def test_our_own_format_holds_it_whole(tmp_path: Path) -> None:
    """Written and read again, lists of predecessors and ones alike."""
    rows = list(read_trace(written(tmp_path, PROGRAM)))
    path = str(tmp_path / "own.jsonl")
    write_trace(path, rows, provenance="a test", hash_block_tokens=128)
    assert [row._replace(hash_block_tokens=0) for row in read_trace(path)] == [
        row._replace(hash_block_tokens=0) for row in rows
    ]


@pytest.mark.parametrize(
    ("rows", "reason"),
    [
        ([row("a", "s", timestamp=0), row("a", "t", timestamp=1)], "line 2.*request_id: 'a' was used"),
        ([row("a", "s", timestamp=0), row("b", "s", wait_for=["c"])], "line 2.*wait_for: 'c' is not the id"),
        ([row("a", "s", timestamp=0), row("b", "s", wait_for=[3])], "wait_for: .3. is not a list of texts"),
        ([row("a", "s", timestamp=0, delay=5)], "delay: a row without a predecessor cannot have a pause"),
        ([row("a", "s", timestamp=0), row("b", "t")], "line 2.*timestamp: missing"),
        ([row("a", "s"), row("b", "t", timestamp=5)], "line 2.*timestamp: the rows before it have none"),
        ([row("a", "s", timestamp=0, wait_fro=["a"])], "wait_fro: unknown key. Did you mean wait_for"),
        ([row("a", "s", timestamp=0, tokens=2000, hash_ids=[1])], "ids of 1024, 2048, 4096 tokens fit all"),
        (
            [row("a", "s", timestamp=0, hash_ids=[1] * 5), row("b", "s", hash_ids=[1])],
            "line 2.*hash_ids: 1 ids for 600 prompt tokens: no number of tokens per id fits",
        ),
    ],
)
def test_nothing_is_guessed(tmp_path: Path, rows: list[dict[str, object]], reason: str) -> None:
    """One line, with the row and the key."""
    with pytest.raises(TraceError, match=reason):
        list(read_trace(written(tmp_path, rows)))


def test_agents_are_replayed_from_the_command_line(tmp_path: Path) -> None:
    """The last request of a program begins when both before it have ended, and what is wrong is one line."""
    out = str(tmp_path / "run")
    done = sundog("replay", written(tmp_path, PROGRAM), "--gpu", "h100", "--out", out)
    assert done.returncode == 0, done.stderr
    table = pq.read_table(Path(out) / "requests.parquet").to_pylist()
    came = {each["request_id"]: each["arrival_s"] for each in table}
    ended = {each["request_id"]: each["finish_s"] for each in table}
    assert came["a0"] == pytest.approx(ended["plan"] + 1.52)
    assert came["join"] == max(ended["a0"], ended["b0"])
    assert list(read_trace(out)) == list(read_trace(written(tmp_path, PROGRAM))), (
        "a run is played as its trace"
    )
    wrong = written(tmp_path, [row("a", "s", wait_for=["b"])])
    refused(sundog("replay", wrong, "--gpu", "h100"), "'b' is not the id of an earlier row")
