"""The report: one self-contained, reproducible page with the measured figures."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sundog.actors.config import EngineConfig
from sundog.actors.core.config import ConfigError, SchedulerConfig
from sundog.actors.messages import Capacity
from sundog.sim.cost.roofline import Roofline
from sundog.sim.figures.metrics import summarize
from sundog.sim.hardware.gpu import load_gpu
from sundog.sim.hardware.model import load_model
from sundog.sim.record.journal_file import JournalFile
from sundog.sim.record.journal_rows import Header
from sundog.sim.record.run_directory import Run, open_run
from sundog.sim.replay import replay
from sundog.sim.show.html.facts import figures, tenants, worst
from sundog.sim.show.html.page import NUM_BUCKETS, PERCENTS, render, series, write_page
from sundog.sim.trace.record import TraceRequest
from sundog.sim.workload.distributions import Poisson, Uniform
from sundog.sim.workload.spec import Workload
from tests.sim.record.runs import write_run

LIMITS = SchedulerConfig(max_num_seqs=16, max_num_batched_tokens=512, max_model_len=1024)
CAPACITY = Capacity(130, 16)


def recorded(
    path: Path, *, rate_per_s: float = 40.0, policy: str = "fcfs", given: list[TraceRequest] | None = None
) -> Run:
    """A small overloaded run of two tenants on two replicas, with its journal."""
    config = EngineConfig(scheduler=LIMITS, replicas=2, decode_runs=True)
    rows = [
        row._replace(tenant="<b>one</b>" if number % 3 else "two")
        for number, row in enumerate(
            Workload(3.0, Poisson(rate_per_s), Uniform(20, 400), Uniform(1, 200)).requests(3)
        )
    ]
    cost = Roofline(load_model("llama-3.1-8b"), load_gpu("h100"))
    journal = JournalFile(path, Header.of(config, CAPACITY.num_blocks))
    recorder = replay(given or rows, config, cost, CAPACITY, listeners=[journal])
    write_run(path, recorder, summarize(recorder), {"trace": "<t>", "policy": policy})
    return open_run(path)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return recorded(tmp_path_factory.mktemp("runs") / "<script>")


def embedded(page: str) -> dict[str, Any]:
    text = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert text is not None
    data: dict[str, Any] = json.loads(text[1])
    return data


def test_the_page_needs_nothing_else(run: Run) -> None:
    """No address that a browser would fetch: no src, no link, no import, no url()."""
    page = render([run])
    assert not re.search(r"<(?:link|img|iframe)\b|\bsrc\s*=|@import|url\(", page)
    assert page.count("<script") == 3


def test_the_same_run_gives_the_same_page(run: Run) -> None:
    """Byte for byte."""
    assert render([run]) == render([run])


def test_names_from_outside_are_text_and_never_markup(run: Run) -> None:
    """The run's folder, its options and its tenants."""
    page = render([run, run])
    assert "<b>one" not in page and "&lt;b&gt;one" in page
    assert "<t>" not in page and "&lt;t&gt;" in page
    assert page.count("<script") == page.count("</script>") == 3
    assert [each["name"] for each in embedded(page)["runs"]] == ["<script> (1)", "<script> (2)"]


def test_timelines_add_up_to_the_run(run: Run) -> None:
    """Tokens, arrivals and the time in batches are neither lost nor counted twice."""
    drawn, steps, requests = series(run), run.steps(), run.requests()
    width_s = drawn.time_s[1] - drawn.time_s[0]
    assert len(drawn.time_s) == len(drawn.waiting) == NUM_BUCKETS

    def total(column: str) -> float:
        return float(np.array(steps[column]).sum())

    for values, expected in (
        (drawn.decode_tokens_per_s, total("num_decodes")),
        (drawn.prefill_tokens_per_s, total("num_prefill_tokens")),
        (drawn.arrivals_per_s, requests.num_rows),
    ):
        assert sum(values) * width_s == pytest.approx(expected, rel=1e-4)
    assert max(drawn.waiting) >= float(np.array(steps["num_waiting"]).max())
    assert 0.5 < max(drawn.kv_use) <= 1.0 and min(drawn.kv_use) >= 0.0


@pytest.mark.parametrize("count", [1, 5])
def test_a_batch_is_never_shown_larger_than_it_was(tmp_path: Path, count: int) -> None:
    """A step counts while it runs: also in a run so short that a step is longer than a point."""
    config = EngineConfig(scheduler=LIMITS)
    cost = Roofline(load_model("llama-3.1-8b"), load_gpu("h100"))
    rows = [TraceRequest(f"r{number}", 0.0, 50, 8) for number in range(count)]
    recorder = replay(rows, config, cost, CAPACITY)
    write_run(tmp_path, recorder, summarize(recorder), {})
    run = open_run(tmp_path)
    steps, drawn = run.steps(), series(run)
    assert max(drawn.batch) == pytest.approx(count)
    assert max(drawn.arrivals_per_s) == pytest.approx(count), "of a second at least"
    size = np.array(steps["num_decodes"]) + np.array(steps["num_prefills"])
    spent_s = (size * (np.array(steps["end_s"]) - np.array(steps["start_s"]))).sum()
    assert sum(drawn.batch) * (drawn.time_s[1] - drawn.time_s[0]) == pytest.approx(spent_s, rel=1e-3)


def test_distributions_are_those_of_the_requests(run: Run) -> None:
    """Seconds at each percentage, the median among them."""
    cdf = series(run).cdfs["ttft_s"]
    assert cdf is not None and cdf == sorted(cdf)
    median = list(PERCENTS).index(50)
    assert cdf[median] == pytest.approx(run.summary["ttft_s"]["p50"], rel=1e-5)


def test_the_worst_requests_come_with_the_cause_of_their_wait(run: Run) -> None:
    """The longest first; the cause is what `sundog explain` finds in the journal."""
    rows = worst(run)
    longest = max(value for value in run.requests()["ttft_s"].to_pylist() if value is not None)
    by_id = {row["request_id"]: row["ttft_s"] for row in run.requests().to_pylist()}
    assert by_id[rows[0]["request"]] == longest
    assert len(rows) == 10 and any("KV blocks" in str(row["why it waited"]) for row in rows)
    assert all(row["why it waited"] for row in rows), "each of them waited"


def test_the_better_run_is_marked_only_where_there_is_a_difference(tmp_path: Path) -> None:
    """Less latency, more throughput; equal figures mark nobody."""
    heavy, light = (recorded(tmp_path / name, rate_per_s=rate) for name, rate in (("h", 40.0), ("l", 5.0)))
    best = {row.name: row.best for row in figures([heavy, light])}
    assert best["TTFT, p99"] == (1,) and best["output tokens per second"] == (0,)
    assert best["steps"] == ()
    twice = {row.name: row.best for row in figures([light, heavy, light])}
    assert twice["TTFT, p99"] == (0, 2), "what reads the same is as good"
    assert {row.best for row in figures([light, light])} == {()}
    assert {row.best for row in figures([light])} == {()}


def test_tenants_have_a_table_of_their_own(run: Run) -> None:
    """Every request of a tenant counts once."""
    rows = tenants([run], ["a"])
    assert [row["tenant"] for row in rows] == ["<b>one</b>", "two"]
    assert sum(map(int, (str(row["requests"]) for row in rows))) == run.requests().num_rows


@pytest.mark.long(reason="replays many requests, or many random cases", moderate=True)
def test_several_runs_show_tenants_and_settings_side_by_side(tmp_path: Path) -> None:
    """Each tenant's runs follow each other; what differs is open, what does not is folded."""
    runs = [recorded(tmp_path / policy, policy=policy) for policy in ("fcfs", "priority")]
    assert [(row["tenant"], row["run"]) for row in tenants(runs, ["a", "b"])] == [
        ("<b>one</b>", "a"),
        ("<b>one</b>", "b"),
        ("two", "a"),
        ("two", "b"),
    ]
    page = render(runs)
    open_part, _, folded = page.partition("<details>")
    assert "<th>policy</th><td>fcfs</td><td>priority</td>" in open_part
    assert "<th>trace</th>" in folded and "<th>trace</th>" not in open_part


def test_each_runs_waits_stand_under_its_own_name(tmp_path: Path) -> None:
    """Also behind a run whose requests were all refused, which has none."""
    empty = recorded(tmp_path / "empty", given=[TraceRequest("never", 0.0, 10**6, 8)])
    alone = recorded(tmp_path / "alone", given=[TraceRequest("only", 0.0, 50, 8)])
    page = render([empty, alone])
    assert "first token: alone</h2>" in page and "first token: empty</h2>" not in page


def test_limits_are_drawn_where_a_run_was_held_against_them(run: Run) -> None:
    """By latency, in seconds."""
    assert series(run).limits_s == {}
    held = replace(run, config={**run.config, "slo": "ttft=0.5,e2e=10"})
    assert series(held).limits_s == {"ttft_s": [0.5], "e2e_s": [10.0]}


@pytest.mark.parametrize(("num_targets", "drawn"), [(2, [0.25, 0.5, 1.0]), (9, None)])
def test_targets_that_requests_bring_are_drawn_unless_they_are_many(
    tmp_path: Path, num_targets: int, drawn: list[float] | None
) -> None:
    """Beside the run's limit, which is that of requests without one."""
    targets = [None, *(0.5 * (number + 1) for number in range(num_targets))]
    given = [TraceRequest(f"r{number}", 0.0, 50, 4, slo_ttft_s=s) for number, s in enumerate(targets)]
    brought = recorded(tmp_path / "brought", given=given)
    held = replace(brought, config={**brought.config, "slo": "ttft=0.25"})
    assert series(held).limits_s.get("ttft_s") == drawn


def test_blocks_stay_in_use_until_they_are_freed(tmp_path: Path) -> None:
    """A request alone holds its blocks to its end: the line never falls before it."""
    alone = recorded(tmp_path / "alone", given=[TraceRequest("only", 0.0, 400, 64)])
    use = np.array(series(alone).kv_use[NUM_BUCKETS // 2 : -2])
    assert (np.diff(use) >= 0).all() and use[0] > 0.8 * use[-1] > 0, "its prompt's, and more with each token"


def test_tenants_of_refused_requests_received_nothing(tmp_path: Path) -> None:
    """How many came, how many finished, and the tokens of those alone."""
    given = [
        TraceRequest("never", 0.0, 10**6, 8, tenant="big"),
        TraceRequest("r", 0.0, 50, 8, tenant="small"),
    ]
    rows = tenants([recorded(tmp_path / "run", given=given)], ["a"])
    assert [(row["requests"], row["finished"], row["tokens"]) for row in rows] == [
        (1, "0", "0"),
        (1, "1", "58"),
    ]


def test_a_page_that_cannot_be_written_is_one_clear_error(run: Run, tmp_path: Path) -> None:
    """It names the file."""
    with pytest.raises(ConfigError, match=r"cannot write .*nowhere"):
        write_page([run], tmp_path / "nowhere" / "page.html")
