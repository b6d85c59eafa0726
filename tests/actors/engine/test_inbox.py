"""Messages held until a step is planned or ends, in order."""

import pytest

from sundog.actors.core.batch import StepResult
from sundog.actors.core.step.plan import plan
from sundog.actors.core.step.state import SchedulerState
from sundog.actors.core.step.update import update
from sundog.actors.engine.inbox import Inbox
from sundog.actors.messages import Abort, HandOver
from tests.core.requests import scheduler_state, submit


def running() -> SchedulerState:
    """A request that has its first token, so that it may go on elsewhere."""
    state = scheduler_state()
    state.add(submit("a"))
    batch, _ = plan(state)
    update(state, StepResult(batch.step, (1.0,), (("a", 9),)))
    return state


@pytest.mark.parametrize(
    ("came_s", "start_s", "end_s", "leaves"),
    [
        (1.5, 1.0, 2.0, True),
        (2.0, 1.0, 2.0, False),
        (1.0, 1.0, 2.0, True),
        (2.0, 2.0, 2.0, True),
        (2.5, 1.0, 2.0, False),
    ],
)
def test_an_order_to_move_takes_effect_when_a_step_ends_that_it_came_before(
    came_s: float, start_s: float, end_s: float, leaves: bool
) -> None:
    """One that came as the step ended waits for the next, unless the step was planned in that instant."""
    state = running()
    inbox = Inbox(state, None)
    inbox.leaving.append((HandOver("a", False), came_s))
    finishes = inbox.hand_over(start_s, end_s)
    assert [finish.reason for finish in finishes] == ["handed"] * leaves
    assert ("a" in state.requests) is not leaves
    assert inbox.leaving == ([] if leaves else [(HandOver("a", False), came_s)])


def test_an_order_to_move_a_request_that_has_ended_is_forgotten() -> None:
    """Another of its id must not be moved by it."""
    inbox = Inbox(running(), None)
    inbox.leaving.append((HandOver("gone", True), 0.0))
    assert inbox.hand_over(1.0, 2.0) == [] and inbox.leaving == []


def test_before_an_update_only_aborts_take_effect_and_the_arrivals_they_end() -> None:
    """The rest waits for the plan, in its order."""
    state = running()
    inbox = Inbox(state, None)
    for message in (submit("b"), submit("c"), Abort(("a", "c")), submit("d")):
        inbox.put(message)
    assert [(finish.request_id, finish.reason) for finish in inbox.take_aborts()] == [
        ("a", "abort"),
        ("c", "abort"),
    ]
    assert list(state.requests) == [] and inbox.num_new == 2
    assert inbox.take_all() == [] and [each.request_id for each in state.waiting] == ["b", "d"]
    assert not inbox.messages
