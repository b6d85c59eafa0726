"""`--prefill-schedule-interval` through the door: what it does to a replay, and where it is refused."""

import json
from pathlib import Path
from typing import Any

import pytest

from sundog.sim.trace.jsonl_rows import write_trace
from sundog.sim.trace.record import TraceRequest
from tests import warm


@pytest.fixture
def trace(tmp_path: Path) -> str:
    """One request that decodes, and one that comes while it does."""
    rows = [TraceRequest("a", 0.0, 100, 40), TraceRequest("b", 0.05, 100, 5)]
    write_trace(path := str(tmp_path / "two.jsonl"), rows, provenance="test")
    return path


def replayed(trace: str, *arguments: str) -> Any:
    return warm.run("sundog", "replay", trace, "--gpu", "h100", "--no-ranges", *arguments)


def figures(trace: str, *arguments: str) -> Any:
    done = replayed(trace, "--no-async-scheduling", "--json", *arguments)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_prompt_that_comes_beside_a_decode_waits_for_its_turn(trace: str) -> None:
    """Twenty steps after the last prompt; the answer that runs flows without a pause meanwhile."""
    at_once, in_turn = figures(trace), figures(trace, "--prefill-schedule-interval", "20")
    assert in_turn["queueing_s"]["p99"] > 20 * at_once["queueing_s"]["p99"]
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
