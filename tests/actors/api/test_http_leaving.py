"""Clients that disconnect at each point of a request or answer; all their resources are released."""

import random
from typing import Any

import pytest
import trio
import trio.testing

from sundog.actors.config.http import HttpSettings
from tests.actors.api.wire import GET, completion
from tests.live import Live
from tests.patience import HANGS_S
from tests.soak.manners import MANNERS, left_over

pytestmark = pytest.mark.wall_clock

LONG = HttpSettings(keep_alive_s=1000)
"""What is left of a client that has left is not what an idle one may keep."""
STREAMED = completion(stream=True, max_tokens=6, n=2)
WHOLE = completion(max_tokens=6)


async def until_nothing_is_left(num_tasks: int) -> None:
    """As many tasks as before; only a test that hangs meets the limit."""
    with trio.fail_after(HANGS_S):
        while trio.lowlevel.current_statistics().tasks_living > num_tasks:
            await trio.sleep(0.01)


def is_whole(answer: bytes) -> bool:
    """Whether nothing more comes. Tokens written together make an answer shorter than the one before."""
    return answer.endswith(b"0\r\n\r\n") or (b"content-length" in answer.lower() and answer.endswith(b"}}"))


@pytest.mark.parametrize("request_bytes", [STREAMED, WHOLE])
@pytest.mark.parametrize("resets", [True, False])
async def test_no_task_is_left_of_a_client_that_leaves_while_it_asks(
    serving: Any, exchange: Any, request_bytes: bytes, resets: bool
) -> None:
    """After any number of bytes, by a reset or by saying that no more comes."""
    async with serving(settings=LONG) as site:
        await trio.testing.wait_all_tasks_blocked(0.05)
        before = trio.lowlevel.current_statistics().tasks_living
        for cut in range(0, len(request_bytes), 5):
            stream = await site.connect()
            await stream.send_all(request_bytes[:cut])
            if not resets:
                await stream.send_eof()
                with trio.move_on_after(0.01):
                    await stream.receive_some()
            await trio.aclose_forcefully(stream)
        await until_nothing_is_left(before)
        assert not site.llm.asked
        async with await site.connect() as stream:
            assert (await exchange(stream, GET))[0] == 200


@pytest.mark.long(keep=1, reason="more cases of the law whose first `make test` runs", moderate=True)
@pytest.mark.parametrize("request_bytes", [STREAMED, WHOLE])
async def test_no_request_is_left_of_a_client_that_leaves_while_it_is_answered(
    serving: Any, exchange: Any, request_bytes: bytes
) -> None:
    """After any number of bytes of the answer: what it has not read to the end is cancelled."""
    async with serving(settings=LONG) as site:
        site.llm.gap_s = 0.001
        async with await site.connect() as stream:
            await stream.send_all(request_bytes)
            answer = b""
            while not is_whole(answer):
                answer += await stream.receive_some()
        await site.llm.until(lambda llm: len(llm.asked) == 1)
        before = trio.lowlevel.current_statistics().tasks_living
        for cut in range(0, len(answer), 40):
            async with await site.connect() as stream:
                await stream.send_all(request_bytes)
                read = b""
                while len(read) < cut and not is_whole(read):
                    read += await stream.receive_some(cut - len(read))
        await until_nothing_is_left(before)
        assert len(site.llm.asked) > 10 and len(set(site.llm.cancelled)) == len(site.llm.cancelled)
        async with await site.connect() as stream:
            assert (await exchange(stream, GET))[0] == 200


@pytest.mark.long(reason="starts a server, and asks it over sockets", moderate=True)
async def test_nothing_is_held_after_clients_of_all_manners(emulated_server: Live) -> None:
    """No 5xx, no broken answer; then no request runs or waits, and every block is free."""
    rng = random.Random(7)
    manners = [manner for manner in MANNERS for _ in range(12)]
    rng.shuffle(manners)
    limit = trio.CapacityLimiter(12)

    async def one(manner: Any) -> None:
        async with limit:
            await manner(emulated_server.port, rng)

    with trio.fail_after(120):
        async with trio.open_nursery() as nursery:
            for manner in manners:
                nursery.start_soon(one, manner)
        while await trio.to_thread.run_sync(left_over, emulated_server.url):
            await trio.sleep(0.05)
    emulated_server.assert_sound()
