"""Logs of steps: what a step computed and took, and cost models from them, by the command line."""

import json
import random
import re
from pathlib import Path
from statistics import pvariance
from typing import Any

import pytest

from sundog.actors.config import EngineConfig, SchedulerConfig
from sundog.actors.messages import Capacity
from sundog.sim.cost.calibrated import InRange
from sundog.sim.cost.cost_file import read_cost
from sundog.sim.record.journal import Journal, observations
from sundog.sim.record.step_log import Sizes, StepLog
from sundog.sim.replay import replay
from tests.live import EMULATED, Stream, live
from tests.sim.test_replay import COST, random_trace
from tests.sundog.test_runs import refused, sundog

TRACE = "traces/chat-poisson-2rps-5min.jsonl.gz"
TINY = SchedulerConfig(max_num_seqs=12, max_num_batched_tokens=256, max_model_len=280)


def rows_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def logged(folder: Path, seed: int, **fields: Any) -> tuple[list[dict[str, Any]], Journal]:
    """A replay in which blocks run out, logged twice: by its steps, and whole."""
    path, journal = folder / f"{seed}-{len(fields)}.jsonl", Journal()
    config = EngineConfig(TINY, **fields)
    replay(random_trace(seed), config, COST, Capacity(40, 16), listeners=[journal, StepLog(path)])
    return rows_of(path), journal


def test_sums_of_squares_follow_growth() -> None:
    """As if every size were kept and squared anew."""
    rng, sizes, kept = random.Random(1), Sizes(), list[int]()
    for _ in range(300):
        match rng.choice("agr"):
            case "a":
                kept.append(rng.randint(0, 900))
                sizes.add(kept[-1])
            case "g":
                kept = [size + 1 for size in kept]
                sizes.grow()
            case "r" if kept:
                sizes.remove(kept.pop(rng.randrange(len(kept))))
        assert (sizes.num, sizes.total) == (len(kept), sum(kept))
        assert sizes.variance == pytest.approx(pvariance(kept) if kept else 0.0)


@pytest.mark.long(reason="replays many requests, or many random cases", moderate=True)
def test_a_row_is_the_work_of_its_step(tmp_path: Path) -> None:
    """The same as from the batches, preemptions and idle steps included."""
    for seed in range(5):
        rows, journal = logged(tmp_path, seed, decode_runs=False)
        seen = list(observations(journal.outputs))
        assert len(rows) == len(seen)
        for row, (_, work, seconds) in zip(rows, seen, strict=True):
            scheduled = row["scheduled_requests"]
            assert scheduled["num_decode_requests"] == work.num_decodes
            decode_kv = work.decode_context_tokens - work.num_decodes
            assert scheduled["sum_decode_kv_tokens"] == decode_kv
            assert scheduled["num_prefill_requests"] == len(work.chunks)
            assert scheduled["sum_prefill_tokens"] == sum(new for new, _ in work.chunks)
            assert scheduled["sum_prefill_kv_tokens"] == sum(before for _, before in work.chunks)
            assert row["wall_time"] == seconds


@pytest.mark.long(reason="replays many requests, or many random cases", moderate=True)
def test_runs_of_steps_give_the_rows_of_single_steps(tmp_path: Path) -> None:
    """One event for many steps says of each what it was."""
    for seed in range(3):
        (tmp_path / str(seed)).mkdir()
        single, _ = logged(tmp_path, seed, decode_runs=False)
        runs, _ = logged(tmp_path / str(seed), seed, decode_runs=True)
        assert [row["scheduled_requests"] for row in runs] == [row["scheduled_requests"] for row in single]
        assert [row["wall_time"] for row in runs] == pytest.approx([row["wall_time"] for row in single])


def test_what_waits_is_counted_and_all_leave(tmp_path: Path) -> None:
    """New requests by their prompts, preempted ones as decodes; in the end nobody waits."""
    rows, journal = logged(tmp_path, 1)
    queued = [row["queued_requests"] for row in rows]
    assert max(each["num_prefill_requests"] for each in queued) > 3
    preempted = any(output.batch.preempted for output in journal.outputs)
    assert preempted == any(each["num_decode_requests"] for each in queued)
    last = {name: value for name, value in queued[-1].items() if value}
    assert not last


@pytest.mark.long(reason="runs commands in processes of their own", moderate=True)
def test_a_log_of_steps_gives_back_the_cost_model(tmp_path: Path) -> None:
    """A replay by the fitted file takes the time of the one that was logged; its range is kept, and left."""
    log, cost = tmp_path / "steps.jsonl.gz", tmp_path / "cost.toml"
    limit = ("--limit", 150, "--json")
    done = sundog("replay", TRACE, *limit, "--step-log", log)
    assert done.returncode == 0, done.stderr
    fitted = sundog("calibrate", log, "-o", cost)
    assert fitted.returncode == 0 and "explains a step to" in fitted.stderr, fitted.stderr
    again = sundog("replay", TRACE, *limit, "--cost", cost)
    assert "outside the measured range" not in again.stderr
    for name in ("ttft_s", "tpot_s", "e2e_s"):
        first, second = (json.loads(run.stdout)[name]["mean"] for run in (done, again))
        assert second == pytest.approx(first, rel=0.01), name
    model = read_cost(cost)
    assert isinstance(model, InRange) and model.measured.tokens > 1000
    beyond = sundog("replay", TRACE, *limit, "--cost", cost, "--request-rate", "inf")
    assert re.search(r"its decodes: .* outside the measured range", beyond.stderr), beyond.stderr
    refused(sundog("replay", TRACE, *limit, "--step-log", log), "exists", "never written over")


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ({"version": 2}, ("line 2", "version 1")),
        ({"version": 1, "wall_time": "0.1", "scheduled_requests": {}}, ("line 2", "wall_time")),
        (
            {"version": 1, "wall_time": 0.1, "scheduled_requests": {"num_decode_requests": -1}},
            ("line 2", "num_decode_requests is -1"),
        ),
        (None, ("1 steps with a duration",)),
    ],
)
def test_what_is_no_log_of_steps_is_refused(
    tmp_path: Path, line: dict[str, object] | None, words: tuple[str, ...]
) -> None:
    """By line and field; a few steps are not enough."""
    log = tmp_path / "steps.jsonl"
    good = {"version": 1, "wall_time": 0.01, "scheduled_requests": {"num_decode_requests": 3}}
    log.write_text("".join(json.dumps(row) + "\n" for row in (good, line) if row is not None))
    refused(sundog("calibrate", log, "-o", tmp_path / "cost.toml"), *words)


@pytest.mark.long(reason="replays many requests, or many random cases", moderate=True)
def test_a_server_logs_its_steps(tmp_path: Path) -> None:
    """On the wall clock: a step for each token, with its time."""
    log = tmp_path / "steps.jsonl"
    with live(*EMULATED, "--step-log", str(log)) as server:
        assert len(Stream(server, max_tokens=30, ignore_eos=True).whole()) > 5
        assert server.stop() == 0
    rows = rows_of(log)
    decodes = [row for row in rows if row["scheduled_requests"]["num_decode_requests"] == 1]
    assert len(decodes) >= 29 and all(0.001 < row["wall_time"] < 2 for row in decodes)
    assert [row["counter_id"] for row in rows] == list(range(len(rows)))
