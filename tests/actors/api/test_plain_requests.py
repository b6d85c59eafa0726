"""Plain requests pass by h11 and Hypercorn, and nobody can tell: the same bytes, however they arrive."""

import re
import socket
import struct
from typing import Any

import h11
import pytest
import trio

from actors.api.edge.plain_head import read_head
from tests.actors.api.wire import GET, completion

pytestmark = pytest.mark.wall_clock

NOT_PLAIN = b"Trailer: x\r\n"
"""A header that changes nothing but the way."""


def by_hypercorn(request: bytes) -> bytes:
    return request.replace(b"Host: x\r\n", b"Host: x\r\n" + NOT_PLAIN)


async def answer(stream: trio.SocketStream, end: bytes) -> bytes:
    """What is answered up to `end`, without what differs from request to request."""
    data = b""
    with trio.fail_after(5):
        while not data.endswith(end):
            data += await stream.receive_some()
    return re.sub(rb'date: .*?\r\n|[0-9a-f]{32}|"created":\d+', b"", data)


@pytest.mark.parametrize(
    ("request_", "end"),
    [
        (GET, b"}"),
        (completion(max_tokens=3), b"}"),
        (completion(stream=True, max_tokens=1), b"0\r\n\r\n"),
        (GET.replace(b"GET /health", b"GET /nowhere?a=%20b"), b"}"),
        (completion(prompt=3), b"}"),
    ],
)
async def test_both_ways_give_the_same_bytes(serving: Any, request_: bytes, end: bytes) -> None:
    """Heads, errors, whole answers and streams; and the connection goes on."""
    assert read_head(request_) is not None
    assert read_head(by_hypercorn(request_)) is None
    async with serving() as site, await site.connect() as stream:
        answers = []
        for each in (request_, by_hypercorn(request_), request_):
            await stream.send_all(each)
            answers.append(await answer(stream, end))
        assert answers[0] == answers[1] == answers[2]


@pytest.mark.parametrize("first", [True, False])
async def test_requests_that_are_sent_early_have_their_turn(serving: Any, first: bool) -> None:
    """A client that pipelines has its answers in order, whichever way each request goes."""
    streamed, plain = completion(stream=True, max_tokens=3), GET
    if not first:
        streamed, plain = by_hypercorn(streamed), by_hypercorn(plain)
    async with serving() as site, await site.connect() as stream:
        await stream.send_all(streamed + plain + completion(max_tokens=1) + plain[:9])
        data = b""
        with trio.fail_after(5):
            while data.count(b"HTTP/1.1 200") < 3 or not data.endswith(b"}"):
                data += await stream.receive_some()
        order = [b"[DONE]", b'"status":"ok"', b'"prompt_logprobs"']
        assert sorted(order, key=data.index) == order
        await stream.send_all(plain[9:])
        assert b"200" in await answer(stream, b"}")


async def test_a_client_that_pipelines_and_leaves_is_cancelled(serving: Any) -> None:
    """Its leaving is seen behind the requests that wait, and they are never begun."""
    async with serving() as site:
        site.llm.may_finish = trio.Event()
        async with await site.connect() as stream:
            await stream.send_all(completion() * 3)
            await site.llm.until(lambda llm: len(llm.asked) == 1)
        await site.llm.until(lambda llm: len(llm.cancelled) == 1)
        assert len(site.llm.asked) == 1


async def test_a_client_that_pipelines_without_end_and_leaves_is_cancelled(serving: Any) -> None:
    """Nothing more is read behind so much, but what is written says that it has left."""
    async with serving() as site:
        site.llm.gap_s = 0.01
        async with await site.connect() as stream:
            await stream.send_all(completion(stream=True, max_tokens=3000))
            with trio.move_on_after(0.5):
                while True:
                    await stream.send_all(GET * 1000)
            stream.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        await site.llm.until(lambda llm: len(llm.cancelled) == 1)


async def test_a_client_that_half_closes_is_told_nothing_wrong(serving: Any) -> None:
    """It has left, as far as HTTP goes: no 500 comes after that."""
    async with serving() as site:
        site.llm.may_finish = trio.Event()
        async with await site.connect() as stream:
            await stream.send_all(completion())
            await site.llm.until(lambda llm: len(llm.asked) == 1)
            await stream.send_eof()
            with trio.fail_after(5):
                assert await stream.receive_some() == b""


@pytest.mark.parametrize("size", [1, 7, 40])
async def test_a_request_in_pieces_is_the_same_request(serving: Any, size: int) -> None:
    """Of a body that comes behind its head, and of a head that trickles."""
    request = completion(max_tokens=2)
    head = request.index(b"\r\n\r\n") + 4
    async with serving() as site, await site.connect() as stream:
        for first in (head, head + 3, 11):
            await stream.send_all(request[:first])
            for start in range(first, len(request), size):
                await trio.lowlevel.checkpoint()
                await stream.send_all(request[start : start + size])
            assert (await answer(stream, b"}")).startswith(b"HTTP/1.1 200 ")


HEADS = [
    b"GET /a HTTP/1.1\r\nHost: x\r\n\r\n",
    b"POST /v1/x?y=%7e HTTP/1.1\r\nHOST:x \r\nContent-Length: 12\r\nX-A:\r\nx-b:  a  b  \r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: x\r\nConnection: Keep-Alive\r\nCookie: \xe4\xff\r\n\r\n",
]


@pytest.mark.parametrize("head", HEADS)
def test_plain_heads_are_read_as_h11_reads_them(head: bytes) -> None:
    """Method, target, headers in their order and the body's length."""
    theirs = h11.Connection(h11.SERVER)
    theirs.receive_data(head + b"x" * 12)
    event, ours = theirs.next_event(), read_head(head + b"x" * 12)
    assert isinstance(event, h11.Request) and ours is not None
    assert (ours.method.encode(), ours.target) == (event.method, event.target)
    assert ours.headers == list(event.headers)
    assert ours.num_bytes == len(head)
    assert ours.num_body_bytes == (12 if b"Length" in head else 0)


@pytest.mark.parametrize(
    "head",
    [
        b"GET /a HTTP/1.1\r\nHost: x\r\n",
        b"GET /a HTTP/1.0\r\nHost: x\r\n\r\n",
        b"HEAD /a HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET http://x/a HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET /\xe4 HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET /a HTTP/1.1\r\n\r\n",
        b"GET /a HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n",
        b"GET /a HTTP/1.1\r\nHost: x\r\n folded\r\n\r\n",
        b"GET /a HTTP/1.1\r\nHost: x\r\nX : y\r\n\r\n",
        b"GET /a HTTP/1.1\r\nHost: x\r\nX: a\nY: b\r\n\r\n",
        b"GET /a HTTP/1.1\r\nHost: x\r\nX: a\x00\r\n\r\n",
        b"GET /a HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
        b"POST /a HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nContent-Length: 3\r\n\r\n",
        b"POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: +3\r\n\r\n",
        b"POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nExpect: 100-continue\r\n\r\n",
        b"GET /a HTTP/1.1\r\nHost: x\r\nUpgrade: h2c\r\n\r\n",
        b"GET /a HTTP/1.1\r\nHost: x\r\nX: " + b"y" * 20_000 + b"\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    ],
)
def test_what_is_not_plain_is_left_to_h11(head: bytes) -> None:
    """Whatever two readers might take for two different requests above all."""
    assert read_head(head) is None
