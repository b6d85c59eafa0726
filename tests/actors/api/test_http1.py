"""HTTP/1.1 on raw sockets: framing, pipelining, split requests, and protocol violations."""

import itertools
import re
import socket
import struct
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from sundog.actors.config.http import HttpSettings
from tests.actors.api.hypercorns import SOON_S, hypercorns
from tests.actors.api.wire import CLOSE, GET, JSON, completion
from tests.patience import HANGS_S

pytestmark = pytest.mark.wall_clock


async def answer(stream: trio.SocketStream, end: bytes, within_s: float = HANGS_S) -> bytes:
    """What is answered up to `end`, without what differs from request to request."""
    data = b""
    with trio.fail_after(within_s):
        while not data.endswith(end):
            received = await stream.receive_some()
            assert received, data
            data += received
    return re.sub(rb'date: .*?\r\n|[0-9a-f]{32}|"created":\d+', b"", data)


async def test_requests_that_are_sent_early_have_their_turn(serving: Any) -> None:
    """A client that pipelines has its answers in order, with bodies of a known length and in chunks."""
    async with serving() as site, await site.connect() as stream:
        chunked = in_chunks(completion(max_tokens=1), 10)
        await stream.send_all(completion(stream=True, max_tokens=3) + GET + chunked + GET[:9])
        data = b""
        with trio.fail_after(HANGS_S):
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


@pytest.mark.long(keep=1, reason="more cases of the law whose first `make test` runs", moderate=True)
@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="the system has no /proc")
@pytest.mark.parametrize("chunked", [True, False])
@pytest.mark.parametrize("cut", [None, 40])
async def test_nothing_is_held_of_clients_that_pipeline_and_leave(
    serving: Any, chunked: bool, cut: int | None
) -> None:
    """50 leave during their first answer: no task and no descriptor is left, and the server stops at once."""
    request = completion(stream=True, max_tokens=50)
    request = in_chunks(request, 7) if chunked else request
    async with serving(grace_s=1000, settings=HttpSettings(keep_alive_s=1000)) as site:
        site.llm.gap_s = 0.05
        await trio.testing.wait_all_tasks_blocked()
        num_tasks, num_open = trio.lowlevel.current_statistics().tasks_living, num_descriptors()
        for _ in range(50):
            async with await site.connect() as stream:
                for part in (request[:cut], request[cut:] if cut else b"", request):
                    await stream.send_all(part)
                    await trio.sleep(0.002)
                await stream.receive_some()
        await site.llm.until(lambda llm: len(llm.cancelled) == len(llm.asked) >= 50)
        site.llm.gap_s = 0.0
        with trio.fail_after(HANGS_S):
            while trio.lowlevel.current_statistics().tasks_living > num_tasks or num_descriptors() > num_open:
                await trio.sleep(0.01)
        site.stop.set()
        with trio.fail_after(HANGS_S):
            await site.stopped.wait()


@hypercorns("it reads nothing behind a further request until it has answered")
async def test_a_client_that_pipelines_and_leaves_is_cancelled(serving: Any) -> None:
    """Its leaving is seen behind the requests that wait, and they are never begun."""
    async with serving() as site:
        site.llm.may_finish = trio.Event()
        async with await site.connect() as stream:
            await stream.send_all(completion() * 3)
            await site.llm.until(lambda llm: len(llm.asked) == 1)
        with trio.fail_after(SOON_S):
            await site.llm.until(lambda llm: len(llm.cancelled) == 1)
        assert len(site.llm.asked) == 1


@pytest.mark.long(
    reason="fills the buffers of sockets; test_nothing_is_held_of_clients_that_pipeline_and_leave is quicker"
)
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


@hypercorns("ASGI has one event for both, so a client that half-closes has left")
async def test_a_client_that_half_closes_is_answered(serving: Any) -> None:
    """It has said all that it has to say, and waits."""
    async with serving() as site, await site.connect() as stream:
        await stream.send_all(completion(max_tokens=1))
        await stream.send_eof()
        with trio.fail_after(SOON_S):
            assert (await stream.receive_some()).startswith(b"HTTP/1.1 200 ")


async def test_a_client_that_half_closes_is_told_nothing_wrong(serving: Any) -> None:
    """It has left, as far as HTTP goes: no 500 comes after that."""
    async with serving() as site:
        site.llm.may_finish = trio.Event()
        async with await site.connect() as stream:
            await stream.send_all(completion())
            await site.llm.until(lambda llm: len(llm.asked) == 1)
            await stream.send_eof()
            with trio.fail_after(HANGS_S):
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


@pytest.mark.long(keep=1, reason="more cases of the law whose first `make test` runs", moderate=True)
@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\nabc", 400),
        (b"POST /a HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\nabc", 400),
        (b"POST /a HTTP/1.0\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
        (b"POST /a HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", 501),
        (b"POST /a HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: xchunked\r\n\r\n0\r\n\r\n", 501),
        (b"POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: +3\r\n\r\nabc", 400),
        (b"POST /a HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n0x3\r\nabc\r\n0\r\n\r\n", 400),
        (b"POST /a HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n3\nabc\r\n0\r\n\r\n", 400),
        (b"GET /a\r\n\r\n", 400),
        (b"GET /a HTTP/1.1\r\n\r\n", 400),
        (b"GET /a HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n", 400),
        (b"GET /a HTTP/1.1\r\nHost: x\r\nX : y\r\n\r\n", 400),
        (b"GET /a HTTP/1.1\r\nHost: x\r\nX: a\x00\r\n\r\n", 400),
        (b"GET /\xe4 HTTP/1.1\r\nHost: x\r\n\r\n", 400),
        (b"PRI * HTTP/1.1\r\n\r\n", 400),
        (b"GET /health HTTP/1.1\r\nHost: x\r\nX: " + b"y" * 2**17 + b"\r\n\r\n", 431),
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
    await assert_refused(serving, request_, status, HANGS_S)


@pytest.mark.long(keep=1, reason="more cases of the law whose first `make test` runs", moderate=True)
@hypercorns("h11 reads it as RFC 9112 lets it, or any version as 1.1, and goes on")
@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"GET /a HTTP/3.5\r\nHost: x\r\n\r\n", 505),
        (b"GET /a HTTP/2.0\r\nHost: x\r\n\r\n", 505),
        (b"GET /a HTTP/1.2\r\nHost: x\r\n\r\n", 505),
        (b"POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nContent-Length: 3\r\n\r\nabc", 400),
        (b"GET /a HTTP/1.1\r\nHost: x\r\n folded\r\n\r\n", 400),
        (b"GET /a HTTP/1.1\r\nHost: x\nX: y\r\n\r\n", 400),
        (b"CONNECT x:1 HTTP/1.1\r\nHost: x\r\n\r\n", 405),
    ],
)
async def test_what_is_not_quite_by_the_rules_is_refused_and_hung_up_on(
    serving: Any, request_: bytes, status: int
) -> None:
    """No two readers must take it for two different requests."""
    await assert_refused(serving, request_, status, SOON_S)


async def assert_refused(serving: Any, request_: bytes, status: int, within_s: float) -> None:
    async with serving() as site, await site.connect() as stream:
        with suppress(trio.BrokenResourceError):
            await stream.send_all(request_ + completion())
        data = b""
        with trio.fail_after(within_s), suppress(trio.BrokenResourceError):
            while received := await stream.receive_some():
                data += received
        assert data.startswith(b"HTTP/1.1 %d " % status) and data.count(b"HTTP/1.1") == 1
        assert not site.llm.asked


@hypercorns("h11 refuses empty lines before a request with 400")
async def test_line_ends_before_a_request_are_ignored(serving: Any) -> None:
    """Some clients send them after a body; RFC 9112 2.2."""
    async with serving() as site, await site.connect() as stream:
        for before in (b"\r\n", b"\r\n\r\n", b""):
            await stream.send_all(before + GET)
            assert (await answer(stream, b"}")).startswith(b"HTTP/1.1 200 ")
        await stream.send_all(completion(max_tokens=1) + b"\r\n" + GET)
        assert (await answer(stream, b'{"status":"ok"}')).count(b"HTTP/1.1 200 ") == 2


@hypercorns("h11 refuses the request before them with 400")
async def test_bytes_after_the_last_request_are_ignored(serving: Any) -> None:
    """After `Connection: close` nothing is read; RFC 9112 9.6."""
    async with serving() as site, await site.connect() as stream:
        await stream.send_all(CLOSE + b"x" + GET)
        data = b""
        with suppress(trio.BrokenResourceError):
            while received := await stream.receive_some():
                data += received
        assert data.startswith(b"HTTP/1.1 200 ") and data.count(b"HTTP/1.1") == 1


@hypercorns("100 Continue is sent before the app is asked")
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


@hypercorns("without TLS, too, it changes to HTTP/2 when a GET offers to")
async def test_another_protocol_is_not_begun(serving: Any) -> None:
    """A client that offers to change to HTTP/2 is answered in the protocol that it speaks."""
    upgrade = GET.replace(b"\r\n\r\n", b"\r\nUpgrade: h2c\r\nConnection: Upgrade, HTTP2-Settings\r\n\r\n")
    async with serving() as site, await site.connect() as stream:
        for _ in range(2):
            await stream.send_all(upgrade)
            assert (await answer(stream, b"}", SOON_S)).startswith(b"HTTP/1.1 200 ")


UPGRADE = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n"
UNKNOWN_UPGRADE = b"Connection: Upgrade\r\nUpgrade: foo\r\n"


async def test_a_body_beside_an_offer_to_upgrade_is_the_requests(serving: Any) -> None:
    """In chunks and of a known length: never read as the next request."""
    smuggled = (
        b"POST /tokenize HTTP/1.1\r\nHost: x\r\n" + UPGRADE + b"Transfer-Encoding: chunked\r\n\r\n" + GET
    )
    async with serving() as site:
        async with await site.connect() as stream:
            asked = (completion(max_tokens=1), in_chunks(completion(max_tokens=1), 7))
            for request, upgrade in itertools.product(asked, (UPGRADE, UNKNOWN_UPGRADE)):
                await stream.send_all(request.replace(b"Host: x\r\n", b"Host: x\r\n" + upgrade))
                data = await answer(stream, b"}")
                assert data.startswith(b"HTTP/1.1 200 ") and data.count(b"HTTP/1.1") == 1
        async with await site.connect() as stream:
            await stream.send_all(smuggled)
            data = await read_to_end(stream)
            assert data.startswith(b"HTTP/1.1 400 ") and data.count(b"HTTP/1.1") == 1


async def test_chunks_of_line_ends_cost_what_other_bytes_do(serving: Any) -> None:
    """A megabyte of CRLFCRLF in a chunk: about as many calls, and as many bytes for each."""
    num_calls = dict[bytes, int]()
    async with serving() as site:
        for fill in (b"abcd", b"\r\n\r\n"):
            body = fill * 2**18
            head = JSON + b"Transfer-Encoding: chunked\r\n\r\n%x\r\n" % len(body)
            async with await site.connect() as stream:
                with counted_calls() as calls:
                    await stream.send_all(head + body + b"\r\n0\r\n\r\n")
                    assert (await answer(stream, b"}")).startswith(b"HTTP/1.1 400 ")
            num_calls[fill] = len(calls)
    assert num_calls[b"\r\n\r\n"] < 3 * num_calls[b"abcd"]


@contextmanager
def counted_calls() -> Iterator[list[None]]:
    """Count the calls of Python and C functions in this thread."""
    calls: list[None] = []
    sys.setprofile(lambda frame, event, arg: calls.append(None) if event.endswith("call") else None)
    try:
        yield calls
    finally:
        sys.setprofile(None)


async def read_to_end(stream: trio.abc.Stream) -> bytes:
    data = b""
    with suppress(trio.BrokenResourceError):
        while received := await stream.receive_some():
            data += received
    return data


FATAL = GET[:-2] + UPGRADE.replace(b"AAMAAABk", b"AAA") + b"\r\n"


async def test_one_connection_never_ends_another(serving: Any, caplog: pytest.LogCaptureFixture) -> None:
    """What raises in Hypercorn ends the connection that it came on, and is one line of the log."""
    async with serving() as site, await site.connect() as other:
        await other.send_all(GET)
        await answer(other, b"}")
        async with await site.connect() as stream:
            await stream.send_all(FATAL)
            await read_to_end(stream)
        await other.send_all(GET)
        await answer(other, b"}", SOON_S)
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert caplog.text.count("a connection was dropped") == 1
