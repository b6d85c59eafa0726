"""Python functions for runs, traces and fleets return what the commands print."""

import json
import subprocess
import sys
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sundog

TRACE = "traces/chat-poisson-2rps-5min.jsonl.gz"
LENGTHS = {"prompt": {"kind": "fixed", "tokens": 100}, "output": {"kind": "fixed", "tokens": 20}}
EVERY_SECOND: dict[str, Any] = {
    "duration_s": 10,
    "arrivals": {"kind": "gamma", "rate_per_s": 1, "cv": 0},
    **LENGTHS,
}


def printed(*arguments: str) -> Any:
    command = [sys.executable, "-m", "sundog", *arguments, "--json"]
    return json.loads(subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[sundog.RunResult, sundog.RunResult]:
    folder = tmp_path_factory.mktemp("runs")
    one, two = (
        sundog.replay(TRACE, gpu="h100", limit=40, max_num_seqs=seqs, out=folder / str(seqs))
        for seqs in (1, 64)
    )
    return one, two


def test_explain_is_what_the_command_prints(runs: tuple[sundog.RunResult, sundog.RunResult]) -> None:
    few, _ = runs
    assert sundog.explain(few) == printed("explain", str(few.folder))
    assert "max_num_seqs" in json.dumps(sundog.explain(few)["causes"])
    name = few.requests.column("request_id")[3].as_py()
    assert sundog.explain(few.folder, request_id=name) == printed(
        "explain", str(few.folder), "--request", name
    )
    with pytest.raises(sundog.ConfigError, match="nobody"):
        sundog.explain(few, request_id="nobody")


def test_compare_is_what_the_command_prints(runs: tuple[sundog.RunResult, sundog.RunResult]) -> None:
    few, many = runs
    found = sundog.compare(few, many)
    assert found.settings == {"max_num_seqs": (1, 64)} and found.is_paired
    said = {row["name"]: row for row in printed("compare", str(few.folder), str(many.folder))["figures"]}
    for row in found:
        assert row["first_s"] == pytest.approx(said[row["figure"]]["first"])
        assert row["second_s"] == pytest.approx(said[row["figure"]]["second"])
    mean = few.figures["ttft_s"]["mean"], many.figures["ttft_s"]["mean"]
    assert (found["TTFT mean"]["first_s"], found["TTFT mean"]["second_s"]) == pytest.approx(mean)
    assert found.moved["gained"][0]["second_s"] < found.moved["gained"][0]["first_s"]
    assert "TTFT mean" in found._repr_html_()
    with pytest.raises(KeyError, match="TTFT mean"):
        found["ttft"]


def test_trace_is_what_the_command_prints(tmp_path: Path) -> None:
    assert sundog.trace(TRACE, limit=50) == printed("trace", TRACE, "--limit", "50")
    other = tmp_path / "other.jsonl"
    sundog.workload(EVERY_SECOND, out=other)
    merged = sundog.trace(TRACE, other, limit=5, out=tmp_path / "merged.jsonl")
    assert merged["tenants"] == {"chat-poisson-2rps-5min": 5, "other": 5}
    assert sundog.trace(tmp_path / "merged.jsonl")["num_requests"] == 10
    with pytest.raises(sundog.ConfigError, match="no trace"):
        sundog.trace()


def test_a_workload_is_a_table(tmp_path: Path) -> None:
    """A metronome: its gaps are a second, but for the first."""
    table = sundog.workload(EVERY_SECOND, out=tmp_path / "made.jsonl")
    arrivals_s = table.column("arrival_s").to_pylist()
    assert [b - a for a, b in pairwise(arrivals_s)] == pytest.approx([1.0] * 9, abs=1e-5)
    assert set(table.column("num_output_tokens").to_pylist()) == {20}
    assert sundog.trace(tmp_path / "made.jsonl")["num_requests"] == table.num_rows


class Frame:
    """What is used of a DataFrame of pandas, whose numbers are numpy's and whose gaps are NaN."""

    def __init__(self, rows: list[dict[str, Any]]) -> None:
        self._rows = rows

    def to_dict(self, orient: str) -> list[dict[str, Any]]:
        assert orient == "records"
        return self._rows


def test_a_replay_takes_a_description_a_table_and_rows(tmp_path: Path) -> None:
    """The same requests in each form, and the same times; the file beside the run gives them again."""
    table = sundog.workload(EVERY_SECOND)
    rows = table.to_pylist()
    frame = Frame([
        {"arrival_s": np.float64(row["arrival_s"]), "prompt_tokens": np.int64(100), "output_tokens": 20,
         "tenant": float("nan")}
        for row in rows
    ])  # fmt: skip
    file = tmp_path / "every.toml"
    file.write_text(
        'duration_s = 10\n[arrivals]\nkind = "gamma"\nrate_per_s = 1\ncv = 0\n'
        '[prompt]\nkind = "fixed"\ntokens = 100\n[output]\nkind = "fixed"\ntokens = 20\n'
    )
    times = [
        sundog.replay(source, gpu="h100").requests.column("first_token_s").to_pylist()
        for source in (EVERY_SECOND, file, table, rows, frame)
    ]
    assert len(times[0]) == 10 and all(each == times[0] for each in times[1:])
    run = sundog.replay(rows, gpu="h100", out=tmp_path / "run")
    (kept,) = tmp_path.glob("run-trace-*.jsonl")
    assert sundog.replay(kept, gpu="h100").figures["ttft_s"] == run.figures["ttft_s"]
    named = [{"t": float(i), "p": 100, "o": 5} for i in range(5)]
    assert (
        sundog.replay(named, gpu="h100", columns="arrival=t,prompt=p,output=o").figures["num_finished"] == 5
    )


def test_a_replay_that_is_refused_leaves_an_earlier_run_its_trace(tmp_path: Path) -> None:
    """Two runs of other requests are written to one folder; the second is out of order."""
    rows = sundog.workload(EVERY_SECOND).to_pylist()
    sundog.replay(rows, gpu="h100", out=tmp_path / "run")
    (kept,) = tmp_path.glob("run-trace-*.jsonl")
    before = kept.read_bytes()
    with pytest.raises(sundog.TraceError, match="before the row above"):
        sundog.replay([*rows, *rows], gpu="h100", out=tmp_path / "run")
    assert kept.read_bytes() == before
    assert sundog.read(tmp_path / "run").figures["num_requests"] == len(rows)  # type: ignore[union-attr]


ROW = {"arrival_s": 0.0, "prompt_tokens": 10, "output_tokens": 5}


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"arrival_s": float("nan")}, "arrival_s"),
        ({"arrival_s": float("inf")}, "Infinity"),
        ({"arrival_s": datetime(2026, 1, 1)}, "arrival_s = datetime"),
        ({"prompt_tokens": -1}, "negative"),
        ({"prompt_tokens": 10**30}, "more than"),
        ({"hash_ids": np.array([1, 2])}, "hash_block_tokens"),
        ({"tenant": b"a"}, "tenant = b'a'"),
    ],
)
def test_a_value_that_no_trace_has_is_refused_by_name(more: dict[str, Any], said: str) -> None:
    with pytest.raises(sundog.ConfigError, match=said):
        sundog.replay([ROW, ROW | more], gpu="h100")


def test_a_table_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(sundog.ConfigError, match="cannot write"):
        sundog.replay([ROW], gpu="h100", out=tmp_path / "file" / "run")


@pytest.mark.parametrize("source", [{}, [], [1], 5, [{"a": 1}], "nowhere.csv", {"duration_s": 5}])
def test_what_is_no_trace_is_refused(source: Any) -> None:
    with pytest.raises(sundog.ConfigError):
        sundog.replay(source, gpu="h100")


@pytest.mark.parametrize(
    "options", [{"replications": 0}, {"confidence": 1.5}, {"resolution": 0}, {"jobs": -1}]
)
def test_a_search_that_cannot_be_made_is_refused_by_name(options: dict[str, Any]) -> None:
    """By the bounds of the command's options."""
    ((name, value),) = options.items()
    with pytest.raises(sundog.ConfigError, match=f"{name} is {value}: give a"):
        sundog.capacity(TRACE, slo="p95(ttft)<1", gpu="h100", limit=5, **options)


@pytest.mark.long(reason="searches the largest load twice", moderate=True)
def test_capacity_is_what_the_command_prints() -> None:
    options = {"slo": "p95(ttft)<1", "resolution": 0.1}
    found = sundog.capacity(TRACE, gpu="h100", limit=60, jobs=1, **options)  # type: ignore[arg-type]
    words = ("--gpu", "h100", "--limit", "60", "--slo", "p95(ttft)<1", "--resolution", "0.1")
    said = printed("capacity", TRACE, *words)
    assert [row["factor"] for row in found.rows] == said["factors"]
    assert found.requests_per_s.mean == said["rate"][0] and not found.is_most_tried
    assert "requests/s" in repr(found)
    with pytest.raises(sundog.ConfigError, match="objective"):
        sundog.capacity(TRACE, gpu="h100", slo="ttft=1")


def test_walk_is_what_the_command_prints(tmp_path: Path) -> None:
    """Its stops are the messages that were recorded, in order; the page is the command's to the byte."""
    run = sundog.replay(TRACE, gpu="h100", limit=5, messages=True, out=tmp_path / "run")
    way = sundog.walk(run, "r0000003", out=tmp_path / "here.html")
    command = [sys.executable, "-m", "sundog", "walk", str(run.folder), "r0000003"]
    said = subprocess.run([*command, "--text"], capture_output=True, text=True, check=True, timeout=60)
    assert way.text == said.stdout.rstrip("\n")
    subprocess.run([*command, "-o", str(tmp_path / "there.html")], check=True, timeout=60)
    assert (tmp_path / "here.html").read_bytes() == (tmp_path / "there.html").read_bytes()
    (row,) = [each for each in run.requests.to_pylist() if each["request_id"] == "r0000003"]
    assert way.stops[0]["begin_s"] == 0 and way.actors[:2] == ["client", "async-llm"]
    took_s = row["first_token_s"] - row["arrival_s"]
    assert any(stop["end_s"] == pytest.approx(took_s) for stop in way)
    assert "srcdoc=" in way._repr_html_() and not way.cut_off
    with pytest.raises(sundog.ConfigError, match="Did you mean r0000003"):
        sundog.walk(run, "0000003")
    silent = sundog.replay(TRACE, gpu="h100", limit=5)
    with pytest.raises(sundog.ConfigError, match="no messages"):
        sundog.walk(silent, "r0000003")


COST = {
    "step": 0.01,
    "per_token": 1e-4,
    "per_context_token": 0.0,
    "per_decode": 2e-4,
    "per_prefill_pair": 0.0,
}


def test_calibrate_finds_the_cost_that_made_the_runs(tmp_path: Path) -> None:
    """Two loads of a made-up cost are fitted: its step to 3 %, what a token and a decode take to a tenth."""
    true = tmp_path / "true.toml"
    true.write_text("[calibrated]\n" + "".join(f"{name} = {value}\n" for name, value in COST.items()))
    options: dict[str, Any] = {"cost": true, "gpu": "h100", "host_overhead": False, "async_scheduling": False}
    for limit, name in ((60, "few"), (200, "many")):
        sundog.replay(TRACE, limit=limit, out=tmp_path / name, **options)
    found = sundog.calibrate(tmp_path / "few", tmp_path / "many", out=tmp_path / "here.toml")
    for name, tolerance in (("step", 0.03), ("per_token", 0.1), ("per_decode", 0.1)):
        assert found.coefficients[name] == pytest.approx(COST[name], rel=tolerance), name
    command = [sys.executable, "-m", "sundog", "calibrate", str(tmp_path / "few"), str(tmp_path / "many")]
    said = subprocess.run(
        [*command, "-o", str(tmp_path / "here.toml")], capture_output=True, text=True, check=True, timeout=120
    )
    assert sundog.calibrate(*command[-2:], out=tmp_path / "again.toml").coefficients == found.coefficients
    for row in found.left_out:
        assert f"{row['load']}: {row['figure']}" in said.stdout
    assert len(found.left_out) == 6 and all(text in said.stderr for text in found.remarks[1:])
    assert (tmp_path / "here.toml").read_text() == (tmp_path / "again.toml").read_text()


@pytest.mark.parametrize(
    ("sources", "options", "said"),
    [
        ((), {}, "no source"),
        (("nowhere",), {}, "nowhere is not there"),
        (("traces/README.md",), {"dtype": "float16"}, "--dtype"),
        (("traces/README.md",), {"engine_version": "0.33"}, "no option engine_version"),
    ],
)
def test_what_cannot_be_calibrated_is_refused(
    sources: tuple[str, ...], options: dict[str, Any], said: str, tmp_path: Path
) -> None:
    with pytest.raises(sundog.ConfigError, match=said):
        sundog.calibrate(*sources, out=tmp_path / "x.toml", **options)
