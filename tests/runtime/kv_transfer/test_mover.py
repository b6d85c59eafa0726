"""The KV mover under link faults, between ports that take a tenth of a second per block."""

from collections.abc import Callable
from typing import Any

import pytest
import trio

from sundog.actors.kernel.actor import Actor, Handled, Reply, answer
from sundog.actors.kernel.clock import Event, now_s, sleep_until
from sundog.actors.messages import CeaseFetch, Done, FetchKv, Refused
from sundog.runtime.kv_transfer.messages import KvPart, ReadKv, WriteKv
from sundog.runtime.kv_transfer.mover import KvMover

FETCH = FetchKv("r", 0, 1, 64, (1, 2, 3, 4), (5, 6, 7, 8))
ALONE_S = 0.4


class SlowPort(Actor[Any]):
    """Reads a block in a tenth of a second, and writes in no time."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.num_written = 0

    def handle(self, message: Any) -> Handled:
        if isinstance(message, Reply):
            return message.set(KvPart(1, b"x"))
        if isinstance(message, WriteKv):
            self.num_written += len(message.block_ids)
            return answer(message, Done())
        assert isinstance(message, ReadKv)
        reply: Reply[KvPart] = Reply()
        self.schedule(now_s() + 0.1, Event.TIMEOUT, reply)
        return answer(message, reply)


async def fetched(
    acts: dict[float, Callable[[KvMover], None]], fetch: FetchKv = FETCH
) -> tuple[Done | Refused | None, float, int]:
    """What became of a transfer, when, and how many blocks were written; `acts` are by their instants."""
    mover, ports = KvMover(), [SlowPort("port-0"), SlowPort("port-1")]
    begin_s, end_s, found = now_s(), 0.0, None
    async with trio.open_nursery() as nursery:
        for replica, port in enumerate(ports):
            mover.connect(replica, port.ref("mover"))
            nursery.start_soon(port.live)
        links = mover.ref("router")
        nursery.start_soon(mover.live)

        async def ask() -> None:
            nonlocal found, end_s
            found, end_s = await links.ask(fetch), now_s() - begin_s

        nursery.start_soon(ask)
        for at_s, act in acts.items():
            await sleep_until(begin_s + at_s)
            act(mover)
        await sleep_until(begin_s + 100)
        nursery.cancel_scope.cancel()
    return found, end_s, ports[1].num_written


async def test_a_slow_link_takes_longer_by_its_part() -> None:
    """A quarter of the pace, at either end, is four times as long; back at its own it is as before."""
    assert await fetched({}) == (Done(), pytest.approx(ALONE_S), 4)
    for replica in (0, 1):
        slow = {0.0: lambda mover, it=replica: mover.slow_down(it, 0.25)}
        assert await fetched(slow) == (Done(), pytest.approx(4 * ALONE_S), 4)
    for_a_while = {0.0: lambda mover: mover.slow_down(0, 0.25), 0.75: lambda mover: mover.slow_down(0, 1.0)}
    assert (await fetched(for_a_while))[1] == pytest.approx(0.8 + 0.2)


async def test_what_is_cut_off_goes_on_when_both_ends_are_there_again() -> None:
    """The part under way arrives; the rest waits, and is not sent while one end is still cut off."""
    cut = {
        0.25: lambda mover: (mover.slow_down(0, 0.0), mover.slow_down(1, 0.0)),
        5.0: lambda mover: mover.slow_down(0, 1.0),
        9.0: lambda mover: mover.slow_down(1, 1.0),
    }
    assert await fetched(cut) == (Done(), pytest.approx(9.1), 4)


async def test_a_transfer_that_ceases_while_it_is_cut_off_moves_nothing_more() -> None:
    """Its blocks may be another request's by then."""
    ceased = {
        0.15: lambda mover: mover.slow_down(0, 0.0),
        1.0: lambda mover: mover.ref("router").tell(CeaseFetch("r")),
        2.0: lambda mover: mover.slow_down(0, 1.0),
    }
    assert await fetched(ceased) == (None, 0.0, 2)


async def test_a_transfer_is_lost_when_it_would_be_done() -> None:
    """It is refused, and counted."""
    movers: list[KvMover] = []

    def lose(mover: KvMover) -> None:
        movers.append(mover)
        mover.lose(1.0, more=True)

    refused, end_s, _ = await fetched({0.2: lose})
    assert isinstance(refused, Refused) and end_s == pytest.approx(ALONE_S)
    assert (movers[0].totals.num_lost, movers[0].totals.num_transfers) == (1, 0)
