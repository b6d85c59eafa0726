"""Requests moved between replicas without a link for their KV are recomputed, with the same tokens."""

from dataclasses import replace
from typing import Any

import pytest
import trio

from sundog.actors.core.request import Begun
from sundog.actors.core.routers.fleet_state import FleetState
from sundog.actors.core.routers.prefix_index import new_index
from sundog.actors.engine.engine_core import EngineRefs
from sundog.actors.kernel.actor import Reply
from sundog.actors.messages import (
    Batch,
    Capacity,
    EngineDown,
    EngineUp,
    Finish,
    Freeze,
    HandOver,
    KvFetched,
    StepOutput,
    Submit,
    Undelivered,
)
from sundog.actors.router.router import Router
from tests.actors.fakes import read
from tests.actors.router.test_router import Wire, names, submit
from tests.core.traces import num_cases
from tests.sim.fleet.fleets import Restless
from tests.test_fates import BACKOFF, ask, health, served
from tests.test_laws import NUM_BLOCKS, asked, run


@pytest.mark.long(keep=1, reason="more cases of the law whose first `make test` runs", moderate=True)
@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("counts", [False, True], ids=["tokens", "counts"])
def test_a_moved_request_gets_exactly_its_tokens_once_and_ends_once(counts: bool, is_async: bool) -> None:
    """Whatever is in flight for it when it leaves; and every block is free in the end."""
    num_moved = 0
    for seed in range(num_cases(6)):
        seen = run(asked(seed), replicas=3, router=Restless(), counts=counts, async_scheduling=is_async)
        ends = sorted(finish.request_id for _, finish in seen.finishes if finish.reason != "handed")
        assert ends == sorted(row.name for row in seen.asked) == sorted(seen.answers)
        num_moved += len(seen.finishes) - len(ends)
        for row in seen.asked:
            delta = seen.answers[row.name][1]
            if delta.finish_reason == "abort":
                assert counts or delta.token_ids == row.expected[: delta.num_tokens]
            else:
                assert delta.num_tokens == (0 if counts else len(row.expected))
                assert counts or delta.token_ids == row.expected
        for outputs in seen.of_replica().values():
            assert outputs[-1].num_free_blocks == NUM_BLOCKS - 1
    assert num_moved > 20


async def test_an_engine_that_crashes_loses_no_request_on_its_way_and_ends_each_once() -> None:
    """What had begun there ends with an error; all others get their tokens, moved or not."""
    async with served(router=Restless(), replicas=2, max_num_seqs=4) as (world, client):
        answers = [await ask(client, f"r{number}", 20) for number in range(8)]
        await trio.sleep(0.02)
        world.crash()
        ends = [await read(answer) for answer in answers]
        assert {end.finish_reason for end in ends} <= {"length", "error"}
        assert all(end.num_tokens == 20 for end in ends if end.finish_reason == "length")
        await trio.sleep(2 * BACKOFF.first_s)
        assert (await health(client)).status == "healthy"
    finished = [finish for output in world.listener.outputs for finish in output.finished]
    assert "handed" in [finish.reason for finish in finished]


class Answering(Wire):
    """An address that never answers what it is asked, and keeps it."""

    def request(self, message: Any) -> Reply[Any]:
        self.told.append(message)
        return Reply()


def with_links() -> tuple[Router, list[Answering], Answering]:
    """A Router with two replicas, whose links answer nothing, and what it reports."""
    links: Any = Answering()
    reports: Any = Answering()
    router, wires = Router("router", Restless(share=0.0), links=links), [Answering() for _ in range(2)]
    for wire in wires:
        ref: Any = wire
        router.connect(EngineRefs(ref, ref, Capacity(9, 4)))
    router.report_to(reports)
    return router, wires, reports


def output(replica: int, finish: Finish) -> StepOutput:
    return StepOutput(replica, Batch(1, (), (), (), (), (), (), (), 0), 0.0, (0.1,), None, (finish,), 0, 0, 8)


@pytest.mark.plain
async def test_a_request_that_leaves_for_nowhere_frees_its_blocks_where_it_was() -> None:
    """Its client has left meanwhile: the source is told that nobody will fetch them."""
    router, wires, reports = with_links()
    router.handle(submit("a"))
    assert router._handovers is not None
    router._handovers.move("a", 1)
    assert wires[0].told[-1] == HandOver("a", True)
    router._handovers.abort("a")
    leaves = replace(submit("a"), begun=Begun(1, None, True, 0.1, 0.1), has_remote_kv=True)
    router.handle(output(0, Finish("a", "handed", moves=leaves, block_ids=(1, 2))))
    assert wires[0].told[-1] == KvFetched(("a",)) and reports.told == [Undelivered(("a",))]
    assert names(wires[1]) == [] and router._state.num_requests == [0, 0]


@pytest.mark.plain
async def test_a_request_whose_target_died_frees_its_blocks_where_it_was_and_is_computed_again() -> None:
    """The source is told that nobody will fetch them before it gets the request anew."""
    router, wires, _ = with_links()
    router.handle(submit("a"))
    assert router._handovers is not None
    router._handovers.move("a", 1)
    router.handle(EngineDown(1, "gone", 1.0))
    leaves = replace(submit("a"), begun=Begun(1, None, True, 0.1, 0.1), has_remote_kv=True)
    router.handle(output(0, Finish("a", "handed", moves=leaves, block_ids=(1, 2))))
    freed, again = wires[0].told[-2:]
    assert freed == KvFetched(("a",)) and isinstance(again, Submit) and not again.has_remote_kv
    assert names(wires[1]) == [] and router._state.num_requests == [1, 0]


@pytest.mark.plain
async def test_an_engine_that_comes_back_while_all_are_frozen_is_frozen_too() -> None:
    """And one that comes back afterwards is not."""
    router, wires, _ = with_links()
    router.handle(Freeze())
    again: Any = Answering()
    router.handle(EngineUp(0, EngineRefs(again, again, Capacity(9, 4))))
    assert again.told == [Freeze()]
    router.handle(Freeze(is_frozen=False))
    later: Any = Answering()
    router.handle(EngineUp(1, EngineRefs(later, later, Capacity(9, 4))))
    assert later.told == [] and wires[1].told == [Freeze(), Freeze(is_frozen=False)]


def test_a_replica_that_died_has_nothing_and_is_known_for_nothing() -> None:
    """All counts are those of a new one, whatever its last step left."""
    state = FleetState(new_index("own"), 0)
    for _ in range(2):
        state.add(8, 4)
    state.send(replace(submit("a"), block_hashes=("x",)), 0)
    state.note(0, 3, 1, 2, 0.5)
    assert state.lose(0) == ("a",)
    counts = (state.num_requests, state.num_tokens, state.num_prefill_tokens)
    assert [each[0] for each in counts] == [0, 0, 0]
    assert (state.num_free_blocks[0], state.num_running[0], state.num_waiting[0]) == (8, 0, 0)
    assert state.step_s[0] is None and not state.has_ended[0]
    assert state.indexes[0].num_hit_blocks(("x",)) == 0
    assert state.up_for["both"] == (1,)
