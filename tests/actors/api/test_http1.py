"""HTTP/1.1 by the bytes: requests in any framing, early, in pieces, and what breaks the rules."""

import random
import re
import socket
import struct
from contextlib import suppress
from pathlib import Path
from typing import Any

import h11
import pytest
import trio
import trio.testing

from actors.http.http1 import Message
from tests.actors.api.wire import CLOSE, GET, completion

pytestmark = pytest.mark.wall_clock


async def answer(stream: trio.SocketStream, end: bytes) -> bytes:
    """What is answered up to `end`, without what differs from request to request."""
    data = b""
    with trio.fail_after(5):
        while not data.endswith(end):
            data += await stream.receive_some()
    return re.sub(rb'date: .*?\r\n|[0-9a-f]{32}|"created":\d+', b"", data)


async def test_requests_that_are_sent_early_have_their_turn(serving: Any) -> None:
    """A client that pipelines has its answers in order, with bodies of a known length and in chunks."""
    async with serving() as site, await site.connect() as stream:
        chunked = in_chunks(completion(max_tokens=1), 10)
        await stream.send_all(completion(stream=True, max_tokens=3) + GET + chunked + GET[:9])
        data = b""
        with trio.fail_after(5):
            while data.count(b"HTTP/1.1 200") < 3 or not data.endswith(b"}"):
                data += await stream.receive_some()
        order = [b"[DONE]", b'"status":"ok"', b'"prompt_logprobs"']
        assert sorted(order, key=data.index) == order
        await stream.send_all(GET[9:])
        assert b"200" in await answer(stream, b"}")


def in_chunks(request: bytes, size: int) -> bytes:
    """The request with its body in chunks of this size."""
    head, _, body = request.partition(b"\r\n\r\n")
    chunks = [body[at : at + size] for at in range(0, len(body), size)]
    framed = b"".join(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks)
    head = re.sub(rb"Content-Length: \d+", b"Transfer-Encoding: chunked", head)
    return head + b"\r\n\r\n" + framed + b"0\r\n\r\n"


def num_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="the system has no /proc")
@pytest.mark.parametrize("chunked", [True, False])
@pytest.mark.parametrize("cut", [None, 40])
async def test_nothing_is_held_of_clients_that_pipeline_and_leave(
    serving: Any, chunked: bool, cut: int | None
) -> None:
    """50 leave during their first answer: no task and no descriptor is left, and the server stops at once."""
    request = completion(stream=True, max_tokens=50)
    request = in_chunks(request, 7) if chunked else request
    async with serving(grace_s=1000) as site:
        site.llm.gap_s = 0.05
        await trio.testing.wait_all_tasks_blocked()
        num_tasks, num_open = trio.lowlevel.current_statistics().tasks_living, num_descriptors()
        for _ in range(50):
            async with await site.connect() as stream:
                for part in (request[:cut], request[cut:] if cut else b"", request):
                    await stream.send_all(part)
                    await trio.sleep(0.002)
                await stream.receive_some()
        await site.llm.until(lambda llm: len(llm.cancelled) == len(llm.asked) == 50)
        site.llm.gap_s = 0.0
        with trio.fail_after(5):
            while trio.lowlevel.current_statistics().tasks_living > num_tasks or num_descriptors() > num_open:
                await trio.sleep(0.01)
        site.stop.set()
        with trio.fail_after(2):
            await site.stopped.wait()


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


def spoilt(request: bytes, rng: random.Random) -> bytes:
    """A head with some bytes changed, doubled or lost, mostly for those that mean something."""
    data = bytearray(request)
    for _ in range(rng.choice((0, 1, 1, 2, 3))):
        at = rng.randrange(len(data))
        piece = rng.choice(PIECES)
        data[at : at + rng.choice((0, 0, 1, len(piece)))] = piece
    return bytes(data)


PIECES = [
    *(b"\r\n", b"\n", b"\r", b" ", b"\t", b":", b";", b"", b"\x00", b"\x7f", b"\xe4", b"0", b"1", b"/", b"?"),
    *(b"\r\n ", b"Host: y\r\n", b"Content-Length: 3\r\n", b"Transfer-Encoding: chunked\r\n", b", chunked"),
    *(b"Connection: close\r\n", b"HTTP/1.1", b"HTTP/1.0", b"HTTP/2.0", b"+", b"-", b"GET ", b"CONNECT "),
]
HEADS = [
    GET,
    completion(),
    b"POST /v1/x?y=%7e HTTP/1.1\r\nHOST:x \r\nContent-Length: 2\r\nX-A:\r\nx-b:  a  b  \r\n\r\n{}",
    b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    b"GET / HTTP/1.0\r\nHost: x\r\nConnection: Keep-Alive\r\nCookie: a=b\r\n\r\n",
]


def test_what_is_read_as_a_request_h11_reads_as_the_same() -> None:
    """Thousands of spoilt heads: two readers must never take one for two different requests."""
    rng, num_read = random.Random(5), 0
    for number in range(20_000):
        data = spoilt(HEADS[number % len(HEADS)], rng)
        head, end, _ = data.lstrip(b"\r\n").partition(b"\r\n\r\n")
        ours = Message()
        if not end or ours.read_head(head + end):
            continue
        num_read += 1
        theirs = h11.Connection(h11.SERVER)
        theirs.receive_data(head + end)
        event = theirs.next_event()
        assert isinstance(event, h11.Request), data
        assert (ours.parser.get_method(), ours.target) == (event.method, event.target), data
        assert ours.version.encode() == event.http_version, data
        assert ours.headers == [(name, value) for name, value in event.headers], data
    assert num_read > 1000


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\nabc", 400),
        (b"POST /a HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\nabc", 400),
        (b"POST /a HTTP/1.0\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
        (b"POST /a HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", 501),
        (b"POST /a HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: xchunked\r\n\r\n0\r\n\r\n", 400),
        (b"POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nContent-Length: 3\r\n\r\nabc", 400),
        (b"POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: +3\r\n\r\nabc", 400),
        (b"POST /a HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n0x3\r\nabc\r\n0\r\n\r\n", 400),
        (b"POST /a HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n3\nabc\r\n0\r\n\r\n", 400),
        (b"GET /a HTTP/3.5\r\nHost: x\r\n\r\n", 505),
        (b"GET /a HTTP/2.0\r\nHost: x\r\n\r\n", 505),
        (b"GET /a HTTP/1.2\r\nHost: x\r\n\r\n", 505),
        (b"GET /a\r\n\r\n", 400),
        (b"GET /a HTTP/1.1\r\n\r\n", 400),
        (b"GET /a HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n", 400),
        (b"GET /a HTTP/1.1\r\nHost: x\r\n folded\r\n\r\n", 400),
        (b"GET /a HTTP/1.1\r\nHost: x\r\nX : y\r\n\r\n", 400),
        (b"GET /a HTTP/1.1\r\nHost: x\nX: y\r\n\r\n", 400),
        (b"GET /a HTTP/1.1\r\nHost: x\r\nX: a\x00\r\n\r\n", 400),
        (b"GET /\xe4 HTTP/1.1\r\nHost: x\r\n\r\n", 400),
        (b"PRI * HTTP/1.1\r\n\r\n", 400),
        (b"CONNECT x:1 HTTP/1.1\r\nHost: x\r\n\r\n", 405),
        (b"GET /health HTTP/1.1\r\nHost: x\r\nX: " + b"y" * 2**17 + b"\r\n\r\n", 431),
        (b"GET /health HTTP/1.1\r\nHost: x\r\nX: " + b"y" * 2**16 + b"\r\n\r\n", 431),
        (
            b"POST /a HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n" + b"a: b\r\n" * 2**15,
            431,
        ),
    ],
)
async def test_what_breaks_the_rules_is_refused_and_hung_up_on(
    serving: Any, request_: bytes, status: int
) -> None:
    """What comes behind it is never read as a request."""
    async with serving() as site, await site.connect() as stream:
        with suppress(trio.BrokenResourceError):
            await stream.send_all(request_ + completion())
        data = b""
        with trio.fail_after(5), suppress(trio.BrokenResourceError):
            while received := await stream.receive_some():
                data += received
        assert data.startswith(b"HTTP/1.1 %d " % status) and data.count(b"HTTP/1.1") == 1
        assert not site.llm.asked


async def test_line_ends_before_a_request_are_ignored(serving: Any) -> None:
    """Some clients send them after a body; RFC 9112 2.2."""
    async with serving() as site, await site.connect() as stream:
        for before in (b"\r\n", b"\r\n\r\n", b""):
            await stream.send_all(before + GET)
            assert (await answer(stream, b"}")).startswith(b"HTTP/1.1 200 ")
        await stream.send_all(completion(max_tokens=1) + b"\r\n" + GET)
        assert (await answer(stream, b'{"status":"ok"}')).count(b"HTTP/1.1 200 ") == 2


async def test_bytes_after_the_last_request_are_ignored(serving: Any) -> None:
    """After `Connection: close` nothing is read; RFC 9112 9.6."""
    async with serving() as site, await site.connect() as stream:
        await stream.send_all(CLOSE + b"x" + GET)
        data = b""
        with suppress(trio.BrokenResourceError):
            while received := await stream.receive_some():
                data += received
        assert data.startswith(b"HTTP/1.1 200 ") and data.count(b"HTTP/1.1") == 1


async def test_a_body_that_waits_to_be_asked_for_is_asked_for(serving: Any) -> None:
    """`Expect: 100-continue`, once; not where the answer needs no body."""
    head, _, body = completion(max_tokens=1).partition(b"\r\n\r\n")
    async with serving(api_key="k") as site:
        for key, said in ((b"k", b"HTTP/1.1 100 Continue\r\n\r\n"), (b"wrong", b"HTTP/1.1 401 ")):
            async with await site.connect() as stream:
                fields = b"\r\nAuthorization: Bearer " + key + b"\r\nExpect: 100-continue\r\n\r\n"
                await stream.send_all(head + fields)
                if key == b"k":
                    assert await stream.receive_some() == said
                    await stream.send_all(body)
                    assert (await answer(stream, b"}")).startswith(b"HTTP/1.1 200 ")


async def test_another_protocol_is_not_begun(serving: Any) -> None:
    """A client that offers to change to HTTP/2 is answered in the protocol that it speaks."""
    upgrade = GET.replace(b"\r\n\r\n", b"\r\nUpgrade: h2c\r\nConnection: Upgrade, HTTP2-Settings\r\n\r\n")
    async with serving() as site, await site.connect() as stream:
        for _ in range(2):
            await stream.send_all(upgrade)
            assert (await answer(stream, b"}")).startswith(b"HTTP/1.1 200 ")
