"""The lockstep's calendars: lookups of what is due in a step."""

from functools import partial

import pytest

from sundog import Fcfs
from sundog.actors.core.batch import StepResult
from sundog.actors.core.blocks.kv_cache import KVCache
from sundog.actors.core.config import SchedulerConfig
from sundog.actors.core.queue.lockstep import Lockstep
from sundog.actors.core.request import Request, Submit
from sundog.actors.core.step.plan import plan
from sundog.actors.core.step.state import SchedulerState
from sundog.actors.core.step.update import update
from tests.core.drive import Driven, Planned, Updated
from tests.core.traces import batches, countable, num_cases, random_trace


def look(lockstep: Lockstep, sizes: set[int], event: Planned | Updated) -> None:
    """Check the calendars after an event, and note how many members have one step in common."""
    places = {request: place for place, due in enumerate(lockstep.grows) for request in due}
    assert {request.request_id for request in places} == set(lockstep.members), event
    assert sum(map(len, lockstep.grows)) == len(lockstep.members), event
    for request, place in places.items():
        num_slots = len(request.block_ids) * lockstep.block_size
        assert place == (lockstep.planned + num_slots - lockstep.num_computed(request) + 1) % len(
            lockstep.grows
        ), (event, request)
    for due in (*lockstep.grows, *lockstep.fills.values()):
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
    assert lockstep.has_spare, "a and c need nothing in steps 1 to 4"
    assert lockstep.due_to_grow(1) == [requests[1]] and lockstep.due_to_grow(2) == []
    assert [lockstep.grows_in(requests[0], step) for step in (1, 4, 5, 8, 9)] == [0, 0, 1, 0, 1]
    lockstep.planned = 5
    assert not lockstep.has_spare
    assert lockstep.due_to_grow(5) == requests and lockstep.grow_through(9, 14) == (requests, 6)


@pytest.mark.parametrize("is_spare", [False, True])
def test_a_spare_block_forbids_decode_runs_until_it_is_used(is_spare: bool) -> None:
    """A run gives each member a block in every period: one too many to a member that has one to spare."""
    config = SchedulerConfig(num_gpu_blocks=100, max_model_len=256)
    state = SchedulerState(config, Fcfs(), KVCache(config), decode_runs=True)
    state.arrive(Submit("a", 0.0, 20, 90))
    batch, _ = plan(state)
    update(state, StepResult(batch.step, (1.0,)))
    if is_spare:
        state.lockstep.enter_grow(Request(Submit("b", 0.0, 1, 9), 64), batch.step + 2 * config.block_size)
    batch, _ = plan(state)
    assert batch.num_decodes == 1 and (batch.max_steps == 1) is is_spare
