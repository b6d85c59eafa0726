"""Kinds of client behaviour, each one request, or an attempt at one, over a socket of its own."""

import json
import random
import re
from collections.abc import Awaitable, Callable
from contextlib import suppress

import httpx
import trio

MOST_TOKENS = 24
PROMPTS = ("Once upon a time", "The fox", "A", "Tell me a story about " + "a very " * 40 + "small dog.")
BAD = (
    b"",
    b"{",
    b"[]",
    b'{"prompt": 3}',
    b'{"prompt": "x", "max_tokens": -1}',
    b'{"prompt": "x", "temperature": "hot"}',
    b'{"prompt": "x", "n": 10000}',
    b'{"prompt": [[]]}',
    b'{"prompt": "\\ud800"}',
    b'{"prompt": "x", "model": "nobody"}',
    b'{"messages": []}',
    b"\xff\xfe",
)
NOT_SPOKEN = (501, 505)
"""Statuses for a coding or a version of HTTP that no server has to know."""
Manner = Callable[[int, random.Random], Awaitable[int]]
"""Given the port; the status of the answer, 0 for a client that left before it."""


class ServerError(AssertionError):
    """An answer of 5xx, or one that breaks off."""


def request(body: bytes, path: str = "completions") -> bytes:
    head = f"POST /v1/{path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nConnection: close\r\n"
    return head.encode() + b"Content-Length: %d\r\n\r\n" % len(body) + body


def sound(rng: random.Random, **fields: object) -> bytes:
    """A request that is answered."""
    common = {"max_tokens": rng.randint(1, MOST_TOKENS), "seed": rng.randrange(100), **fields}
    text = rng.choice(PROMPTS)
    if rng.random() < 0.5:
        return request(json.dumps({"prompt": text, **common}).encode())
    messages = [{"role": "user", "content": text}]
    return request(json.dumps({"messages": messages, **common}).encode(), "chat/completions")


def status_of(data: bytes) -> int:
    """The status of an answer; raises ServerError if it is the server's fault."""
    status = int(data[9:12]) if data.startswith(b"HTTP/1.1 ") else 0
    if status >= 500 and status not in NOT_SPOKEN:
        raise ServerError(data[:2000])
    return status


async def all_of(stream: trio.SocketStream, most: float = float("inf"), gap_s: float = 0.0) -> bytes:
    """What comes, to its end or until so much has come; read in small pieces with a `gap_s`."""
    data = b""
    with suppress(trio.BrokenResourceError):
        while len(data) < most:
            piece = await stream.receive_some(100 if gap_s else 65_536)
            if not piece:
                break
            data += piece
            await trio.sleep(gap_s)
    return data


async def exchanged(port: int, sent: bytes, **reading: float) -> bytes:
    async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
        with suppress(trio.BrokenResourceError):
            await stream.send_all(sent)
        return await all_of(stream, **reading)


async def asks(port: int, rng: random.Random) -> int:
    """Reads a whole answer."""
    data = await exchanged(port, sound(rng))
    if b'"usage"' not in data:
        raise ServerError(data)
    return status_of(data)


async def streams(port: int, rng: random.Random) -> int:
    """Reads a stream to its end, with one or several choices."""
    data = await exchanged(port, sound(rng, stream=True, n=rng.choice((1, 1, 3))))
    if b"data: [DONE]" not in data or b'"error"' in data:
        raise ServerError(data)
    return status_of(data)


async def reads_slowly(port: int, rng: random.Random) -> int:
    """Reads a stream a few bytes at a time."""
    return status_of(await exchanged(port, sound(rng, stream=True), gap_s=0.002))


async def leaves(port: int, rng: random.Random) -> int:
    """Leaves somewhere in the answer, or before it."""
    sent = sound(rng, stream=rng.random() < 0.8, max_tokens=MOST_TOKENS, ignore_eos=True)
    return status_of(await exchanged(port, sent, most=rng.choice((0, 0, 1, 20, 300, 1000, 3000))))


async def sends_half(port: int, rng: random.Random) -> int:
    """Leaves somewhere in its own request."""
    sent = sound(rng)
    async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
        await stream.send_all(sent[: rng.randrange(len(sent))])
        if rng.random() < 0.5:
            with trio.move_on_after(0.01):
                return status_of(await all_of(stream))
    return 0


async def pipelines_and_leaves(port: int, rng: random.Random) -> int:
    """Sends several requests at once, with bodies in chunks or in pieces, and leaves during the first."""
    whole = sound(rng, stream=True, max_tokens=MOST_TOKENS, ignore_eos=True)
    head, body = whole.replace(b"Connection: close\r\n", b"").split(b"\r\n\r\n", 1)
    if rng.random() < 0.5:
        chunked = re.sub(rb"Content-Length: \d+", b"Transfer-Encoding: chunked", head)
        head, body = chunked, b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
    sent = (head + b"\r\n\r\n" + body) * rng.choice((2, 3, 50))
    cut = rng.randrange(len(head) + len(body))
    async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
        with suppress(trio.BrokenResourceError):
            for part in (sent[:cut], sent[cut:]):
                await stream.send_all(part)
                await trio.sleep(0.001)
        return status_of(await all_of(stream, most=rng.choice((0, 1, 300))))


async def errs(port: int, rng: random.Random) -> int:
    """Sends what is no good, and reads why."""
    path = rng.choice(("completions", "chat/completions", "nowhere", "embeddings"))
    status = status_of(await exchanged(port, request(rng.choice(BAD), path)))
    if not 400 <= status < 500:
        raise ServerError(f"{status} for a bad request")
    return status


async def babbles(port: int, rng: random.Random) -> int:
    """Sends noise, or a request in which bytes are wrong."""
    sent = bytearray(sound(rng))
    for _ in range(rng.choice((1, 3, 200))):
        sent[rng.randrange(len(sent))] = rng.randrange(256)
    async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
        with suppress(trio.BrokenResourceError):
            await stream.send_all(sent)
            await stream.send_eof()
        return status_of(await all_of(stream))


MANNERS: dict[Manner, int] = {
    asks: 30,
    streams: 30,
    leaves: 12,
    pipelines_and_leaves: 3,
    errs: 12,
    sends_half: 6,
    reads_slowly: 4,
    babbles: 3,
}
"""How often each occurs, in a hundred."""

IDLE = ("vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc")


def left_over(url: str) -> dict[str, float]:
    """What of a server's gauges is not zero: requests that it still has, blocks that are held."""
    lines = httpx.get(f"{url}/metrics", timeout=20).text.splitlines()
    gauges = [line.rpartition(" ") for line in lines if line.startswith(tuple(f"{name}{{" for name in IDLE))]
    assert len(gauges) >= len(IDLE), lines
    return {name: float(value) for name, _, value in gauges if float(value)}
