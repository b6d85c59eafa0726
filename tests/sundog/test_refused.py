"""Refused requests are counted among the arrivals, with reasons, in every view of a run."""

import json
import re
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests import warm


def trace_of(path: Path, rows: list[dict[str, Any]]) -> Path:
    """A trace of our own format."""
    units = {"arrival_s": "seconds", "prompt_tokens": "tokens", "output_tokens": "tokens"}
    header = {"format": "sundog-trace", "version": 1, "units": units}
    path.write_text("".join(json.dumps(row) + "\n" for row in [header, *rows]))
    return path


def words(text: str) -> str:
    return " ".join(text.split())


def test_who_is_refused_at_the_door_has_come_and_missed_its_limits(tmp_path: Path) -> None:
    """Two of four may be unfinished: half are within the limits, not all; each place says why."""
    rows = [{"arrival_s": 0.0, "prompt_tokens": 50, "output_tokens": 20} for _ in range(4)]
    trace, out = trace_of(tmp_path / "t.jsonl", rows), tmp_path / "run"
    command = ["replay", trace, "--max-waiting", "2", "--slo", "ttft=1", "--out", out]
    done = warm.run("sundog", *command, "--json")
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    counts = [summary[name] for name in ("num_requests", "num_finished", "num_refused")]
    assert counts == [4, 2, 2] and summary["slo_attainment"] == 0.5
    ((reason, count),) = summary["refusals"].items()
    assert count == 2 and "unfinished already: try again later" in reason
    assert pq.read_table(out / "requests.parquet")["reason"].to_pylist().count("refused") == 2
    page = words(warm.run("sundog", "explain", out).stdout)
    assert "2 requests refused before any engine: 2 requests are unfinished already" in page
    told = json.loads(warm.run("sundog", "explain", out, "--json").stdout)
    assert told["refused_at_the_door"] == {reason: 2}
    (gone,) = (
        row for row in pq.read_table(out / "requests.parquet").to_pylist()[2:3] if row["reason"] == "refused"
    )
    asked = ("explain", out, "--request", gone["request_id"])
    assert words(warm.run("sundog", *asked).stdout).endswith(f"was refused at the door: {reason}")
    one = json.loads(warm.run("sundog", *asked, "--json").stdout)
    assert (one["reason"], one["refusal"], one["num_prompt_tokens"]) == ("refused", reason, 50)
    nobody = warm.run("sundog", "explain", out, "--request", "nobody")
    assert nobody.returncode == 2 and "none of the 2 recorded requests is called 'nobody'" in nobody.stderr
    assert warm.run("sundog", "report", out, "-o", out / "report.html").returncode == 0
    assert f"refused: {reason}" in (out / "report.html").read_text()
    tile = re.compile(r"<b>2</b>\s*<span>requests refused</span>")
    assert tile.search((out / "report.html").read_text())
    shown = words(warm.run("sundog", "replay", trace, "--max-waiting", "2").stdout)
    assert "2 of 4 finished, 2 refused" in shown and "2 refused: 2 requests are unfinished" in shown
    assert "not judged: 2 of 4 requests got no answer" in shown
    free = tmp_path / "free"
    assert warm.run("sundog", "replay", trace, "--out", free).returncode == 0
    told_apart = words(warm.run("sundog", "compare", out, free).stdout)
    assert (
        "2 of 4 finished in run, 4 of 4 finished in free, 2 in both: these alone are compared" in told_apart
    )
    other = tmp_path / "other"
    assert warm.run("sundog", "replay", trace, "--limit", "3", "--out", other).returncode == 0
    wholes = words(warm.run("sundog", "compare", out, other).stdout)
    assert "2 of 4 requests finished in run, 3 of 3 requests finished in other" in wholes


@pytest.mark.parametrize("limits", [("784",), ("4096", "--refuse-never-fit")])
def test_a_replay_counts_the_answers_that_its_limits_cut_short(
    tmp_path: Path, limits: tuple[str, ...]
) -> None:
    """Once, in words and in the results, for the context and the KV cache; nothing where all are whole."""
    rows = [
        {"arrival_s": 0.0, "prompt_tokens": prompt, "output_tokens": output}
        for prompt, output in ((600, 200), (600, 184), (60, 20))
    ]
    trace = trace_of(tmp_path / "t.jsonl", rows)
    pool = ("--num-gpu-blocks", "50", "--max-model-len", *limits)
    done = warm.run("sundog", "replay", trace, *pool, "--json", "--out", tmp_path / "run")
    summary = json.loads(done.stdout)
    assert (summary["num_finished"], summary["num_cut"], summary["output_tokens"]) == (3, 1, 184 + 184 + 20)
    assert done.stderr.count("1 of 3 finished answers are cut short") == 1 and "the 784 tokens" in done.stderr
    reasons = pq.read_table(tmp_path / "run" / "requests.parquet")["reason"].to_pylist()
    assert reasons == ["length", "stop", "stop"]
    whole = warm.run("sundog", "replay", trace, "--num-gpu-blocks", "60", "--max-model-len", "800", "--json")
    assert "cut" not in whole.stderr and "num_cut" not in json.loads(whole.stdout)


def test_reasons_that_differ_by_numbers_are_one_and_many_are_folded(tmp_path: Path) -> None:
    """Thirty prompts that are too long by other lengths are one reason; none refused, none said."""
    rows = [{"arrival_s": n * 0.1, "prompt_tokens": 2000 + n, "output_tokens": 2} for n in range(30)]
    trace = trace_of(tmp_path / "t.jsonl", rows)
    done = warm.run("sundog", "replay", trace, "--max-model-len", "1000", "--json")
    summary = json.loads(done.stdout)
    ((reason, count),) = summary["refusals"].items()
    assert count == 30 and re.search("maximum context length is 1000 tokens", reason)
    assert summary["ttft_s"] is None and summary["num_finished"] == 0
    assert "refusals" not in json.loads(warm.run("sundog", "replay", trace, "--json").stdout)


def test_a_sweep_says_whose_latencies_leave_out_whom(tmp_path: Path) -> None:
    """Refusing half of all makes the rest quick: the table says so; where all finish, nothing is said."""
    rows = [{"arrival_s": n // 4, "prompt_tokens": 50, "output_tokens": 20} for n in range(40)]
    trace = trace_of(tmp_path / "t.jsonl", rows)
    alone = ("--metric", "e2e_s.mean", "--no-host-overhead")
    done = warm.run("sundog", "sweep", trace, "--vary", "max-waiting=2,40", *alone)
    assert done.returncode == 0, done.stderr
    assert "Finished: max-waiting=2 50.0%; any other, all." in words(done.stdout).replace("_", "-")
    done = warm.run("sundog", "sweep", trace, "--vary", "max-waiting=40,50", *alone)
    assert "finished requests alone" not in done.stdout


def test_no_praise_for_a_server_that_refused_half(tmp_path: Path) -> None:
    """Those that were taken hardly waited, which is why."""
    rows = [{"arrival_s": 0.003 * n, "prompt_tokens": 50, "output_tokens": 600} for n in range(4)]
    trace = trace_of(tmp_path / "t.jsonl", rows)
    for limit, there, absent in ((2, "and 2 were refused", "Nothing to"), (4, "Nothing to improve", "were")):
        out = tmp_path / f"run{limit}"
        assert warm.run("sundog", "replay", trace, "--max-waiting", limit, "--out", out).returncode == 0
        page = words(warm.run("sundog", "explain", out).stdout)
        assert there in page and absent not in page, page


def test_fairness_has_its_name_where_only_slowdowns_tell_it(tmp_path: Path) -> None:
    """Tenants that never wait at once have no share of service to compare."""
    rows = [
        {"arrival_s": 2.0 * i, "prompt_tokens": 50, "output_tokens": 20, "tenant": "ab"[i % 2]}
        for i in range(4)
    ]
    shown = words(warm.run("sundog", "replay", trace_of(tmp_path / "t.jsonl", rows)).stdout)
    assert "fairness 1.000 (Jain's index, of the tenants' slowdowns)" in shown


def test_a_run_in_which_nothing_finished_lasts_until_its_last_step(tmp_path: Path) -> None:
    """Its clients gave up at once: zero seconds in many steps would be a contradiction."""
    rows = [{"arrival_s": 0.1 * i, "prompt_tokens": 50, "output_tokens": 20} for i in range(4)]
    trace = trace_of(tmp_path / "t.jsonl", rows)
    shown = words(warm.run("sundog", "replay", trace, "--client-timeout", "0.001").stdout)
    assert "0 of 4 finished, 4 aborted" in shown
    assert re.search(r"duration 0\.3\d\d s in \d+ step", shown), shown
