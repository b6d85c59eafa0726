"""Every request ends, or is reported as one that cannot; no option leads to an endless loop."""

import json
import random
import sys
from pathlib import Path

import pytest

from sundog.actors.core.policies import POLICIES, has_urgency
from sundog.actors.core.step.progress import why_stalled
from sundog.actors.policy_file import find_policy
from sundog.cli import main
from sundog.sim.schedule.decision_log import DecisionLog
from sundog.sim.schedule.step_trace import parse_trace
from tests.actors.fakes import read
from tests.actors.test_policy_failures import replayed
from tests.actors.test_policy_file import written
from tests.core.policies.world import World
from tests.core.traces import Trace, num_cases, random_trace
from tests.sundog.test_runs import sundog
from tests.test_fates import ask, health, served

NAMES = [name for name in POLICIES if name != "decode-first"]
CIRCLES = (
    "is_dynamic = True\n"
    "    def urgency(self, request, view): return int(request.status.value == 'running')\n"
    "    def quota(self, request, view): return 1"
)
"""What waits is more urgent than what runs, so that one takes the other's place before it has a token."""


def mean_trace(seed: int, policy: str = "") -> Trace:
    """A random trace whose pool may be too small for its prompts, which may fill the context."""
    rng = random.Random(f"{seed} {policy}")
    trace = random_trace(seed)
    config = trace["config"]
    full = -(-config["max_model_len"] // config["block_size"])
    config["num_gpu_blocks"] = max(2, full + 1 - rng.choice([0, 0, 1, 2, full // 2]))
    config["scheduler_reserve_full_isl"] = rng.random() < 0.2
    if policy:
        config["policy"] = policy
        config["max_overtakes"] = rng.choice([0, 0, 1, 3])
        config["victim"] = rng.choice(["policy", "least-recompute"])
        config["preempt_for_priority"] = has_urgency(find_policy(policy)) and rng.random() < 0.5
    for row in trace["requests"]:
        row["arrival_time"] = float(rng.randint(0, 2))
        if rng.random() < 0.4:
            row["prompt"] = (row["prompt"] * config["max_model_len"])[: config["max_model_len"]]
    return trace


@pytest.mark.parametrize("policy", ["", *NAMES])
def test_every_trace_comes_to_an_end(policy: str) -> None:
    """All requests have ended, or the last lines say that it stalls, and the reason is one line."""
    num_stalls = 0
    for seed in range(num_cases(12)):
        trace = mean_trace(seed, policy)
        log = DecisionLog(parse_trace(trace))
        lines = log.run()
        assert lines[-1]["ev"] == "end", f"seed {seed}"
        stalls = lines[-2]["ev"] == "stall"
        assert stalls == (log.stalled is not None) == bool(log.state.requests), f"seed {seed}"
        if log.stalled is not None:
            num_stalls += 1
            assert "\n" not in log.stalled and any(
                word in log.stalled for word in ("can never run", "never is", "again and again")
            )
    assert num_stalls


def full_context(num_gpu_blocks: int, budget: int) -> Trace:
    """One prompt of exactly the context, in blocks of one token, without reserving it whole."""
    trace = random_trace(0)
    trace["config"] |= {
        "max_model_len": 8,
        "block_size": 1,
        "num_gpu_blocks": num_gpu_blocks,
        "max_num_batched_tokens": budget,
        "max_num_seqs": 4,
        "long_prefill_token_threshold": 0,
        "enable_chunked_prefill": True,
        "async_scheduling": False,
        "scheduler_reserve_full_isl": False,
        "watermark": 0.0,
        "max_num_active_seqs": None,
        "policy": "fcfs",
    }
    row = trace["requests"][0] | {"id": "full", "prompt": [5, 6, 7, 8, 9, 10, 11, 12], "arrival_step": 0}
    return trace | {"requests": [row], "events": []}


@pytest.mark.parametrize(
    ("num_gpu_blocks", "budget", "reason"),
    [
        (9, 8, None),
        (9, 4, "request full has 8 tokens, all of a context of 8, and is computed in chunks"),
        (8, 8, "request full has 8 tokens, which need 8 KV blocks, and there are 7: it can never run"),
        (7, 4, "request full has 8 tokens, which need 8 KV blocks, and there are 6: it can never run"),
    ],
)
def test_a_prompt_that_fills_the_context_ends_or_is_named(
    tmp_path: Path, num_gpu_blocks: int, budget: int, reason: str | None
) -> None:
    """By `sundog schedule`: one line says why, and the log ends like vLLM's logs of a stall."""
    trace, log = tmp_path / "full.trace.json", tmp_path / "log.jsonl"
    trace.write_text(json.dumps(full_context(num_gpu_blocks, budget)))
    done = sundog("schedule", trace, "-o", log)
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert done.returncode == 0 and lines[-1]["ev"] == "end"
    if reason is None:
        assert not done.stderr and {"full": "length"} in [line.get("finished") for line in lines]
    else:
        assert len(done.stderr.splitlines()) == 1 and reason in done.stderr, done.stderr
        assert lines[-2]["ev"] == "stall"


def test_an_empty_step_that_says_an_end_counts_as_one_towards_a_stall() -> None:
    """As in vLLM's loop: 51 in a row, that one included."""
    trace = full_context(num_gpu_blocks=6, budget=64)
    trace["config"] |= {"scheduler_reserve_full_isl": True, "enable_chunked_prefill": False}
    short = trace["requests"][0] | {"id": "short", "prompt": [5], "max_tokens": 1, "arrival_step": 0}
    trace["requests"] = [short, trace["requests"][0] | {"arrival_step": 2}]
    lines = DecisionLog(parse_trace(trace)).run()
    empty = [line for line in lines if line["ev"] == "sched" and not line["sched"]]
    assert empty[0]["finished_flush"] == ["short"] and len(empty) == 51
    assert lines[-2]["ev"] == "stall" and lines[-2]["waiting"] == ["full"]


@pytest.mark.long(reason="replays many requests, or many random cases", moderate=True)
def test_a_policy_that_goes_round_in_circles_ends_a_schedule(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With one line that names it, and exit code 2, too."""
    trace = mean_trace(0)
    trace["config"] |= {"policy": written(tmp_path, CIRCLES), "preempt_for_priority": True, "max_num_seqs": 1}
    (tmp_path / "trace.json").write_text(json.dumps(trace | {"events": []}))
    arguments = ["schedule", str(tmp_path / "trace.json"), "-o", str(tmp_path / "log.jsonl")]
    monkeypatch.setattr(sys, "argv", ["sundog", *arguments])
    with pytest.raises(SystemExit, match="2"):
        main()
    error = capsys.readouterr().err
    assert len(error.strip().splitlines()) == 1 and "none gets a token" in error, error
    assert "mine.py:Mine: " in error and "under policy" not in error


@pytest.mark.parametrize("policy", ["fcfs", "mlfq:quantum_steps=2", "prefill-first"])
def test_a_stall_names_one_of_our_own_policies(policy: str) -> None:
    """By the name that it was asked for by."""
    state = World(policy).state
    assert f"under policy {policy.partition(':')[0]}, and none gets a token" in why_stalled(state, None)


@pytest.mark.long(reason="replays many requests, or many random cases", moderate=True)
def test_a_policy_that_goes_round_in_circles_ends_a_simulation(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With one line that names it, and exit code 2."""
    policy = written(tmp_path, CIRCLES.replace("return 1", "return 24"))
    assert replayed(tmp_path, policy, "--preempt-for-priority", "--max-num-seqs", "1") == 2
    error = capsys.readouterr().err
    assert len(error.strip().splitlines()) == 1, error
    assert "mine.py:Mine: " in error and "none gets a token" in error and "under policy" not in error


async def test_a_served_policy_that_goes_round_in_circles_is_replaced(tmp_path: Path) -> None:
    """Every answer is whole, and /health says degraded."""
    policy = find_policy(written(tmp_path, CIRCLES))
    limits = {"max_num_seqs": 1, "preempt_for_priority": True}
    async with served(policy=policy, **limits) as (_, client):
        answers = [await ask(client, name, 5) for name in "abcd"]
        assert [(await read(answer)).num_tokens for answer in answers] == [5] * 4
        now = await health(client)
    assert now.status == "degraded" and "none gets a token" in now.reason
