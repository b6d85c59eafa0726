"""A router that holds requests until a replica has room: in the graph, over HTTP and in simulation."""

from pathlib import Path
from typing import Any

import pytest
import trio

from sundog.actors.config import EngineConfig, SchedulerConfig
from sundog.actors.messages import Abort, Cancel, Capacity, Done, Drain, EngineDown, Released, Undelivered
from sundog.actors.policy_file import find_router
from sundog.sim.figures.metrics import summarize
from sundog.sim.replay import replay
from sundog.sim.trace.record import TraceRequest
from tests.actors.fakes import read
from tests.actors.router.test_router import Wire, connected, names, submit
from tests.core.policies.world import DOCS
from tests.live import EMULATED, live
from tests.sim.toy import COST
from tests.test_fates import BACKOFF, ask, health, served

HOLDS = f"{DOCS}/routers/late_binding.py:LateBinding:most=2"


def holding() -> tuple[Any, list[Wire], Wire]:
    """A Router with two replicas that have two requests each, and what it reports."""
    router, wires = connected(HOLDS, 2)
    reports: Any = Wire()
    router.report_to(reports)
    for name in "abcdefg":
        router.handle(submit(name))
    return router, wires, reports


@pytest.mark.plain
async def test_what_is_held_goes_in_its_order_where_room_comes_first() -> None:
    """A newcomer does not go before it."""
    router, wires, _ = holding()
    assert [names(wire) for wire in wires] == [["a", "c"], ["b", "d"]]
    router.handle(Released(("d", "b")))
    router.handle(submit("h"))
    router.handle(Released(("a",)))
    assert [names(wire) for wire in wires] == [["a", "c", "g"], ["b", "d", "e", "f"]]
    router.handle(Released(("c", "e")))
    assert [names(wire)[-1] for wire in wires] == ["h", "f"]


@pytest.mark.plain
async def test_a_held_request_that_is_aborted_ends_once_and_goes_nowhere() -> None:
    """Nor does any that is held when the last replica is lost: it is reported, to begin again."""
    router, wires, reports = holding()
    router.handle(Abort(("e", "a"), "abort"))
    assert reports.told == [Undelivered(("e",))] and wires[0].told[-1] == Abort(("a",), "abort")
    router.handle(EngineDown(0, "gone", None))
    router.handle(EngineDown(1, "gone", None))
    lost = [name for report in reports.told for name in report.request_ids]
    assert sorted(lost) == ["a", "b", "c", "d", "e", "f", "g"]


@pytest.mark.plain
async def test_what_is_held_while_all_replicas_are_drained_waits_for_an_undrain() -> None:
    """Nobody is asked for a replica while there is none to choose."""
    router, wires, reports = holding()
    for replica in (0, 1):
        router.handle(Drain(replica))
    router.handle(Released(("a", "b", "c", "d")))
    assert [names(wire) for wire in wires] == [["a", "c"], ["b", "d"]] and not reports.told
    router.handle(Drain(1, is_draining=False))
    assert [names(wire) for wire in wires] == [["a", "c"], ["b", "d", "e", "f"]]


@pytest.mark.plain
async def test_the_policy_sees_how_many_are_held_when_some_have_left() -> None:
    """An abort takes one, and each that is placed another."""
    router, _, _ = holding()
    fleet = router._fleets[0]["both"]
    assert fleet.num_held == 3
    router.handle(Abort(("f",), "abort"))
    assert fleet.num_held == 2
    router.handle(Released(("a",)))
    assert fleet.num_held == 1


@pytest.mark.plain
async def test_what_is_held_when_one_replica_is_dead_waits_for_the_other_to_be_undrained() -> None:
    """It is reported only when no replica will ever be up."""
    router, wires, reports = holding()
    router.handle(Drain(1))
    router.handle(EngineDown(0, "gone", None))
    held = [name for report in reports.told for name in report.request_ids]
    assert sorted(held) == ["a", "c"]
    router.handle(Released(("b", "d")))
    router.handle(Drain(1, is_draining=False))
    assert names(wires[1]) == ["b", "d", "e", "f"]


async def test_a_served_request_that_is_held_while_all_is_drained_is_answered_after_an_undrain() -> None:
    """The server lives, refuses new requests, and keeps those that it has taken."""
    async with served(router=find_router(HOLDS), replicas=2, max_num_seqs=9) as (_, client):
        answers = [await ask(client, name, 5) for name in "abcdef"]
        drains = [client.request(Drain(replica)) for replica in (0, 1)]
        ends = [await read(answer) for answer in answers[:4]]
        assert [end.num_tokens for end in ends] == [5] * 4
        await trio.sleep(1.0)
        assert (await health(client)).status == "draining"
        assert await client.ask(Drain(0, is_draining=False)) == Done()
        assert [(await read(answer)).num_tokens for answer in answers[4:]] == [5, 5]
        assert len(drains) == 2


def test_every_held_request_of_a_replay_ends_once() -> None:
    """And the same each time."""
    scheduler = SchedulerConfig(num_gpu_blocks=100, max_num_seqs=8, max_model_len=512)
    rows = [TraceRequest(f"r{number}", number * 0.01, 40, 20 + 37 * number % 180) for number in range(60)]
    found = []
    for _ in range(2):
        config = EngineConfig(scheduler, replicas=3, router=find_router(HOLDS))
        found.append(summarize(replay(rows, config, COST, Capacity(100, 16))))
    assert found[0] == found[1] and found[0].num_finished == 60


async def test_a_served_request_that_is_held_is_answered_and_can_be_cancelled() -> None:
    """At most two are at a replica; who is held waits for nothing else."""
    async with served(router=find_router(HOLDS), max_num_seqs=9) as (world, client):
        answers = [await ask(client, name, 5) for name in "abcdef"]
        client.tell(Cancel("d"))
        ends = [await read(answer) for answer in answers]
        assert [end.finish_reason for end in ends] == ["length"] * 3 + ["abort"] + ["length"] * 2
        assert (await health(client)).status == "healthy"
    assert max(output.num_running + output.num_waiting for output in world.listener.outputs) == 2


async def test_held_requests_outlive_a_crash() -> None:
    """They were in no batch, and are answered by the next core."""
    async with served(router=find_router(HOLDS)) as (world, client):
        answers = [await ask(client, name, 5) for name in "abcde"]
        world.crash()
        assert [(await read(answer)).num_tokens for answer in answers] == [0, 0, 5, 5, 5]
        await trio.sleep(2 * BACKOFF.first_s)
        assert (await health(client)).status == "healthy"


@pytest.mark.long(reason="replays many requests, or many random cases", moderate=True)
def test_an_emulated_server_holds_requests(tmp_path: Path) -> None:
    """Its clients see nothing of it but the wait."""
    with live(*EMULATED, "--router", HOLDS.replace("most=2", "most=1")) as server:
        with_ends = [server.complete(max_tokens=2).status_code for _ in range(3)]
        assert with_ends == [200] * 3
