"""What ends a request, in this order: the end token, a stop token, length."""

import pytest

from sundog.actors.core.batch import Finish, StepResult
from sundog.actors.core.step.plan import plan
from sundog.actors.core.step.state import SchedulerState
from sundog.actors.core.step.update import update
from tests.core.requests import MAX_MODEL_LEN, scheduler_state, submit

EOS = 2


def step(state: SchedulerState, **tokens: int) -> list[Finish]:
    """Plan and update one step in which these requests sample these tokens."""
    batch, _ = plan(state)
    return update(state, StepResult(batch.step, (0.0,), tuple(tokens.items())))


@pytest.mark.parametrize(
    ("token", "fields", "finish"),
    [
        (EOS, {"max_tokens": 1, "stop_token_ids": (EOS,)}, Finish("a", "stop")),
        (EOS, {"ignore_eos": True, "stop_token_ids": (EOS,)}, Finish("a", "stop", EOS)),
        (7, {"max_tokens": 1, "stop_token_ids": (7,)}, Finish("a", "stop", 7)),
        (9, {"max_tokens": 1, "stop_token_ids": (7,)}, Finish("a", "length")),
        (EOS, {"max_tokens": 1, "ignore_eos": True}, Finish("a", "length")),
        (EOS, {"min_tokens": 5}, Finish("a", "stop")),
        (7, {"min_tokens": 5, "stop_token_ids": (7,)}, Finish("a", "stop", 7)),
        (9, {"max_tokens": 2}, None),
        (EOS, {"max_tokens": 2, "ignore_eos": True}, None),
    ],
)
def test_the_reason_of_an_end(token: int, fields: dict[str, object], finish: Finish | None) -> None:
    """End token before stop token before length; a sampled stop is heard before min_tokens."""
    state = scheduler_state()
    state.add(submit("a", eos=EOS, **fields))  # type: ignore[arg-type]
    assert step(state, a=token) == ([] if finish is None else [finish])
    assert ("a" in state.requests) == (finish is None)
    state.check()


def test_a_request_ends_at_the_models_length() -> None:
    """Even if it asked for more tokens."""
    state = scheduler_state()
    state.add(submit("a", (5,) * (MAX_MODEL_LEN - 2), max_tokens=50))
    assert step(state, a=9) == []
    assert step(state, a=9) == [Finish("a", "length")]


def test_requests_end_in_the_order_in_which_they_were_scheduled() -> None:
    """Whatever the order of the result; blocks are free in that order too."""
    state = scheduler_state(enable_prefix_caching=False)
    for name in "abc":
        state.add(submit(name, (5,), max_tokens=1))
    finished = step(state, c=9, a=9, b=9)
    assert [finish.request_id for finish in finished] == ["a", "b", "c"]
    assert state.kv.pool.free_order[:3] == [3, 2, 1]


def test_where_tokens_are_counted_an_end_token_comes_before_length() -> None:
    """Those that are named ended by it, the others by length."""
    state = scheduler_state()
    for name in "ab":
        state.add(submit(name, (5,), max_tokens=1))
    for request in state.requests.values():
        request.token_ids = None
    batch, _ = plan(state)
    finished = update(state, StepResult(batch.step, (0.0,), None, ("b",)))
    assert finished == [Finish("a", "length"), Finish("b", "stop")]


def test_an_aborted_request_ignores_what_comes_back_for_it() -> None:
    """And so does somebody unknown."""
    state = scheduler_state()
    state.add(submit("a"))
    batch, _ = plan(state)
    assert state.abort(("a", "nobody")) == [Finish("a", "abort")]
    assert update(state, StepResult(batch.step, (0.0,), (("a", 9), ("nobody", 9)))) == []
    assert state.kv.pool.num_free == 64
    state.check()


@pytest.mark.parametrize("counts", [False, True], ids=["tokens", "counts"])
def test_the_result_of_an_aborted_request_is_not_given_to_its_namesake(counts: bool) -> None:
    """A name may be used again while the step of its last owner is still under way."""
    state = scheduler_state(async_scheduling=True)
    state.add(submit("a", (5, 6, 7)))
    first, _ = plan(state)
    state.abort(("a",))
    state.add(submit("a", (8,)))
    if counts:
        state.requests["a"].token_ids = None
    second, _ = plan(state)
    assert second.finished == ("a",) and [each.request_id for each in second.admitted] == ["a"]
    tokens, ended = (None, ("a",)) if counts else ((("a", 9),), ())
    assert update(state, StepResult(first.step, (0.0,), tokens, ended)) == []
    assert state.lockstep.num_tokens(state.requests["a"]) == 1
    assert update(state, StepResult(second.step, (0.0,), None if counts else (("a", 9),))) == []
    assert state.lockstep.num_tokens(state.requests["a"]) == 2
    state.check()


@pytest.mark.parametrize("counts", [False, True], ids=["tokens", "counts"])
@pytest.mark.parametrize("async_scheduling", [False, True], ids=["sync", "async"])
def test_a_request_that_failed_ends_alone(counts: bool, async_scheduling: bool) -> None:
    """With the reason; its blocks are free, its neighbour goes on, a step in flight is dropped."""
    state = scheduler_state(async_scheduling=async_scheduling)
    for name in "ab":
        state.add(submit(name, (5, 6, 7, 8, 9), max_tokens=3))
    for request in state.requests.values():
        request.token_ids = None if counts else request.token_ids
    first, _ = plan(state)
    if async_scheduling:
        plan(state)
    tokens = None if counts else (("b", 9),)
    result = StepResult(first.step, (0.0,), tokens, failed=(("a", "no token"), ("nobody", "?")))
    assert update(state, result) == [Finish("a", "error", error="no token")]
    assert list(state.requests) == ["b"] and state.kv.pool.num_free == 62
    state.check()
    if async_scheduling:
        late = StepResult(first.step + 1, (0.0,), tokens, failed=(("a", "no token"),))
        assert update(state, late) == []
    last, _ = plan(state)
    assert last.finished == ("a",) and last.num_decodes == 1
    state.check()


def test_a_failure_comes_before_length() -> None:
    """Where tokens are only counted nobody else says that there was no token."""
    state = scheduler_state()
    state.add(submit("a", (5,), max_tokens=1))
    state.requests["a"].token_ids = None
    batch, _ = plan(state)
    failed = (("a", "no token"),)
    assert update(state, StepResult(batch.step, (0.0,), None, failed=failed)) == [
        Finish("a", "error", error="no token")
    ]


def test_results_come_back_in_order() -> None:
    """Any other is a bug that raises where it is found."""
    state = scheduler_state(async_scheduling=True)
    state.add(submit("a"))
    plan(state)
    second, _ = plan(state)
    with pytest.raises(ValueError, match=r"step 2 came, of 1 was expected"):
        update(state, StepResult(second.step, (0.0,), ()))


def test_a_reset_of_running_requests_tells_the_runner_and_drops_what_is_in_flight() -> None:
    """The next batch names them, before it admits them anew."""
    state = scheduler_state(async_scheduling=True)
    for name in "ab":
        state.add(submit(name))
    first, _ = plan(state)
    assert state.reset_prefix_cache(reset_running=True)
    second, _ = plan(state)
    assert second.preempted == ("b", "a")
    assert [(each.request_id, each.resumed) for each in second.admitted] == [("a", True), ("b", True)]
    assert update(state, StepResult(first.step, (0.0,), (("a", 9), ("b", 9)))) == []
    assert all(state.lockstep.num_tokens(each) == 3 for each in state.requests.values())
