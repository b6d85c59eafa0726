"""A draining replica finishes its requests and gets no new ones."""

import pytest
import trio

from sundog.actors.core.routers import RoundRobin
from sundog.actors.messages import Accepted, Cancel, Done, Drain, Generate, Refused, Sampling
from sundog.actors.metrics.metrics import Metrics
from tests.actors.fakes import STEP_S, read
from tests.test_fates import BACKOFF, World, ask, health, served

ROUTED = {"replicas": 2, "router": RoundRobin()}


def replicas_asked(world: World) -> list[int]:
    """Which replicas did steps with work, in order."""
    return [output.replica for output in world.listener.outputs if output.batch.num_tokens]


async def test_a_drained_replica_is_given_nothing_until_it_is_undrained() -> None:
    """What it has is finished first, and only then is it drained; /health is degraded meanwhile."""
    async with served(**ROUTED) as (world, client):
        first = await ask(client, "a", 20)
        await trio.sleep(2 * STEP_S)
        async with trio.open_nursery() as nursery:

            async def drain() -> None:
                assert await client.ask(Drain(0)) == Done()
                assert trio.current_time() >= 20 * STEP_S

            nursery.start_soon(drain)
            await trio.sleep(2 * STEP_S)
            state = await health(client)
            assert (state.status, state.replicas) == ("degraded", ("draining", "healthy"))
            assert (await read(first)).num_tokens == 20
        del world.listener.outputs[:]
        for name in ("b", "c", "d"):
            assert (await read(await ask(client, name, 2))).num_tokens == 2
        assert set(replicas_asked(world)) == {1}
        assert await client.ask(Drain(0, is_draining=False)) == Done()
        for name in ("e", "f"):
            await read(await ask(client, name, 2))
        assert set(replicas_asked(world)) == {0, 1}
        assert (await health(client)).status == "healthy"


async def test_a_server_whose_engines_are_all_drained_refuses_and_says_so() -> None:
    """A 503 in HTTP; a request that runs is finished."""
    async with served() as (_, client):
        running = await ask(client, "a", 20)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.ask, Drain(0))
            await trio.sleep(STEP_S)
            assert (await health(client)).status == "draining"
            refused = await client.ask(Generate("hello"))
            assert isinstance(refused, Refused) and refused.kind == "unavailable"
            assert "drained" in refused.reason
            assert (await read(running)).num_tokens == 20


async def test_a_drain_may_be_undone_before_it_is_done() -> None:
    """Whoever waits for it is told."""
    async with served() as (_, client):
        running = await ask(client, "a", 20)
        async with trio.open_nursery() as nursery:

            async def drain() -> None:
                assert isinstance(await client.ask(Drain(0)), Refused)

            nursery.start_soon(drain)
            await trio.sleep(STEP_S)
            assert await client.ask(Drain(0, is_draining=False)) == Done()
        assert isinstance(await client.ask(Generate("hello", Sampling(max_tokens=1))), Accepted)
        await read(running)


@pytest.mark.parametrize("replica", [-1, 2, 10**9])
async def test_an_unknown_engine_cannot_be_drained(replica: int) -> None:
    """It is refused by its number, and nothing changes."""
    async with served(**ROUTED) as (_, client):
        refused = await client.ask(Drain(replica))
        assert isinstance(refused, Refused) and refused.param == "engine"
        assert (await health(client)).status == "healthy"


async def test_a_drained_replica_that_crashes_comes_back_drained() -> None:
    """What it had not begun goes to another; what drains it is done, since it has nothing any more."""
    metrics = Metrics(2, 128)
    async with served(listeners=[metrics], max_num_seqs=1, **ROUTED) as (world, client):
        dies, _, waits = [await ask(client, name, 20) for name in ("dies", "other", "waits")]
        world.crash(0)
        assert await client.ask(Drain(0)) == Done()
        assert (await read(dies)).finish_reason == "error"
        assert (await read(waits)).num_tokens == 20
        await trio.sleep(2 * BACKOFF.first_s)
        assert (await health(client)).replicas == ("draining", "healthy")
        assert not metrics.requests


async def test_clients_that_leave_while_no_engine_is_up_are_forgotten() -> None:
    """By what is measured, too: one that waits for an engine, one that the lost engine should have ended."""
    metrics = Metrics(1, 128)
    async with served(listeners=[metrics], max_num_seqs=1) as (world, client):
        _, waits, leaves = [await ask(client, name) for name in ("dies", "waits", "leaves")]
        world.crash()
        client.tell(Cancel("leaves"))
        while (await health(client)).status == "healthy":
            await trio.sleep(STEP_S / 10)
        assert set(metrics.requests) == {"waits"}
        client.tell(Cancel("waits"))
        assert [(await read(each)).finish_reason for each in (waits, leaves)] == ["abort", "abort"]
        assert not metrics.requests
        assert metrics.engines[0].ended == {"abort": 2, "error": 1}


async def test_a_core_that_has_answered_begins_anew() -> None:
    """Crashes between which requests are answered do not add up, however soon they follow each other."""
    async with served() as (world, client):
        for number in range(2 * BACKOFF.most_crashes):
            world.crash()
            assert (await read(await ask(client, f"dies{number}"))).finish_reason == "error"
            await trio.sleep(BACKOFF.first_s + STEP_S)
            assert (await read(await ask(client, f"a{number}", 2))).num_tokens == 2
        assert (await health(client)).status == "healthy"
        assert trio.current_time() < BACKOFF.stable_s
