"""`--prefill-schedule-interval` through the command line: its effect on a replay, and refusals."""

import json
from pathlib import Path
from typing import Any

import pytest

from sundog.sim.trace.jsonl_rows import write_trace
from sundog.sim.trace.record import TraceRequest
from tests import warm

NO_FRONT_END = ("--front-cost", "request=0,response=0")
"""What waits, waits for its turn alone."""


@pytest.fixture
def trace(tmp_path: Path) -> str:
    """One request that decodes, and one that comes while it does."""
    rows = [TraceRequest("a", 0.0, 100, 40), TraceRequest("b", 0.05, 100, 5)]
    write_trace(path := str(tmp_path / "two.jsonl"), rows, provenance="test")
    return path


def replayed(trace: str, *arguments: str) -> Any:
    return warm.run("sundog", "replay", trace, "--gpu", "h100", "--no-ranges", *NO_FRONT_END, *arguments)


def figures(trace: str, *arguments: str) -> Any:
    done = replayed(trace, "--no-async-scheduling", "--json", *arguments)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_prompt_that_comes_beside_a_decode_waits_for_its_turn(trace: str) -> None:
    """By hand: at once it waits for a step, in turn until the twentieth after the prompt at time 0."""
    at_once, in_turn = figures(trace), figures(trace, "--prefill-schedule-interval", "20")
    step_s, came_s = in_turn["tpot_s"]["p50"], 0.05
    # The first request waits for nothing, so that the second one's wait is twice the mean.
    assert 2 * at_once["queueing_s"]["mean"] < step_s
    assert 2 * in_turn["queueing_s"]["mean"] == pytest.approx(20 * step_s - came_s, abs=step_s)
    assert figures(trace, "--prefill-schedule-interval", "1") == at_once


def test_a_version_that_ignores_it_is_remarked(trace: str) -> None:
    """vLLM 0.32 has the option, and goes by it only where ranks go in step."""
    ignored = ("--engine-version", "0.32")
    done = replayed(trace, "--prefill-schedule-interval", "20", *ignored)
    assert done.returncode == 0 and "prefill_schedule_interval has no effect" in done.stderr
    assert figures(trace, "--prefill-schedule-interval", "20", *ignored) == figures(trace, *ignored)


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("--prefill-schedule-interval", "0"), "prefill-schedule-interval"),
        (("--max-num-partial-prefills", "2"), "No such option"),
        (("--max-long-partial-prefills", "1"), "No such option"),
        (
            (
                *("--model", "mixtral-8x7b", "-tp", "2", "--data-parallel-size", "2"),
                *("--enable-expert-parallel", "--prefill-schedule-interval", "2"),
            ),
            "prefill_schedule_interval cannot be combined with data-parallel ranks that share experts",
        ),
    ],
)
def test_what_vllm_does_not_have_or_is_not_simulated_is_refused(
    trace: str, arguments: tuple[str, ...], why: str
) -> None:
    """In one line that names it, with exit code 2."""
    done = replayed(trace, *arguments)
    assert done.returncode == 2 and why in done.stderr, done.stderr
