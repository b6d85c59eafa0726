"""Lockstep and decode runs are optimisations: decisions equal those without them.

The same holds when the scheduler gets only the numbers of tokens.
"""

import json
from dataclasses import replace
from functools import cache

import pytest

from sundog.actors.core.batch import Batch
from sundog.sim.schedule.decision_log import DecisionLog, dump
from sundog.sim.schedule.step_trace import parse_trace
from tests.core.drive import Driven, Log, Planned, Updated
from tests.core.traces import Trace, batches, countable, num_cases, random_trace

LOGGED = batches(num_cases(360), 60)
COUNTED = batches(num_cases(180), 60)


def logged(trace: Trace, version: str, lockstep: bool) -> list[str]:
    """The trace's log, as `sundog schedule` writes it."""
    return [dump(line) for line in DecisionLog(parse_trace(trace, version), lockstep=lockstep).run()]


def counted(seed: int) -> Trace:
    return countable(random_trace(seed))


@cache
def stepwise_log(seed: int) -> Log:
    """Of a world of counts, one step after another: what three laws compare with."""
    return Driven(counted(seed), counts=True).run()


def without_tokens(log: Log) -> Log:
    """The log of a world of tokens as a world of counts would have it."""

    def untold(batch: Batch) -> Batch:
        admitted = tuple(replace(admission, token_ids=None) for admission in batch.admitted)
        return replace(batch, admitted=admitted)

    return [
        replace(event, batch=untold(event.batch))
        if isinstance(event, Planned)
        else replace(event, num_cached=event.num_cached if event.is_at_rest else None)
        for event in log
    ]


@pytest.mark.long(keep=1, reason="more cases of the law whose first `make test` runs", moderate=True)
@pytest.mark.parametrize("seeds", LOGGED, ids=str)
def test_the_log_with_lockstep_is_the_log_without(seeds: range) -> None:
    """Any trace, any configuration: not one decision differs."""
    for seed in seeds:
        trace = random_trace(seed)
        version = "0.32" if seed % 3 == 0 else "0.33"
        assert logged(trace, version, True) == logged(trace, version, False), f"seed {seed}"


@pytest.mark.long(keep=1, reason="more cases of the law whose first `make test` runs", moderate=True)
@pytest.mark.parametrize("seeds", COUNTED, ids=str)
def test_where_tokens_are_counted_lockstep_changes_nothing(seeds: range) -> None:
    """Batches, ends and the pool are the same, to the order in which each is said."""
    for seed in seeds:
        with_lockstep = stepwise_log(seed)
        without = Driven(counted(seed), counts=True, lockstep=False).run()
        assert with_lockstep == without, f"seed {seed}"


@pytest.mark.long(keep=1, reason="more cases of the law whose first `make test` runs", moderate=True)
@pytest.mark.parametrize("seeds", COUNTED, ids=str)
def test_equal_lengths_give_equal_decisions_whether_tokens_are_seen_or_counted(seeds: range) -> None:
    """The same batches, block for block: a simulation schedules what the engine would."""
    for seed in seeds:
        seen = Driven(counted(seed)).run()
        assert stepwise_log(seed) == without_tokens(seen), f"seed {seed}"


@pytest.mark.long(keep=1, reason="more cases of the law whose first `make test` runs", moderate=True)
@pytest.mark.parametrize("seeds", COUNTED, ids=str)
def test_a_decode_run_leaves_what_its_steps_would_have_left(seeds: range) -> None:
    """Each batch, end and pool of a run with decode runs is found in the run without.

    Under async scheduling too, where the step after a run is planned when the run ends.
    """
    num_runs = [0, 0]
    for seed in seeds:
        stepwise = stepwise_log(seed)
        in_runs = Driven(counted(seed), counts=True, decode_runs=True).run()
        events = {(type(event), event.step): event for event in stepwise}
        for event in in_runs:
            if isinstance(event, Planned):
                num_runs[counted(seed)["config"]["async_scheduling"]] += event.batch.max_steps > 1
                event = replace(event, batch=replace(event.batch, max_steps=1))
            assert event == events[type(event), event.step], f"seed {seed}"
        assert [e.finished for e in in_runs if isinstance(e, Updated) and e.finished] == [
            e.finished for e in stepwise if isinstance(e, Updated) and e.finished
        ], f"seed {seed}"
    assert min(num_runs) > 0, "no trace had a run"


def test_decode_runs_save_most_steps_of_a_quiet_decode() -> None:
    """One request of 60 tokens: its prompt, and one run."""
    trace = random_trace(0)
    trace["config"] |= {
        "max_model_len": 96,
        "num_gpu_blocks": 100,
        "async_scheduling": False,
        "max_num_batched_tokens": 96,
    }
    trace["requests"] = [trace["requests"][0] | {"prompt": [5] * 10, "max_tokens": 60}]
    driven = Driven(countable(trace | {"events": []}), counts=True, decode_runs=True)
    log = driven.run()
    assert driven.ended and driven.ended[0].reason in ("stop", "length")
    assert sum(isinstance(event, Planned) for event in log) == 3


def test_a_prefill_takes_the_budget_before_a_decode_that_was_admitted_later() -> None:
    """As when an adaptive threshold, 1 token for two requests, is off (0) for three of them."""
    trace = random_trace(0)
    trace["config"] |= {
        "max_num_seqs": 2,
        "max_num_batched_tokens": 2,
        "num_gpu_blocks": 13,
        "block_size": 2,
        "max_model_len": 24,
        "enable_chunked_prefill": True,
        "policy": "fcfs",
        "watermark": 0.0,
        "long_prefill_token_threshold": 0,
        "long_prefill_token_threshold_adaptive": True,
        "async_scheduling": False,
        "max_num_active_seqs": None,
    }
    row = trace["requests"][0] | {"max_tokens": 4, "outputs": [5] * 4, "stop_token_ids": []}
    long = row | {"id": "long", "arrival_step": 0, "prompt": [5] * 7}
    short = row | {"id": "short", "arrival_step": 0, "prompt": [6]}
    third = row | {"id": "third", "arrival_step": 1, "prompt": [7] * 3}
    trace |= {"requests": [long, short, third], "events": []}
    with_lockstep, without = logged(trace, "0.33", True), logged(trace, "0.33", False)
    assert with_lockstep == without
    assert any('"sched":[["long",2]]' in line for line in with_lockstep)


@pytest.mark.parametrize("length", [15, 16])
def test_a_prompt_that_fills_the_context_gets_one_token_and_no_step_beyond(length: int) -> None:
    """Under async scheduling the next step is planned before that token is known."""
    trace = random_trace(0)
    trace["config"] |= {
        "max_model_len": 16,
        "max_num_batched_tokens": 16,
        "num_gpu_blocks": 6,
        "block_size": 4,
        "long_prefill_token_threshold": 0,
        "async_scheduling": True,
    }
    row = trace["requests"][0] | {"arrival_step": 0, "prompt": [5] * length, "max_tokens": 9, "outputs": []}
    trace |= {"requests": [row], "events": []}
    with_lockstep, without = logged(trace, "0.33", True), logged(trace, "0.33", False)
    assert with_lockstep == without
    num_computed = sum(tokens for line in with_lockstep for _, tokens in json.loads(line).get("sched", ()))
    assert num_computed <= 16
    assert sum('"finished":{"r0":"length"}' in line for line in with_lockstep) == 1
