"""The read-only view of requests and state that user policies get."""

import pytest

from sundog.actors.core.policies.shown import PolicyView, ReadOnly, RequestView, RequestViews, shown
from sundog.actors.core.queue.view import View
from sundog.actors.core.request import Submit
from tests.core.policies.world import DOCS, World


def facts(kind: type) -> set[str]:
    return {name for name in dir(kind) if not name.startswith("_")}


def test_all_that_the_documentation_names_can_be_read() -> None:
    """Each fact of a request or of the view stands in docs/policies.md."""
    text = (DOCS / "policies.md").read_text()
    world = World("fcfs")
    request = shown(world.add("a", 6, 20), world.state.view)
    for name in facts(RequestView) | (facts(View) - {"advance", "show", "num_memory_changes"}):
        assert name in text, name
    assert {name for name in facts(Submit) if getattr(request.submit, name) is not None} >= {"arrival_s"}


def test_counts_are_exact_while_a_request_decodes() -> None:
    """Steps do not touch the request itself: its own counts are those of the step in which it joined."""
    world = World("fcfs")
    request = shown(world.add("a", 6, 20), world.state.view)
    seen = []
    for _ in range(4):
        world.step()
        seen.append((request.num_output_tokens, request.num_computed_tokens))
    assert seen == [(1, 6), (2, 7), (3, 8), (4, 9)]


@pytest.mark.parametrize("of", [RequestView, Submit, View])
def test_nothing_can_be_assigned_or_deleted(of: type) -> None:
    """Nor added; of the view its memory alone may be."""
    world = World("fcfs")
    request = shown(world.add("a", 6, 20), world.state.view)
    target = {RequestView: request, Submit: request.submit, View: PolicyView(world.state.view)}[of]
    for name in (facts(of) | {"other"}) - {"memory"}:
        with pytest.raises(AttributeError, match="cannot be assigned: it is read-only"):
            setattr(target, name, None)
        with pytest.raises(AttributeError, match="cannot be deleted: it is read-only"):
            delattr(target, name)


def test_the_schedulers_own_bookkeeping_is_not_shown() -> None:
    """It would be stale, or could be changed; the error says where to look."""
    world = World("fcfs")
    request = shown(world.add("a", 6, 20), world.state.view)
    with pytest.raises(AttributeError, match=r"cannot read Request.block_ids \(docs/policies.md lists"):
        request.block_ids  # noqa: B018  # the access is what is tested


def test_running_requests_can_be_looked_at_from_either_end() -> None:
    """As our own policies do with the dict itself."""
    world = World("fcfs")
    for name in "abc":
        world.add(name, 4, 9)
    world.step()
    view = PolicyView(world.state.view)
    running = view.running
    assert isinstance(running, RequestViews)
    assert [*running] == [*reversed([*reversed(running)])] == ["a", "b", "c"]
    assert [request.request_id for request in reversed(running.values())] == ["c", "b", "a"]
    assert [name for name, _ in reversed(running.items())] == ["c", "b", "a"]
    assert running["a"] is next(iter(running.values())) and len({running["a"], running["a"]}) == 1
    assert view.random(running["a"]) == world.state.view.random("a")


def test_a_policy_sees_the_limits_it_plans_under() -> None:
    """Of its own engine, frozen."""
    view = PolicyView(World("fcfs", {"max_num_seqs": 3}).state.view)
    assert isinstance(view, ReadOnly)
    assert view.limits.max_num_seqs == 3 and view.limits.num_gpu_blocks == 101
    with pytest.raises(AttributeError):
        view.limits.max_num_seqs = 4
