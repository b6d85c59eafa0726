"""The Router distributes requests evenly, and sends later messages to the right replica."""

from typing import Any

import pytest
import trio

from sundog.actors.engine.engine_core import EngineRefs
from sundog.actors.graph import open_graph
from sundog.actors.kernel.actor import Ref
from sundog.actors.messages import Abort, Accepted, Cancel, Capacity, Generate, Released, Sampling, Submit
from sundog.actors.policy_file import find_router
from sundog.actors.router.router import Router
from tests.actors.fakes import FakeBackend, engine_config, read


class Wire:
    """Stands for a scheduler's address, and keeps what it was told."""

    def __init__(self) -> None:
        self.told: list[Any] = []
        self.is_open = True

    def tell(self, message: Any) -> None:
        self.told.append(message)

    def close(self) -> None:
        self.is_open = False


def submit(name: str) -> Submit:
    return Submit(name, 0.0, 4, 4)


def connected(policy: str, num_replicas: int) -> tuple[Router, list[Wire]]:
    router, wires = Router("router", find_router(policy)), [Wire() for _ in range(num_replicas)]
    for wire in wires:
        ref: Any = wire
        router.connect(EngineRefs(ref, ref, Capacity(9, 4)))
    return router, wires


def names(wire: Wire) -> list[str]:
    return [message.request_id for message in wire.told if isinstance(message, Submit)]


@pytest.mark.plain
async def test_round_robin_takes_turns() -> None:
    """Whoever is busy."""
    router, wires = connected("round-robin", 3)
    for name in "abcdefg":
        router.handle(submit(name))
    assert [names(wire) for wire in wires] == [["a", "d", "g"], ["b", "e"], ["c", "f"]]


@pytest.mark.plain
async def test_least_requests_takes_the_replica_with_the_fewest_unfinished() -> None:
    """The first of equals; a request counts until it is released."""
    router, wires = connected("least-requests", 2)
    for name in "abcd":
        router.handle(submit(name))
    assert [names(wire) for wire in wires] == [["a", "c"], ["b", "d"]]
    router.handle(Released(("b", "d")))
    for name in "efg":
        router.handle(submit(name))
    assert [names(wire) for wire in wires] == [["a", "c", "g"], ["b", "d", "e", "f"]]


@pytest.mark.plain
async def test_an_abort_goes_to_the_replica_that_has_the_request() -> None:
    """One message a replica; who is unknown, or has ended, is nobody's."""
    router, wires = connected("round-robin", 2)
    for name in "abcd":
        router.handle(submit(name))
    router.handle(Released(("d",)))
    router.handle(Abort(("a", "b", "c", "d", "nobody"), "stop"))
    assert wires[0].told[2:] == [Abort(("a", "c"), "stop")]
    assert wires[1].told[2:] == [Abort(("b",), "stop")]


@pytest.mark.plain
async def test_the_router_hangs_up_on_its_replicas_in_the_end() -> None:
    """So that they end."""
    router, wires = connected("round-robin", 2)
    async with trio.open_nursery() as nursery:
        ref = router.ref("test")
        await nursery.start(router.live)
        ref.close()
    assert not any(wire.is_open for wire in wires)


async def test_in_the_graph_a_cancelled_request_leaves_the_replica_it_was_on() -> None:
    """The others' go on to their ends."""
    seen: list[tuple[str, Any]] = []

    def tap(time_s: float, sender: str, receiver: str, message: Any) -> None:
        if isinstance(message, Submit | Abort):
            seen.append((receiver, message))

    config = engine_config(replicas=3)
    backends = [FakeBackend(key=str(replica)) for replica in range(3)]
    async with open_graph(config, backends, tap=tap) as client:
        accepted = [await ask(client, name) for name in "abc"]
        await trio.sleep(0.05)
        client.tell(Cancel("b"))
        ends = [(await read(each)).finish_reason for each in accepted]
    assert ends == ["length", "abort", "length"]
    home = {
        message.request_id: receiver
        for receiver, message in seen
        if isinstance(message, Submit) and receiver != "router"
    }
    aborts = [(receiver, m) for receiver, m in seen if isinstance(m, Abort)]
    assert home == {"a": "scheduler-0", "b": "scheduler-1", "c": "scheduler-2"}
    assert aborts == [("router", Abort(("b",))), ("scheduler-1", Abort(("b",)))]


async def ask(client: Ref, name: str) -> Accepted:
    answer = await client.ask(Generate((1, 2, 3), Sampling(max_tokens=20), request_id=name))
    assert isinstance(answer, Accepted)
    return answer
