"""What the lockstep's calendars promise to those who look up a step in them."""

from functools import partial

import pytest

from sundog.actors.core.queue.lockstep import Lockstep
from sundog.actors.core.request import Request, Submit
from tests.core.drive import Driven, Planned, Updated
from tests.core.traces import batches, countable, num_cases, random_trace


def look(lockstep: Lockstep, sizes: set[int], event: Planned | Updated) -> None:
    """Check the calendars after an event, and note how many members have one step in common."""
    due_to_grow = {request: step for step, due in lockstep.grows.items() for request in due}
    assert {request.request_id for request in due_to_grow} == set(lockstep.members), event
    assert sum(map(len, lockstep.grows.values())) == len(lockstep.members), event
    for request, step in due_to_grow.items():
        assert request.next_grow == step > lockstep.planned, (event, request)
    for due in (*lockstep.grows.values(), *lockstep.fills.values()):
        orders = [request.order for request in due]
        assert orders == sorted(orders), (event, due)
        sizes.add(len(due))


@pytest.mark.long(reason="replays many requests, or many random cases", moderate=True)
@pytest.mark.parametrize("seeds", batches(num_cases(120), 60), ids=str)
def test_a_calendar_has_every_member_once_and_in_order_of_admission(seeds: range) -> None:
    """So blocks go round as in a loop over all running requests, whenever each of them joined."""
    sizes: set[int] = set()
    for seed in seeds:
        driven = Driven(countable(random_trace(seed)), counts=True, decode_runs=seed % 2 == 0)
        driven.watch = partial(look, driven.state.lockstep, sizes)
        driven.run()
    assert {1, 2, 3} <= sizes, "no three members were due in one step"


def test_members_that_come_to_grow_in_one_step_do_so_in_order_of_admission() -> None:
    """One that has room for longer than a block is joined by others, who were admitted later."""
    lockstep, requests = Lockstep(4), [Request(Submit(name, 0.0, 1, 9), 64) for name in "abc"]
    for order, (request, step) in enumerate(zip(requests, (5, 1, 5), strict=True)):
        request.order = order
        lockstep.enter_grow(request, step)
    assert lockstep.due_to_grow(1) == [requests[1]] and lockstep.due_to_grow(2) == []
    assert lockstep.due_to_grow(5) == requests and lockstep.grow_through(9, 14) == (requests, 6)
