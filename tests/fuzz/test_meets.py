"""Regressions of combined features, each with the input that found it."""

import math
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import sundog
from sundog.builds.replayed import play
from sundog.builds.simulated import deploy
from sundog.library.arguments import records_of
from sundog.sim.figures.compare import compare
from sundog.sim.figures.metrics import summarize
from sundog.sim.figures.sweep.played import measure
from sundog.sim.figures.sweep.played import played as sweep_played
from sundog.sim.figures.totals import NO_TERMS
from sundog.sim.record.columns import Columns
from sundog.sim.record.recorder import Recorder
from sundog.sim.record.rows import Rows, latencies
from sundog.sim.record.run_directory import open_run
from sundog.sim.show.comparison import print_comparison
from sundog.sim.show.html.facts import figures
from sundog.sim.show.summary_table import print_summary
from sundog.sim.trace.read import read_trace
from tests.core.policies.world import DOCS

CASES = Path(__file__).with_name("cases")
DECIDERS = Path(__file__).with_name("deciders.py")
ROOM: dict[str, Any] = {"num_gpu_blocks": 4000, "max_model_len": 8192}
ONE_EACH = ("prefill=h100:x1", "decode=h100:x1")
TOKEN_BYTES = 131072
"""Keys and values of a token of llama-3.1-8b: 32 layers of 2 x 8 heads of 128 numbers of 2 bytes."""


def played(trace: str, faults: str | None = None, decode_runs: bool = True, **options: Any) -> Recorder:
    """Replay a case as `sundog replay` does, its decodes by runs or step by step."""
    if faults is not None:
        options["faults"] = str(CASES / faults)
    target, reading, load, _, engine = records_of(options)
    rows = list(islice(read_trace(str(CASES / trace)), reading.limit))
    simulated = deploy(engine, target)
    simulated = replace(simulated, config=replace(simulated.config, decode_runs=decode_runs))
    return play(simulated, rows, load, engine.seed)


def column(columns: Columns, name: str) -> dict[str, Any]:
    """A column by the names of the requests."""
    return dict(zip(columns.request_id, getattr(columns, name), strict=True))


def mean_tpot_s(recorder: Recorder) -> float:
    rows = Rows.of(recorder.columns)
    values: Sequence[float] = latencies(rows, 0.0).tpot_s[rows.is_done].tolist()
    return math.fsum(values) / len(values)


def test_requests_that_are_held_while_all_replicas_are_drained_or_down_wait_for_one() -> None:
    """One replica dies, and the other is scaled away: the next request to leave is no reason to choose."""
    recorder = played(
        "steady.jsonl",
        "dead0.toml",
        **ROOM,
        replicas=2,
        scaler=f"{DECIDERS}:TwoThenOne",
        scale_every_s=2,
        scale_start_s=1,
        router=f"{DOCS}/routers/late_binding.py:LateBinding:most=2",
    )
    found = summarize(recorder)
    assert found.num_finished + found.num_failed + found.num_refused == found.num_requests == 200
    assert found.num_finished > 60 and max(recorder.columns.finish_s) > 37


@pytest.mark.long(reason="runs commands in processes of their own", moderate=True)
def test_a_run_whose_requests_move_leaves_a_folder(tmp_path: Path) -> None:
    """With the columns of moves; in Python and in a sweep, too."""
    options: dict[str, Any] = {"num_gpu_blocks": 600, "max_model_len": 8192, "replicas": 2}
    router = f"{DOCS}/routers/llumnix.py:Llumnix"
    result = sundog.replay(CASES / "mv2.jsonl", router=router, out=tmp_path / "run", **options)
    assert result.figures["num_finished"] == 30
    moves = result.requests["num_moves"].to_pylist()
    assert sum(moves) == result.figures["fleet"]["moves"]["num_moves"] > 0
    words = ["--vary", "max_num_seqs=64", "--replications", "2", "--jobs", "1", "--json", "--router", router]
    words += [word for name, value in options.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    command = [sys.executable, "-m", "sundog", "sweep", str(CASES / "mv2.jsonl"), *words]
    done = subprocess.run(
        [*command, "--out", str(tmp_path / "s")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert '"num_finished": 30.0' in done.stdout and len(list((tmp_path / "s").rglob("summary.json"))) == 1


def test_a_prompt_that_is_preempted_with_its_first_token_in_flight_is_computed_again() -> None:
    """Its blocks are gone, and without them there is nothing to hand over."""
    recorder = played(
        "pp.jsonl",
        pool=("prefill=a100-80gb:x2:num_gpu_blocks=260", "decode=b200:tp2x3"),
        num_gpu_blocks=260,
        max_model_len=4096,
        policy="mlfq",
        kv_transfer_gb_per_s=50,
        kv_transfer_latency_s=0.2,
        preempt_for_priority=True,
        max_num_seqs=20,
        seed=2,
    )
    columns, rows = recorder.columns, read_trace(str(CASES / "pp.jsonl"))
    assert set(columns.reason) == {"stop"} and sum(columns.num_preemptions) == 1
    lengths = {row.request_id: row.num_output_tokens for row in rows}
    assert column(columns, "num_output_tokens") == lengths


@pytest.mark.long(reason="replays many requests, or many random cases", moderate=True)
def test_a_fetched_request_is_admitted_although_those_before_it_may_be_overtaken_no_more() -> None:
    """Nothing runs, and it alone can make room; without the option as many finish."""
    options: dict[str, Any] = {
        "pool": ("prefill=b200:tp2x2", "decode=h100:tp2x2:num_gpu_blocks=260"),
        "num_gpu_blocks": 400,
        "max_model_len": 4096,
        "refuse_never_fit": True,
        "router": f"{DOCS}/routers/sticky_prefix.py:StickyPrefix",
        "kv_transfer_gb_per_s": 0.05,
        "max_num_seqs": 20,
        "seed": 1,
    }
    with_option = summarize(played("ov.jsonl", max_overtakes=1, **options))
    without = summarize(played("ov.jsonl", **options))
    assert with_option.num_finished == without.num_finished == 80


def on_the_host(trace: str) -> Recorder:
    return played(
        trace,
        num_gpu_blocks=300,
        max_model_len=4700,
        policy="priority",
        kv_offloading_size=8,
        kv_offloading_gb_per_s=0.05,
        preempt_for_priority=True,
    )


def test_an_urgent_request_waits_for_its_load_like_any_other() -> None:
    """Its prompt is there when its blocks have come over the link, not before."""
    columns = on_the_host("host.jsonl").columns
    again_s = column(columns, "first_token_s")["A2"] - column(columns, "arrival_s")["A2"]
    num_blocks = 4000 // 16 - 18  # the GPU still has 18
    front_s = 0.007
    assert again_s - front_s == pytest.approx(num_blocks * 16 * TOKEN_BYTES / 0.05e9, abs=0.01)
    assert set(on_the_host("host2.jsonl").columns.reason) == {"stop"}


def test_a_request_that_is_cancelled_between_two_pools_makes_room_for_the_next() -> None:
    """The router holds all others until something leaves."""
    found = summarize(
        played(
            "held.jsonl", "cancel1.toml", **ROOM, pool=ONE_EACH, router=f"{DECIDERS}:Global:most=1", seed=3
        )
    )
    assert (found.num_finished + found.num_aborted, found.num_requests) == (4, 4) and found.num_aborted


def test_the_next_turn_goes_when_an_attempt_of_the_turn_before_was_answered() -> None:
    """Not when the first attempt failed; and the program is whole."""
    recorder = played("sess.jsonl", "killr.toml", **ROOM)
    finish_s, arrival_s = column(recorder.columns, "finish_s"), column(recorder.columns, "arrival_s")
    assert column(recorder.columns, "reason") == {
        "t1": "error",
        "t1~2": "refused",
        "t1~3": "refused",
        "t1~4": "refused",
        "t1~5": "stop",
        "t2": "stop",
    }
    assert arrival_s["t2"] == finish_s["t1~5"] + 1.0
    program = summarize(recorder).program_s
    assert program is not None and program.count == 1
    assert program.mean == pytest.approx(finish_s["t2"] + recorder.front_end_s, abs=1e-9)


def test_the_end_of_one_straggler_leaves_the_other() -> None:
    """Ten times as long throughout, twenty for one second of it."""
    alone = mean_tpot_s(played("few.jsonl", "strag1.toml", **ROOM))
    both = mean_tpot_s(played("few.jsonl", "strag.toml", **ROOM))
    assert alone > 0.067 and alone < both < 1.2 * alone


@pytest.mark.parametrize("faults", ["killz.toml", "killz2.toml"], ids=["alone", "beside a straggler"])
def test_an_engine_that_was_killed_computes_nothing_more(faults: str) -> None:
    """A straggler that begins while its death is not noticed revives no step."""
    at_once = "request=0,response=0"  # it is killed within milliseconds of the request's arrival
    columns = played("one.jsonl", faults, **ROOM, async_scheduling=False, front_cost=at_once).columns
    assert (columns.reason, list(columns.num_output_tokens)) == (["error"], [1])
    assert columns.finish_s[0] == pytest.approx(5.009, abs=1e-9)


def test_the_blocks_of_a_dead_engine_cannot_be_fetched() -> None:
    """The transfer under way fails at its death; the prompt is computed again once the engine is up."""
    recorder = played("onep.jsonl", "deadkv.toml", **ROOM, pool=ONE_EACH, kv_transfer_gb_per_s=0.1)
    columns = recorder.columns
    assert columns.reason == ["stop"]
    moved_s = 4000 * TOKEN_BYTES / 0.1e9
    assert columns.first_token_s[0] > 30.3 + moved_s


@pytest.mark.long(reason="replays many requests, or many random cases", moderate=True)
def test_what_failed_is_counted_wherever_what_was_aborted_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In the summary, its table, sweeps, Python, the report and comparisons: 171 + 5 + 0 + 2 are 178."""
    trace = Path(__file__).parents[2] / "traces" / "chat-poisson-2rps-5min.jsonl.gz"
    options: dict[str, Any] = {"limit": 150, "pool": ("prefill=h100:x2", "decode=h100:x2")}
    result = sundog.replay(trace, out=tmp_path / "run", faults=str(CASES / "f.toml"), **options)
    names = ("num_requests", "num_finished", "num_aborted", "num_refused", "num_failed")
    counts = [result.figures[name] for name in names]
    assert counts == [178, 171, 5, 0, 2]
    recorder = played(str(trace), "f.toml", **options)
    summary = summarize(recorder)
    assert [getattr(summary, name) for name in names] == counts
    measured = measure(sweep_played(recorder, NO_TERMS, b""), set())
    assert [measured[name] for name in names[1:]] == counts[1:]
    print_summary(summary)
    assert "171 of 178 finished, 5 aborted, 2 failed" in capsys.readouterr().out
    sundog.replay(trace, out=tmp_path / "whole", **options)
    run, whole = open_run(tmp_path / "run"), open_run(tmp_path / "whole")
    (row,) = [each for each in figures([run, whole]) if each.name == "requests failed"]
    assert row.values == ["2", "0"]
    print_comparison(compare(run, whole), ("run", "whole"), Console(width=100))
    assert "2 failed in run, 0 in whole" in capsys.readouterr().out


def test_a_replica_that_comes_back_has_nothing_in_its_hosts_memory() -> None:
    """It was scaled away: its process, and all that this had, is gone."""
    recorder = played(
        "wave.jsonl",
        num_gpu_blocks=600,
        max_model_len=8192,
        replicas=2,
        scaler=f"{DECIDERS}:Wave",
        scale_every_s=5,
        scale_start_s=2,
        router=f"{DECIDERS}:Last",
        kv_offloading_size=8,
    )
    assert recorder.host_hits is not None and recorder.host_hits.hit_tokens == 0


def test_a_router_may_hold_requests_before_pools() -> None:
    """Late binding holds for the engines that compute prompts; what is computed is decoded at once."""
    router = f"{DOCS}/routers/late_binding.py:LateBinding:most=1"
    found = summarize(played("few.jsonl", **ROOM, pool=ONE_EACH, router=router))
    assert found.num_finished == found.num_requests == 20


def test_a_scaler_sees_the_work_of_a_decode_run_that_follows_an_empty_step() -> None:
    """The running request behind its own victim gets no step, and then a run, which is told when it ends."""
    options: dict[str, Any] = {
        "seed": 38,
        "max_model_len": 480,
        "num_gpu_blocks": 32,
        "replicas": 4,
        "router": "prefix-aware",
        "max_num_seqs": 3,
        "victim": "least-recompute",
        "engine_version": "0.32.0",
        "scaler": "hpa:down_s=1",
        "scale_least": 2,
        "scale_every_s": 1.0,
    }
    by_runs, by_steps = (
        summarize(played("victim_before_another.jsonl", decode_runs=runs, **options)).to_json()
        for runs in (True, False)
    )
    assert by_runs == by_steps
