"""`prefill_schedule_interval`: prompts in one of N steps while requests decode, by hand from vLLM 0.33.

vLLM's own decisions with it, on random traces, are in `tests/golden/interval/`.
"""

from dataclasses import replace
from typing import Any

import pytest

from sundog import Policy, Request, View
from sundog.actors.core.batch import StepResult
from sundog.actors.core.config import ConfigError, SchedulerConfig
from sundog.actors.core.step.plan import plan
from sundog.actors.core.step.state import SchedulerState
from sundog.actors.core.step.update import update
from sundog.sim.schedule.decision_log import DecisionLog, dump
from sundog.sim.schedule.step_trace import parse_trace
from tests.core.drive import Driven, Planned
from tests.core.requests import scheduler_state, submit
from tests.core.traces import Trace, batches, countable, num_cases, random_trace


def step(state: SchedulerState) -> tuple[dict[str, int], str | None]:
    """Plan and end one step: the chunks of prompts in it, and the reason why the next request waits."""
    batch, blocked = plan(state)
    joined = {chunk.request_id for chunk in batch.chunks if chunk.samples}
    sampling = {name for name, request in state.running.items() if request.decodes_on_wire} | joined
    tokens = tuple((name, 9) for name in state.running if name in sampling and name not in batch.idle)
    update(state, StepResult(batch.step, (0.0,), tokens))
    state.check()
    chunks = {chunk.request_id: chunk.num_tokens for chunk in batch.chunks}
    return chunks, None if blocked is None else blocked.reason


def state_of(interval: int = 3, **fields: Any) -> SchedulerState:
    return scheduler_state(prefill_schedule_interval=interval, **fields)


def test_a_prompt_waits_until_the_interval_since_the_last_one_is_over() -> None:
    """Step 1 computes a prompt: steps 2 and 3 compute none, step 4 does."""
    state = state_of()
    state.add(submit("a", (5,) * 4, 30))
    assert step(state) == ({"a": 4}, None)
    state.add(submit("b", (6,) * 4, 30))
    assert step(state) == ({}, "prefill interval")
    assert step(state) == ({}, "prefill interval")
    assert step(state) == ({"b": 4}, None)
    state.add(submit("c", (7,) * 4, 30))
    assert [step(state) for _ in range(3)] == [({}, "prefill interval")] * 2 + [({"c": 4}, None)]


class PromptsFirst(Policy):
    """Decodes pause while any prompt is unfinished."""

    pauses = True

    def quota(self, request: Request, view: View) -> int | None:
        others = [each for each in view.running.values() if not each.decodes_on_wire]
        return 0 if others and request.decodes_on_wire else None


def test_prompts_are_not_held_back_for_decodes_that_a_policy_pauses() -> None:
    """A prompt of 10 tokens in chunks of 5: held back for one empty step, not for ever."""
    state = scheduler_state(PromptsFirst(), prefill_schedule_interval=9, max_num_batched_tokens=5)
    state.add(submit("a", (5,) * 4, 30))
    state.add(submit("b", (6,) * 10, 30))
    assert [step(state)[0] for _ in range(6)] == [{"a": 4, "b": 1}, {}, {"b": 5}, {}, {"b": 4}, {}]


def test_chunks_of_a_running_prompt_are_held_back_too() -> None:
    """A prompt of 10 tokens beside one decode, in steps of 5 tokens: 4 tokens in every third step."""
    state = state_of(max_num_batched_tokens=5)
    state.add(submit("a", (5,) * 4, 30))
    step(state)
    for _ in range(2):
        step(state)
    state.add(submit("b", (6,) * 10, 30))
    chunks = [step(state)[0] for _ in range(7)]
    assert chunks == [{"b": 4}, {}, {}, {"b": 4}, {}, {}, {"b": 2}]


def test_nothing_is_held_back_while_nothing_decodes() -> None:
    """A prompt in chunks alone goes on step by step."""
    state = state_of(max_num_batched_tokens=4)
    state.add(submit("a", (5,) * 12, 30))
    assert [step(state)[0] for _ in range(3)] == [{"a": 4}] * 3


def test_a_full_engine_holds_nothing_back() -> None:
    """A step that lets prompts in and leaves one waiting ends the holding, until one leaves none."""
    state = state_of(max_num_batched_tokens=5)
    state.add(submit("a", (5,) * 4, 30))
    step(state)
    for name in "bc":
        state.add(submit(name, (6,) * 12, 30))
    assert [step(state) for _ in range(2)] == [({}, "prefill interval")] * 2
    assert step(state) == ({"b": 4}, "token budget")
    assert step(state) == ({"b": 4}, "token budget"), "c waits, the engine is full: b goes on at once"
    state.abort(("c",))
    assert step(state)[0] == {"b": 4}, "that c is gone is known once a step has looked"
    state.add(submit("d", (7,) * 4, 30))
    assert step(state) == ({}, "prefill interval")


def test_the_last_token_of_a_cached_prompt_is_not_held_back() -> None:
    """It is computed as a decode is; the interval does not begin again with it."""
    state = state_of()
    state.add(submit("a", (5,) * 5, 30))
    step(state)
    state.add(submit("b", (5,) * 5, 30))
    assert step(state) == ({"b": 1}, None)
    state.add(submit("c", (7,) * 4, 30))
    assert [step(state)[0] for _ in range(2)] == [{}, {"c": 4}]


@pytest.mark.parametrize("fields", [{"engine_version": "0.32"}, {"prefill_schedule_interval": 1}])
def test_without_an_interval_or_under_032_prompts_are_computed_at_once(fields: dict[str, Any]) -> None:
    """vLLM 0.32 has the option for ranks that go in step, and ignores it otherwise."""
    state = scheduler_state(**({"prefill_schedule_interval": 3} | fields))
    for name in "abc":
        state.add(submit(name, (ord(name),) * 4, 30))
        assert step(state) == ({name: 4}, None)


def test_an_interval_below_one_is_refused() -> None:
    """By name."""
    with pytest.raises(ConfigError, match="prefill_schedule_interval is 0: it must be at least 1"):
        SchedulerConfig(prefill_schedule_interval=0)


def held(seed: int) -> Trace:
    """A random trace with an interval."""
    trace = random_trace(seed)
    trace["config"]["prefill_schedule_interval"] = 2 + seed % 4
    return trace


@pytest.mark.long(reason="replays many requests, or many random cases", moderate=True)
@pytest.mark.parametrize("seeds", batches(num_cases(120), 60), ids=str)
def test_lockstep_changes_nothing_under_an_interval(seeds: range) -> None:
    """Nor do decode runs: each of their batches is that of single steps."""
    num_held = 0
    for seed in seeds:
        parsed = parse_trace(held(seed))
        logs = [[dump(line) for line in DecisionLog(parsed, lockstep=way).run()] for way in (True, False)]
        assert logs[0] == logs[1], f"seed {seed}"
        num_held += logs[0] != [dump(line) for line in DecisionLog(parse_trace(random_trace(seed))).run()]
        counted = countable(held(seed))
        single = {e.step: e.batch for e in Driven(counted, counts=True).run() if isinstance(e, Planned)}
        for event in Driven(counted, counts=True, decode_runs=True).run():
            if isinstance(event, Planned):
                assert replace(event.batch, max_steps=1) == single[event.step], f"seed {seed}"
    assert num_held > len(seeds) // 10, "hardly any trace held a prompt back"
