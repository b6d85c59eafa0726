"""Shutdown finishes all requests, and does not wait for idle connections."""

import socket
from typing import Any

import pytest
import trio
import trio.testing

from sundog.actors.api.address import listen
from sundog.actors.core.config import ConfigError
from tests.actors.api.wire import GET, completion

pytestmark = pytest.mark.wall_clock


async def test_idle_connections_do_not_delay_shutdown(serving: Any, exchange: Any) -> None:
    """Fresh, used and half-asking connections are closed at once, not after the grace."""
    async with serving(grace_s=1000) as site:
        used, fresh, asking = [await site.connect() for _ in range(3)]
        assert (await exchange(used, GET))[0] == 200
        await asking.send_all(GET[:20])
        await trio.testing.wait_all_tasks_blocked(0.01)
        site.stop.set()
        await site.stopped.wait()
        for stream in (used, fresh, asking):
            assert await stream.receive_some() == b""
            await stream.aclose()


@pytest.mark.parametrize("streamed", [False, True])
async def test_running_answers_finish_and_nobody_new_comes_in(serving: Any, streamed: bool) -> None:
    """After shutdown began, an answer goes on to its end, and connecting is refused."""
    async with serving(grace_s=1000) as site:
        site.llm.may_finish = trio.Event()
        async with await site.connect() as stream:
            await stream.send_all(completion(stream=streamed))
            await site.llm.until(lambda llm: len(llm.asked) == 1)
            data = await stream.receive_some() if streamed else b""
            site.stop.set()
            await trio.testing.wait_all_tasks_blocked(0.01)
            with pytest.raises(OSError, match="all attempts to connect"):
                await site.connect()
            assert not site.stopped.is_set()
            site.llm.may_finish.set()
            while received := await stream.receive_some():
                data += received
            assert b"w15 " in data and (b"[DONE]" in data) == streamed
        await site.stopped.wait()
        assert site.llm.cancelled == []


async def test_the_grace_ends_what_does_not_end(serving: Any) -> None:
    """An answer that takes longer than the grace is cut and cancelled."""
    async with serving(grace_s=0.1) as site:
        site.llm.may_finish = trio.Event()
        async with await site.connect() as stream:
            await stream.send_all(completion(stream=True))
            await stream.receive_some()
            site.stop.set()
            await site.stopped.wait()
            assert site.llm.cancelled == [site.llm.asked[0].request_id]
        site.llm.may_finish.set()


async def test_a_client_that_does_not_read_cannot_block_shutdown(serving: Any) -> None:
    """The server is stuck in a write; after the grace its socket is closed under it."""
    async with serving(grace_s=0.1) as site:
        site.llm.word_size = 1_000_000
        site.llm.may_finish = trio.Event()
        async with await site.connect() as stream:
            await stream.send_all(completion(stream=True, max_tokens=20))
            await site.llm.until(lambda llm: len(llm.asked) == 1)
            await trio.sleep(0.2)
            site.stop.set()
            await site.stopped.wait()
            assert site.llm.cancelled == [site.llm.asked[0].request_id]
        site.llm.may_finish.set()


async def test_cancelling_the_server_does_not_wait_for_a_client_either(serving: Any) -> None:
    """Cancellation from outside, without any shutdown, closes the sockets as well."""
    with trio.move_on_after(0.5) as scope:
        async with serving(grace_s=1000) as site:
            site.llm.word_size = 1_000_000
            async with await site.connect() as stream:
                await stream.send_all(completion(stream=True, max_tokens=20))
                await trio.sleep_forever()
    assert scope.cancelled_caught


async def test_a_port_in_use_is_a_setting_that_cannot_work(serving: Any) -> None:
    """The error names the option to change."""
    async with serving() as site:
        with pytest.raises(ConfigError, match="--port"):
            listen("127.0.0.1", site.port)


def test_an_address_that_is_not_ours_is_a_setting_that_cannot_work() -> None:
    """So are a port out of range and a host without address."""
    for host, port, option in (
        ("192.0.2.1", 0, "--host"),
        ("127.0.0.1", 70_000, "--port"),
        ("a..b", 0, "--host"),
    ):
        with pytest.raises(ConfigError, match=option):
            listen(host, port)


def test_both_families_can_be_listened_on() -> None:
    """A host with a colon is IPv6."""
    if not socket.has_ipv6:
        pytest.skip("no IPv6")
    for host in ("127.0.0.1", "::1"):
        try:
            listener = listen(host, 0)
        except ConfigError:
            pytest.skip(f"this host has no {host}")
        listener.close()
