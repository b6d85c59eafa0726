"""What a user's policy is shown: all facts of a request, exact, and none to change."""

import pytest

from actors.core.policies.read_only import ReadOnlyRequest, ReadOnlyRequests, ReadOnlySubmit
from actors.core.policies.read_only_view import ReadOnlyView
from actors.core.queue.view import View
from actors.core.request import Request, Submit
from tests.core.policies.world import World


def facts(kind: type) -> set[str]:
    return {name for name in dir(kind) if not name.startswith("_")}


def test_all_that_a_policy_may_use_can_be_read() -> None:
    """All of what arrived and of the view; of a request what is not the scheduler's own bookkeeping."""
    assert facts(ReadOnlyRequest) - {"is_of"} <= facts(Request)
    assert facts(Submit) == facts(ReadOnlySubmit)
    assert facts(View) - {"advance", "seen", "show"} == facts(ReadOnlyView)


def test_counts_are_exact_while_a_request_decodes() -> None:
    """Steps do not touch the request itself: its own counts are those of the step in which it joined."""
    world = World("fcfs")
    request = world.add("a", 6, 20)
    shown = ReadOnlyRequest(request, world.state.view)
    seen = []
    for _ in range(4):
        world.step()
        seen.append((shown.num_tokens, shown.num_output_tokens, shown.num_computed_tokens))
    assert seen == [(7, 1, 6), (8, 2, 7), (9, 3, 8), (10, 4, 9)]


@pytest.mark.parametrize("kind", [Request, Submit])
def test_nothing_can_be_written_or_deleted(kind: type) -> None:
    """Whatever its name."""
    world = World("fcfs")
    shown = ReadOnlyRequest(world.add("a", 6, 20), world.state.view)
    target = shown if kind is Request else shown.submit
    for name in facts(type(target)) | {"other"}:
        with pytest.raises(AttributeError):
            setattr(target, name, None)
        with pytest.raises(AttributeError):
            delattr(target, name)


def test_running_requests_can_be_looked_at_from_either_end() -> None:
    """As our own policies do with the dict itself."""
    world = World("fcfs")
    for name in "abc":
        world.add(name, 4, 9)
    world.step()
    view = ReadOnlyView(world.state.view)
    running = view.running
    assert isinstance(running, ReadOnlyRequests)
    assert [*running] == [*reversed([*reversed(running)])] == ["a", "b", "c"]
    assert [request.request_id for request in reversed(running.values())] == ["c", "b", "a"]
    assert [name for name, _ in reversed(running.items())] == ["c", "b", "a"]
    assert running["a"] == next(iter(running.values())) and len({running["a"], running["a"]}) == 1
    assert view.random(running["a"]) == world.state.view.random("a")


def test_a_policy_sees_the_limits_it_plans_under() -> None:
    """Of its own engine, frozen."""
    view = ReadOnlyView(World("fcfs", {"max_num_seqs": 3}).state.view)
    assert view.limits.max_num_seqs == 3 and view.limits.num_gpu_blocks == 101
    with pytest.raises(AttributeError):
        view.limits.max_num_seqs = 4
