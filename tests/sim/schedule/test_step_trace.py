"""Inputs of `sundog schedule`, and one-line refusals of invalid ones."""

import gzip
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sundog.cli import main
from tests.core.traces import EOS, Trace, random_trace


def small_trace() -> Trace:
    """Two requests, one abort, no hurry."""
    config = random_trace(0)["config"] | {
        "max_num_seqs": 4,
        "max_num_batched_tokens": 16,
        "max_model_len": 16,
        "num_gpu_blocks": 20,
        "block_size": 4,
        "async_scheduling": False,
        "enable_chunked_prefill": True,
        "long_prefill_token_threshold": 0,
    }
    row = {"arrival_step": 0, "arrival_time": 0, "prompt": [5, 6], "outputs": [7, EOS], "max_tokens": 4}
    return {
        "config": config,
        "requests": [{"id": "a", **row}, {"id": "b", **row, "outputs": [7] * 4}],
        "events": [{"step": 1, "when": "executing", "op": "abort", "ids": ["b"]}],
        "note": "a trace may say what it likes of itself",
    }


def schedule(source: Path, target: Path) -> int:
    """The exit code of the command line."""
    with pytest.MonkeyPatch.context() as patch, pytest.raises(SystemExit) as done:
        patch.setattr(sys, "argv", ["sundog", "schedule", str(source), "-o", str(target)])
        main()
    code = done.value.code
    assert isinstance(code, int)
    return code


def run(trace: object, folder: Path) -> list[dict[str, Any]]:
    """The log that the command line writes of a trace."""
    source, target = folder / "t.json.gz", folder / "log.jsonl"
    source.write_bytes(gzip.compress(json.dumps(trace).encode()))
    assert schedule(source, target) == 0
    return [json.loads(line) for line in target.read_text().splitlines()]


def of(kind: str, log: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [line for line in log if line["ev"] == kind]


def put(*path: str | int, value: object) -> Callable[[Trace], None]:
    """A change of one field."""

    def change(trace: Any) -> None:
        for key in path[:-1]:
            trace = trace[key]
        trace[path[-1]] = value

    return change


def drop(*path: str | int) -> Callable[[Trace], None]:
    def change(trace: Any) -> None:
        for key in path[:-1]:
            trace = trace[key]
        del trace[path[-1]]

    return change


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (drop("config"), "the trace has no config"),
        (drop("requests"), "the trace has no requests"),
        (put("event", value=[]), "field 'event'. Did you mean events?"),
        (drop("config", "block_size"), "config has no block_size"),
        (
            put("config", "blocksize", value=4),
            "config.blocksize is no field of a trace by steps. Did you mean",
        ),
        (put("config", "max_num_seqs", value="many"), "config.max_num_seqs is 'many': it must be a whole"),
        (put("config", "max_num_seqs", value=True), "config.max_num_seqs is True: it must be a whole"),
        (put("config", "max_num_seqs", value=0), "max_num_seqs is 0: it must be at least 1"),
        (
            put("config", "num_gpu_blocks", value=None),
            "config.num_gpu_blocks is None: it must be a whole number",
        ),
        (put("config", "num_gpu_blocks", value=2**63), "it must be at most 16,777,216"),
        (put("config", "num_gpu_blocks", value=10**30), "it must be at most 16,777,216"),
        (put("config", "policy", value="fcsf"), "Did you mean fcfs"),
        (put("config", "hash_algo", value="md5"), "prefix_caching_hash_algo is 'md5'"),
        (put("config", "watermark", value=None), "config.watermark is None: it must be a number"),
        (put("requests", value={}), "requests is '{}': it must be a list"),
        (put("requests", 1, value=7), "requests[1] is '7': it must be an object"),
        (drop("requests", 1, "prompt"), "requests[1] has no prompt"),
        (put("requests", 1, "prompt", value=[]), "requests[1].prompt is empty"),
        (put("requests", 1, "prompt", value=[1, "x"]), "requests[1].prompt is 'x': it must be a whole"),
        (put("requests", 1, "prompt", value=[1] * 17), "requests[1].prompt has 17 tokens"),
        (put("requests", 0, "max_tokens", value=0), "requests[0].max_tokens is 0: it must be at least 1"),
        (put("requests", 0, "cache_salt", value="\ud800"), "requests[0].cache_salt is '\\ud800'"),
        (put("requests", 0, "priority", value=[]), "requests[0].priority is []: it must be a whole number"),
        (put("requests", 0, "ignore_eos", value=0), "requests[0].ignore_eos is 0: it must be true or false"),
        (
            put("requests", 0, "stop_token_ids", value=""),
            "requests[0].stop_token_ids is '': it must be a list",
        ),
        (put("events", value=0), "events is '0': it must be a list"),
        (put("requests", 0, "arrival_step", value=1.5), "requests[0].arrival_step is 1.5"),
        (put("requests", 0, "arrival_time", value=float("nan")), "NaN is not a JSON number"),
        (put("requests", 0, "max_token", value=3), "requests[0].max_token is no field of a trace by steps"),
        (put("requests", 0, "id", value="b"), "requests[1].id is 'b', like an earlier request's"),
        (put("events", 0, "op", value="cancel"), "events[0].op is 'cancel': known are abort and"),
        (put("events", 0, "when", value="later"), "events[0].when is 'later': it must be input or"),
        (drop("events", 0, "ids"), "events[0] has no ids"),
        (put("events", 0, "ids", value="b"), "events[0].ids is 'b': it must be a list"),
        (put("events", 0, "step", value=-1), "events[0].step is -1: it must be at least 0"),
        (put("events", 0, "op", value="reset_prefix_cache"), "a reset is taken before a plan"),
    ],
)
def test_a_malformed_trace_is_one_line_that_names_the_field(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], change: Callable[[Trace], None], reason: str
) -> None:
    """And leaves no log."""
    trace = small_trace()
    change(trace)
    source, target = tmp_path / "t.json", tmp_path / "log.jsonl"
    source.write_text(json.dumps(trace))
    assert schedule(source, target) == 2
    output = capsys.readouterr()
    assert not output.out
    assert reason in output.err and output.err.count("\n") == 1, output.err
    assert "t.json" in output.err
    assert not target.exists()


def test_what_is_no_json_is_refused_by_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With the place where it stops being JSON."""
    path = tmp_path / "broken.json"
    path.write_text('{"config": ')
    assert schedule(path, tmp_path / "log") == 2
    error = capsys.readouterr().err
    assert "broken.json" in error and "line 1" in error and error.count("\n") == 1
    assert schedule(Path("traces/chat-poisson-2rps-5min.jsonl.gz"), tmp_path / "log") == 2
    assert "chat-poisson-2rps-5min.jsonl.gz is no trace in the golden format" in capsys.readouterr().err


def test_an_id_that_is_named_twice_is_aborted_once(tmp_path: Path) -> None:
    """And ids that are unknown, or of requests that have ended, are ignored as vLLM ignores them."""
    trace = small_trace()
    trace["events"][0]["ids"] = ["b", "b", "nobody"]
    trace["events"].append({"step": 2, "when": "executing", "op": "abort", "ids": ["a", "b"]})
    aborts = of("abort", run(trace, tmp_path))
    assert [(line["step"], line["aborted"]) for line in aborts] == [(1, ["b"]), (2, [])]


@pytest.mark.parametrize("async_scheduling", [False, True])
def test_an_executing_event_waits_for_a_step_and_is_dropped_without_one(
    tmp_path: Path, async_scheduling: bool
) -> None:
    """It never makes the number of the step jump; what comes before a plan does."""
    trace = small_trace()
    trace["config"]["async_scheduling"] = async_scheduling
    trace["requests"][1]["arrival_step"] = 30
    trace["events"] = [
        {"step": 20, "when": "executing", "op": "abort", "ids": ["a", "b"]},
        {"step": 40, "when": "input", "op": "abort", "ids": ["a"]},
        {"step": 90, "when": "executing", "op": "abort", "ids": ["b"]},
    ]
    log = run(trace, tmp_path)
    found = [(line["step"], line["when"], line["aborted"]) for line in of("abort", log)]
    assert found == [(30, "executing", ["b"]), (40, "input", [])]
    assert log[-1]["step"] == 41, "a step without work is a step"


def test_an_executing_event_stands_before_the_update_of_the_step_that_is_popped(tmp_path: Path) -> None:
    """Under async scheduling that is not the step that was planned last."""
    trace = small_trace()
    trace["config"]["async_scheduling"] = True
    trace["requests"][1]["outputs"] = [7] * 9
    trace["requests"][1]["max_tokens"] = 9
    trace["events"][0]["step"] = 4
    log = [(line["ev"], line["step"]) for line in run(trace, tmp_path)]
    at = log.index(("abort", 4))
    assert log[at - 1] == ("sched", 5) and log[at + 1] == ("update", 4)


@pytest.mark.parametrize("async_scheduling", [False, True])
def test_a_stall_is_logged_after_the_updates_of_steps_that_gave_out_nothing(
    tmp_path: Path, async_scheduling: bool
) -> None:
    """The prompt needs more blocks than there are: 51 steps compute nothing, then the run ends."""
    trace = small_trace()
    trace["config"] |= {"num_gpu_blocks": 3, "async_scheduling": async_scheduling}
    trace["requests"] = trace["requests"][:1]
    trace["requests"][0]["prompt"] = [5] * 12
    trace["events"] = []
    log = run(trace, tmp_path)
    assert len(of("sched", log)) == len(of("update", log)) == 51
    assert [(line["ev"], line["step"]) for line in log[-4:]] == [
        ("sched", 50),
        ("update", 50),
        ("stall", 50),
        ("end", 50),
    ]


def test_an_adaptive_threshold_over_nothing_is_off(tmp_path: Path) -> None:
    """Two requests, a budget for both: neither is cut."""
    trace = small_trace()
    trace["config"] |= {"long_prefill_token_threshold_adaptive": True, "max_num_batched_tokens": 12}
    for token, row in enumerate(trace["requests"], 5):
        row["prompt"] = [token] * 7
    first = of("sched", run(trace, tmp_path))[0]
    assert first["sched"] == [["a", 7], ["b", 5]]


def test_a_reset_is_refused_while_blocks_are_held_and_done_in_order_with_aborts(tmp_path: Path) -> None:
    """An abort before it in the same step lets it succeed."""
    trace = small_trace()
    trace["requests"] = [trace["requests"][1]]
    reset = {"when": "input", "op": "reset_prefix_cache", "reset_running": False}
    abort = {"when": "input", "op": "abort", "ids": ["b"]}
    trace["events"] = [{"step": 1, **reset}, {"step": 2, **reset}, {"step": 2, **abort}, {"step": 2, **reset}]
    assert [line["ok"] for line in of("reset", run(trace, tmp_path))] == [False, False, True]
