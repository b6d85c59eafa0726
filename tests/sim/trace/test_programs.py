"""Programs of agents: time from first arrival to last token, equal wherever it is shown."""

import json
import random
from pathlib import Path

import numpy as np
import pytest

from sundog.sim.record.run_directory import open_run
from tests import warm

Row = dict[str, object]


def agents(seed: int, count: int = 30) -> list[Row]:
    """Programs of a few calls each; some wait for several, which ties programs that began apart."""
    rng, rows, session_of = random.Random(seed), list[Row](), dict[str, list[str]]()
    for number in range(count):
        session = f"s{rng.randrange(8)}"
        earlier = session_of.setdefault(session, [])
        row: Row = {"request_id": f"r{number}", "session_id": session, "output_length": rng.randint(1, 40)}
        row |= {"input_length": rng.randint(10, 4000)}
        others = [name for names in session_of.values() for name in names]
        if earlier:
            after = {earlier[-1]} | ({rng.choice(others)} if rng.random() < 0.15 else set())
            row |= {"wait_for": sorted(after), "delay": rng.randint(0, 900)}
        else:
            row |= {"timestamp": rng.randint(0, 5000)}
        earlier.append(f"r{number}")
        rows.append(row)
    return rows


def expected(rows: list[Row], run: Path) -> list[float]:
    """The spans of connected parts by a plain search, from a run on disk; the front end is part of E2E."""
    table = open_run(run).requests().to_pylist()
    times = {row["request_id"]: (row["arrival_s"], row["arrival_s"] + row["e2e_s"]) for row in table}
    parts: list[set[object]] = []
    for row in rows:
        after = row.get("wait_for", [])
        assert isinstance(after, list)
        tied = [part for part in parts if part & set(after)]
        parts = [part for part in parts if part not in tied] + [{row["request_id"]}.union(*tied)]
    return [max(times[n][1] for n in part) - min(times[n][0] for n in part) for part in parts]


@pytest.mark.long(keep=1, reason="more seeds of the law whose first cases `make test` runs")
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_program_lasts_from_its_first_arrival_to_its_last_token(tmp_path: Path, seed: int) -> None:
    """In a replay, in a sweep, and in a sweep that keeps its runs, whatever percentile is asked for."""
    rows = agents(seed)
    trace, run = tmp_path / "agents.jsonl", tmp_path / "run"
    trace.write_text("".join(json.dumps(row) + "\n" for row in rows))
    done = warm.run("sundog", "replay", str(trace), "--max-num-seqs", "2", "--out", str(run), "--json")
    assert done.returncode == 0, done.stderr
    spans, figures = expected(rows, run), json.loads(done.stdout)["program_s"]
    assert 1 < len(spans) < len(rows) and figures["count"] == len(spans)
    assert figures["mean"] == pytest.approx(np.mean(spans), rel=1e-12)
    assert figures["p99"] == pytest.approx(np.percentile(spans, 99), rel=1e-12)
    sweep = ("sweep", str(trace), "--vary", "max_num_seqs=2", "--warmup-s", "0")
    sweep += ("--metric", "program_s.p95", "--metric", "program_s.mean")
    for words in ((), ("--out", str(tmp_path / "kept"))):
        found = json.loads(warm.run("sundog", *sweep, *words, "--json").stdout)["cells"][0]["runs"][0]
        assert found["program_s.p95"] == pytest.approx(np.percentile(spans, 95), rel=1e-12)
        assert found["program_s.mean"] == pytest.approx(np.mean(spans), rel=1e-12)


@pytest.mark.long(reason="runs commands in processes of their own", moderate=True)
def test_programs_are_shown_and_compared(tmp_path: Path) -> None:
    """In the table of a replay, and of a comparison; one without all its tokens counts nowhere."""
    trace = tmp_path / "agents.jsonl"
    trace.write_text("".join(json.dumps(row) + "\n" for row in agents(4)))
    for name, words in (("a", ()), ("b", ("--gpu", "l40s"))):
        done = warm.run("sundog", "replay", str(trace), "--out", str(tmp_path / name), *words)
        assert " program " in done.stdout, done.stderr
    compared = json.loads(
        warm.run("sundog", "compare", str(tmp_path / "a"), str(tmp_path / "b"), "--json").stdout
    )
    (mean,) = (each for each in compared["figures"] if each["name"] == "program mean")
    assert 0 < mean["first"] < mean["second"] and mean["change"]["half_width"] is None
    cut = json.loads(warm.run("sundog", "replay", str(trace), "--client-timeout", "0.001", "--json").stdout)
    assert "program_s" not in cut and cut["num_aborted"]


def test_a_trace_without_programs_has_no_such_figure(tmp_path: Path) -> None:
    """Nor can a sweep ask for it."""
    trace = tmp_path / "plain.csv"
    trace.write_text("arrived_at,num_prefill_tokens,num_decode_tokens\n0,100,5\n")
    assert "program_s" not in json.loads(warm.run("sundog", "replay", str(trace), "--json").stdout)
    done = warm.run("sundog", "sweep", str(trace), "--vary", "max_num_seqs=2", "--metric", "program_s.p95")
    assert done.returncode == 2 and "no request of" in done.stderr + done.stdout
