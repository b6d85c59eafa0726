"""Prefixes of models that keep states, worked by hand from vLLM's `_mamba_block_aligned_split` (0.33).

Blocks hold four tokens; a step holds 64 unless it says less.
"""

from dataclasses import replace
from typing import Any

import pytest

from sundog.actors.core.batch import StepResult
from sundog.actors.core.config import ConfigError, HostMemory, SchedulerConfig
from sundog.actors.core.step.plan import plan
from sundog.actors.core.step.state import SchedulerState
from sundog.actors.core.step.update import update
from sundog.sim.schedule.decision_log import DecisionLog, dump
from sundog.sim.schedule.step_trace import parse_trace
from tests.core.drive import Driven, Planned
from tests.core.requests import scheduler_state, submit
from tests.core.traces import Trace, batches, countable, num_cases, random_trace

FOURTEEN = tuple(range(100, 114))
PARTS_AT_NINE = (*FOURTEEN[:9], 1, 2, 3, 4, 5)
ALSO_AT_NINE = (*FOURTEEN[:9], 6, 7, 8, 9, 10)


def state_of(**fields: Any) -> SchedulerState:
    return scheduler_state(**({"max_num_batched_tokens": 64, "keeps_states": True} | fields))


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


def chunks_of(state: SchedulerState, name: str, prompt: tuple[int, ...], max_tokens: int = 1) -> list[int]:
    """Submit a request; the chunks of its prompt until it is over."""
    state.add(submit(name, prompt, max_tokens))
    found = []
    while name in state.running or len(state.waiting):
        if (chunk := step(state)[0].get(name)) is not None:
            found.append(chunk)
    return found


def test_a_prompt_is_computed_to_its_last_full_block_and_the_rest_by_itself() -> None:
    """The same prompt finds the state there; of a prompt of whole blocks the last one is computed again."""
    state = state_of()
    assert chunks_of(state, "a", FOURTEEN) == [12, 2]
    assert chunks_of(state, "again", FOURTEEN) == [2]
    assert chunks_of(state, "whole", FOURTEEN[:12]) == [8, 4]


def test_chunks_end_where_blocks_do() -> None:
    """Steps of six tokens compute four; those of three, less than a block, take it in parts."""
    assert chunks_of(state_of(max_num_batched_tokens=6), "a", FOURTEEN) == [4, 4, 4, 2]
    assert chunks_of(state_of(max_num_batched_tokens=3), "a", FOURTEEN) == [3, 1, 3, 1, 3, 1, 2]


def test_a_prefix_without_a_state_at_its_end_is_found_by_the_third() -> None:
    """The second finds two blocks and no state; it stops there, and keeps one."""
    state = state_of()
    assert chunks_of(state, "first", FOURTEEN) == [12, 2]
    assert chunks_of(state, "second", PARTS_AT_NINE) == [8, 4, 2]
    assert chunks_of(state, "third", ALSO_AT_NINE) == [4, 2]


def test_without_states_every_block_is_found() -> None:
    """The same prompts as above."""
    state = scheduler_state(max_num_batched_tokens=64)
    prompts = {"first": FOURTEEN, "second": PARTS_AT_NINE, "third": ALSO_AT_NINE}
    assert [chunks_of(state, name, prompt) for name, prompt in prompts.items()] == [[14], [6], [6]]


def test_a_request_waits_for_the_state_that_this_step_computes() -> None:
    """It could share keys and values of the very step, but no state."""
    state = state_of()
    for name in "ab":
        state.add(submit(name, FOURTEEN, 1))
    assert step(state) == ({"a": 12}, "KV blocks")
    assert step(state) == ({"a": 2, "b": 2}, None)


def test_a_step_without_room_for_a_block_leaves_a_prompt_waiting() -> None:
    """Six tokens less three of the first: three are left, and a block needs four."""
    state = state_of(max_num_batched_tokens=6)
    state.add(submit("a", FOURTEEN[:3], 1))
    state.add(submit("b", FOURTEEN, 1))
    assert step(state) == ({"a": 3}, "token budget")
    assert step(state) == ({"b": 4}, None)


def test_an_answer_leaves_a_state_at_each_block() -> None:
    """The next turn begins with the prompt of three and six of eight tokens: two blocks are found."""
    state = state_of()
    assert chunks_of(state, "a", (5, 6, 7), 8) == [3]
    assert chunks_of(state, "next", (5, 6, 7, 9, 9, 9, 9, 9, 9, 1)) == [2]


def test_a_state_is_gone_with_its_block() -> None:
    """Five blocks: another prompt takes all, so that the first is computed anew."""
    state = state_of(num_gpu_blocks=6, max_model_len=20)
    assert chunks_of(state, "a", FOURTEEN) == [12, 2]
    assert chunks_of(state, "other", tuple(range(200, 219))) == [16, 3]
    assert chunks_of(state, "again", FOURTEEN) == [12, 2]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"enable_chunked_prefill": False, "max_num_batched_tokens": 64}, "enable_chunked_prefill is off"),
        ({"host_memory": HostMemory(8, 0.1, 0.1)}, "kv_offloading_size: states of linear attention"),
    ],
)
def test_what_states_cannot_be_combined_with_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        SchedulerConfig(keeps_states=True, max_model_len=64, **fields)


def with_states(seed: int) -> Trace:
    """A random trace of a model that keeps states."""
    trace = random_trace(seed)
    trace["config"] |= {"keeps_states": True, "enable_chunked_prefill": True}
    return trace


@pytest.mark.long(reason="replays many requests, or many random cases", moderate=True)
@pytest.mark.parametrize("seeds", batches(num_cases(120), 60), ids=str)
def test_lockstep_changes_nothing_where_states_are_kept(seeds: range) -> None:
    """Nor do decode runs; every state is one of a block that can be found."""
    for seed in seeds:
        parsed = parse_trace(with_states(seed))
        logs = [[dump(line) for line in DecisionLog(parsed, lockstep=way).run()] for way in (True, False)]
        assert logs[0] == logs[1], f"seed {seed}"
        counted = countable(with_states(seed))
        single = {e.step: e.batch for e in Driven(counted, counts=True).run() if isinstance(e, Planned)}
        for event in Driven(counted, counts=True, decode_runs=True).run():
            if isinstance(event, Planned):
                assert replace(event.batch, max_steps=1) == single[event.step], f"seed {seed}"
