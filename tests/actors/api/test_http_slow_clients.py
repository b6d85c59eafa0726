"""Clients that send or read slowly, or not at all, delay no other client."""

import json
import socket
from contextlib import AsyncExitStack
from typing import Any

import pytest
import trio

from sundog.actors.config.http import HttpSettings
from sundog.actors.http.quart_app import Connection
from tests.actors.api.wire import GET, JSON, completion

pytestmark = pytest.mark.wall_clock


@pytest.mark.parametrize(("declared", "status"), [(5_000, 408), (50_000, 413)])
async def test_a_body_that_never_comes_is_given_up(
    serving: Any, exchange: Any, declared: int, status: int
) -> None:
    """Whoever promises a body and does not send it is answered and hung up on."""
    head = JSON + b"Content-Length: %d\r\n\r\n" % declared
    async with serving(max_body_bytes=10_000, body_timeout_s=0.2) as site, await site.connect() as stream:
        assert (await exchange(stream, head, b"{"))[0] == status
        assert await stream.receive_some() == b""


async def test_a_body_may_come_in_many_chunks(serving: Any, exchange: Any) -> None:
    """More chunks than any queue holds, in both framings."""
    body = json.dumps({"prompt": "x" * 5000, "max_tokens": 1}).encode()
    pieces = [body[at : at + 10] for at in range(0, len(body), 10)]
    chunks = [b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces]
    async with serving() as site:
        async with await site.connect() as stream:
            plain = JSON + b"Content-Length: %d\r\n\r\n" % len(body)
            assert (await exchange(stream, plain, *pieces))[0] == 200
            chunked = JSON + b"Transfer-Encoding: chunked\r\n\r\n"
            assert (await exchange(stream, chunked, *chunks, b"0\r\n\r\n"))[0] == 200
        assert [len(generate.prompt) for generate in site.llm.asked] == [5000, 5000]


async def test_a_slow_reader_gets_every_byte_once(serving: Any, exchange: Any) -> None:
    """An answer larger than any socket buffer goes out in pieces and arrives as it was."""
    async with serving() as site:
        site.llm.word_size = 1_000_000
        async with await site.connect() as stream:
            status, _, body = await exchange(stream, completion(max_tokens=6))
            assert (await exchange(stream, GET))[0] == 200
    text = json.loads(body)["choices"][0]["text"]
    assert status == 200 and text == "".join(f"w{index} " * 1_000_000 for index in range(6))


@pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="the system has no such limit")
async def test_a_client_that_takes_nothing_is_dropped(serving: Any) -> None:
    """The limit set on the listening socket is inherited, and ends the generation."""
    async with serving(settings=HttpSettings(stalled_client_s=0.3)) as site:
        site.llm.word_size = 1_000_000
        site.llm.may_finish = trio.Event()
        async with await site.connect() as stream:
            await stream.send_all(completion(stream=True, max_tokens=20))
            await site.llm.until(lambda llm: len(llm.cancelled) == 1)


async def trickle(stream: trio.abc.Stream, data: bytes, gap_s: float) -> None:
    """Send one byte after the other until the server has had enough."""
    try:
        for at in range(len(data)):
            await stream.send_all(data[at : at + 1])
            await trio.sleep(gap_s)
    except trio.BrokenResourceError:
        pass


async def test_a_body_that_trickles_is_given_up_though_bytes_keep_coming(serving: Any) -> None:
    """The time for a body is counted from its beginning, not from its last byte."""
    head = JSON + b"Content-Length: 5000\r\n\r\n"
    async with (
        serving(body_timeout_s=0.3) as site,
        await site.connect() as stream,
        trio.open_nursery() as nursery,
    ):
        await stream.send_all(head)
        nursery.start_soon(trickle, stream, b" " * 5000, 0.02)
        assert (await stream.receive_some()).startswith(b"HTTP/1.1 408")
        nursery.cancel_scope.cancel()


async def test_headers_that_trickle_are_given_up(serving: Any) -> None:
    """A connection that has not asked is idle, whatever it sends."""
    async with (
        serving(settings=HttpSettings(keep_alive_s=0.3)) as site,
        await site.connect() as stream,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(trickle, stream, GET[:-4] + b"\r\nA: b" * 1000, 0.02)
        assert await read_to_end(stream) == b""
        nursery.cancel_scope.cancel()


async def read_to_end(stream: trio.abc.Stream) -> bytes:
    data = b""
    try:
        while received := await stream.receive_some():
            data += received
    except trio.BrokenResourceError:  # a reset is an end, too
        pass
    return data


async def test_slow_clients_do_not_hold_up_the_others(serving: Any, exchange: Any) -> None:
    """While 20 clients trickle their bodies and 10 take nothing of theirs, all others are served."""
    body = json.dumps({"prompt": "x" * 4000}).encode()
    slow = JSON + b"Content-Length: %d\r\n\r\n" % len(body) + body
    async with serving() as site, AsyncExitStack() as crowd, trio.open_nursery() as nursery:
        site.llm.word_size = 300_000
        for _ in range(20):
            stream = await crowd.enter_async_context(await site.connect())
            nursery.start_soon(trickle, stream, slow, 0.05)
        for _ in range(10):
            stream = await crowd.enter_async_context(await site.connect())
            await stream.send_all(completion(stream=True, max_tokens=10))
        await site.llm.until(lambda llm: len(llm.asked) == 10)
        site.llm.word_size = 1
        for streamed in (False, True) * 10:
            async with await site.connect() as stream:
                if streamed:
                    await stream.send_all(completion(stream=True))
                    data = b""
                    while not data.endswith(b"0\r\n\r\n"):
                        data += await stream.receive_some()
                    assert b"w15 " in data
                else:
                    assert (await exchange(stream, completion()))[0] == 200
        nursery.cancel_scope.cancel()


async def test_a_step_of_a_stream_is_one_send(serving: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the app's: the head, one for each delta, the usage in the last, and the end."""
    sent: list[dict[str, Any]] = []
    plain = Connection.handle_request

    async def counted(connection: Connection, nursery: trio.Nursery, request: Any, send: Any) -> None:
        async def count(event: dict[str, Any]) -> None:
            sent.append(event)
            await send(event)

        await plain(connection, nursery, request, count)

    monkeypatch.setattr(Connection, "handle_request", counted)
    async with serving() as site, await site.connect() as stream:
        site.llm.gap_s = 0.01
        options = {"stream": True, "max_tokens": 6, "stream_options": {"include_usage": True}}
        await stream.send_all(completion(**options))
        while not (await stream.receive_some()).endswith(b"0\r\n\r\n"):
            pass
    assert len(sent) == 1 + 6 + 1, sent
    assert b"w5 " in sent[-2]["body"] and b"[DONE]" in sent[-2]["body"] and not sent[-1]["body"]
