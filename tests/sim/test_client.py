"""Clients in sessions, and a limit on unfinished requests."""

import math

import pytest

from sundog.actors.core.config import ConfigError
from sundog.sim.figures.metrics import summarize
from sundog.sim.record.recorder import Recorder
from sundog.sim.replay import replay
from sundog.sim.trace.record import TraceRequest
from sundog.sim.workload.read import read_spec
from sundog.sim.workload.resample import retimed
from tests.actors.fakes import engine_config
from tests.sim.test_replay import digest
from tests.sim.toy import CAPACITY, COST

CHAT, SESSIONS = map(read_spec, ("traces/chat-poisson-2rps-5min.toml", "traces/sessions-diurnal-10min.toml"))


def run(
    rows: list[TraceRequest],
    max_concurrency: int | None = None,
    timeout_s: float | None = None,
    decode_runs: bool = True,
) -> Recorder:
    limits = {"max_model_len": 160, "num_gpu_blocks": CAPACITY.num_blocks}
    config = engine_config(decode_runs=decode_runs, **limits)
    return replay(rows, config, COST, CAPACITY, max_concurrency=max_concurrency, client_timeout_s=timeout_s)


def test_clients_give_up_what_takes_too_long() -> None:
    """At that moment, running or waiting; the others go on, and runs of steps change nothing."""
    rows = [TraceRequest(f"q{n}", n * 0.01, 20, 5 if n % 3 else 120) for n in range(90)]
    patient, hasty = run(rows), run(rows, timeout_s=0.15)
    columns = hasty.columns
    assert set(patient.columns.reason) == {"stop"}
    assert len(columns) == 90 and set(columns.reason) == {"stop", "abort"}
    took = [end - begin for begin, end in zip(columns.arrival_s, columns.finish_s, strict=True)]
    for seconds, reason in zip(took, columns.reason, strict=True):
        # The step under way ends first.
        assert seconds <= 0.15 if reason == "stop" else 0.15 <= seconds < 0.2
    assert digest(hasty) == digest(run(rows, timeout_s=0.15, decode_runs=False))


def test_a_later_turn_comes_after_one_that_was_given_up() -> None:
    """A session goes on, as with an answer that was refused."""
    rows = [
        TraceRequest("a", 1.0, 20, 120, session="s"),
        TraceRequest("b", 1.0, 30, 5, session="s", after=("a",), pause_s=0.5),
    ]
    columns = run(rows, timeout_s=0.1).columns
    assert list(columns.reason) == ["abort", "stop"]
    assert columns.arrival_s[1] == columns.finish_s[0] + 0.5


def test_a_later_turn_comes_its_pause_after_the_answer() -> None:
    """Not at the instant in the trace, which is the earliest possible."""
    rows = [
        TraceRequest("a", 1.0, 20, 50, session="s"),
        TraceRequest("b", 1.5, 30, 5, session="s", after=("a",), pause_s=0.5),
        TraceRequest("x", 9.0, 30, 5),
        TraceRequest("c", 500.0, 40, 5, session="s", after=("b",), pause_s=0.25),
    ]
    columns = run(rows).columns
    arrival = dict(zip(columns.request_id, columns.arrival_s, strict=True))
    finish = dict(zip(columns.request_id, columns.finish_s, strict=True))
    assert arrival["a"] == 1.0 and arrival["x"] == 9.0
    assert arrival["b"] == finish["a"] + 0.5 > 1.5
    assert arrival["c"] == 500.0, "it had ended long before: the past is now"


def test_a_row_after_several_waits_for_the_last_of_them() -> None:
    """Two agents that ran side by side are joined; one that has long ended holds nobody up."""
    rows = [
        TraceRequest("plan", 1.0, 20, 50, session="p"),
        TraceRequest("long", 1.0, 20, 90, session="a", after=("plan",)),
        TraceRequest("short", 1.0, 30, 5, session="b", after=("plan",), pause_s=0.25),
        TraceRequest("join", 1.0, 40, 5, session="p", after=("short", "plan", "long"), pause_s=0.5),
        TraceRequest("late", 9.0, 40, 5, session="p", after=("short", "join")),
    ]
    columns = run(rows).columns
    arrival = dict(zip(columns.request_id, columns.arrival_s, strict=True))
    finish = dict(zip(columns.request_id, columns.finish_s, strict=True))
    assert arrival["long"] == finish["plan"] and arrival["short"] == finish["plan"] + 0.25
    assert arrival["join"] == max(finish["long"], finish["short"]) + 0.5
    assert finish["join"] < 9.0 == arrival["late"]


def test_nobody_is_lost_whoever_waits_for_whom() -> None:
    """Sessions under a cap: every row is asked and finished, at most so many at once."""
    rows = [
        row._replace(
            num_prompt_tokens=row.num_prompt_tokens % 60 + 2,
            num_output_tokens=9,
            hash_ids=None,
            hash_block_tokens=0,
            arrival_s=row.arrival_s / 200,
            pause_s=row.pause_s / 200,
        )
        for row in SESSIONS.requests(0)[:300]
    ]
    columns = run(rows, 7).columns
    assert set(columns.request_id) == {row.request_id for row in rows}
    assert set(columns.reason) == {"stop"}
    edges = sorted([(t, 1) for t in columns.arrival_s] + [(t, -1) for t in columns.finish_s])
    level = most = 0
    for _, change in edges:
        level += change
        most = max(most, level)
    assert most == 7


def test_a_cap_keeps_the_server_full_and_no_fuller() -> None:
    """All at once with a cap: the next comes in the instant in which one ends."""
    rows = [TraceRequest(str(i), 0.0, 20, 10) for i in range(50)]
    columns = run(rows, 4).columns
    assert sorted(columns.arrival_s)[4:] == sorted(columns.finish_s)[:-4]
    assert summarize(run(rows, 50)).duration_s < summarize(run(rows, 4)).duration_s


def test_whoever_is_refused_makes_room() -> None:
    """A prompt that can never fit neither holds a place nor stops its session."""
    rows = [
        TraceRequest("big", 0.0, 10_000, 5, session="s"),
        TraceRequest("next", 0.0, 20, 5, session="s", after=("big",), pause_s=1.0),
        TraceRequest("other", 0.0, 20, 5),
    ]
    recorder = run(rows, 1)
    assert recorder.refusals.total == 1
    ended = dict(zip(recorder.columns.request_id, recorder.columns.reason, strict=True))
    assert ended.pop("big") == "refused"
    assert sorted(ended) == ["next", "other"] and "refused" not in ended.values()


def test_other_arrivals_keep_the_order_and_the_rate() -> None:
    """Poisson from a seed, or all at once; later turns have no instants of their own."""
    rows = CHAT.requests(0)
    again = list(retimed(rows, 10.0, seed=1))
    assert again == list(retimed(rows, 10.0, seed=1)) != list(retimed(rows, 10.0, seed=2))
    assert [r.request_id for r in again] == [r.request_id for r in rows]
    assert len(again) / again[-1].arrival_s == pytest.approx(10.0, rel=0.1)
    assert {r.arrival_s for r in retimed(rows, math.inf, seed=0)} == {0.0}
    with pytest.raises(ConfigError, match="comes after"):
        list(retimed(SESSIONS.requests(0), 1.0, seed=0))
