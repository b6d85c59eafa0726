"""A policy's view of the present, at its boundary cases."""

from math import inf

from sundog.actors.core.batch import StepResult
from sundog.actors.core.config import SchedulerConfig
from sundog.actors.core.queue.lockstep import Lockstep
from sundog.actors.core.queue.view import View
from sundog.actors.core.step.plan import plan
from sundog.actors.core.step.state import SchedulerState
from sundog.actors.core.step.update import update
from tests.core.requests import request, scheduler_state, submit


def step(state: SchedulerState) -> None:
    """Every running request samples."""
    batch, _ = plan(state)
    update(state, StepResult(batch.step, (0.0,), tuple((name, 9) for name in state.running)))


class Noted:
    """Step times that say what they were asked for."""

    def step_s(self, prefill_tokens: int, decodes: int, context_tokens: int) -> float:
        return prefill_tokens * 1e6 + decodes * 1e3 + context_tokens


def test_a_decode_has_the_mean_context_of_those_that_run() -> None:
    """Of 5 blocks of 4 tokens, held by two, three decodes read 30; where nobody runs, a token each."""
    state = scheduler_state()
    view = View(state.config, state.kv, state.lockstep, state.running, 0, Noted())
    assert view.step_s(7, 3) == 7_003_003
    state.add(submit("a", tuple(range(5))))
    state.add(submit("b", tuple(range(20, 29))))
    plan(state)
    assert view.step_s(7, 3) == 7_003_030
    assert View(state.config, state.kv, state.lockstep, state.running).step_s(7, 3) is None


def test_a_wait_is_counted_in_steps_and_stands_still_while_its_request_runs() -> None:
    """It begins with the step that is planned next; the step that admits it is not waited."""
    state = scheduler_state(max_num_seqs=1)
    state.add(submit("a", max_tokens=3))
    waits = state.add(submit("b", max_tokens=3))
    view = state.view
    for num_steps in range(3):
        assert view.num_waited_steps(waits) == num_steps
        assert view.has_waited(waits, num_steps) and not view.has_waited(waits, num_steps + 1)
        step(state)
    step(state)
    assert "b" in state.running
    for _ in range(2):
        assert view.num_waited_steps(waits) == 3
        step(state)


def test_new_tokens_are_those_since_the_latest_admission() -> None:
    """None while a request waits."""
    state = scheduler_state()
    it = state.add(submit("a"))
    view = state.view
    counts = []
    for _ in range(3):
        counts.append((view.num_new_tokens(it), view.num_output_tokens(it), view.num_computed_tokens(it)))
        step(state)
    assert counts == [(0, 0, 0), (1, 1, 3), (2, 2, 4)]
    state.preempt(it)
    assert (view.num_new_tokens(it), view.num_output_tokens(it)) == (0, 3)
    step(state)
    assert (view.num_new_tokens(it), view.num_output_tokens(it)) == (1, 4)


def test_hits_and_losses_are_counted_in_tokens_of_blocks() -> None:
    """A preempted request would find shared blocks again: it loses the rest."""
    state = scheduler_state()
    first = state.add(submit("a", tuple(range(9))))
    step(state)
    second = state.add(submit("b", (*range(8), 50, 51, 52)))
    assert state.view.num_hit_tokens(second) == 8
    step(state)
    assert state.view.num_lost_tokens(first) == 10 - 8
    assert state.view.num_lost_tokens(second) == 11 - 8


def test_a_time_is_past_when_it_has_come() -> None:
    view = View(SchedulerConfig(), scheduler_state().kv, Lockstep(4), {})
    view.advance(2.0)
    assert view.is_past(2.0) and view.is_past(1.9) and not view.is_past(2.1)
    assert view.token_due_s(request("a")) == inf and view.step == 1
