"""`python -m tests.soak --rate 1000`: an emulated server under an open load for minutes.

The client is raw HTTP/1.1 over connections that it keeps, so that most of two cores is the server's. A
request is made when it is due, whether or not those before it have been answered: one that finds no free
connection waits for it, and its latency counts from when it was due. What still waits at the end is counted
and not asked.
"""

import json
from collections import Counter, deque
from dataclasses import dataclass, field

import trio

CONNECTIONS = 256
BODY = json.dumps(
    {"model": "qwen3-8b", "prompt": [*range(1000, 1016)], "max_tokens": 2, "ignore_eos": True}
).encode()
HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: soak\r\nContent-Type: application/json\r\n"
REQUEST = HEAD + b"Content-Length: %d\r\n\r\n" % len(BODY) + BODY


class Broken(Exception):
    """A connection that ended amid an answer."""


@dataclass
class Seen:
    """What the clients of an open load saw."""

    statuses: Counter[int] = field(default_factory=Counter)
    latency_s: list[float] = field(default_factory=list)
    num_unasked: int = 0


async def answer(stream: trio.SocketStream, kept: bytearray) -> int:
    """Read one answer with a Content-Length; return its status. `kept` holds bytes of the next one."""
    while (end := kept.find(b"\r\n\r\n")) < 0:
        await more(stream, kept)
    head = bytes(kept[:end]).lower()
    status = int(head[9:12])
    (length,) = [int(line[15:]) for line in head.split(b"\r\n") if line.startswith(b"content-length:")]
    while len(kept) < end + 4 + length:
        await more(stream, kept)
    del kept[: end + 4 + length]
    return status


async def more(stream: trio.SocketStream, kept: bytearray) -> None:
    if not (part := await stream.receive_some(65536)):
        raise Broken("the server closed a connection amid an answer")
    kept += part


async def offered(port: int, rate_per_s: float, seconds: float, seen: Seen) -> None:
    """Offer evenly spaced requests for so many seconds, and wait for the answers to what was asked."""
    due: deque[float] = deque()
    waiting = trio.Semaphore(0)
    start_s = trio.current_time()

    async def connection() -> None:
        stream, kept = await trio.open_tcp_stream("127.0.0.1", port), bytearray()
        async with stream:
            while True:
                await waiting.acquire()
                if not due:
                    return
                due_s = due.popleft()
                await stream.send_all(REQUEST)
                seen.statuses[await answer(stream, kept)] += 1
                seen.latency_s.append(trio.current_time() - due_s)

    async with trio.open_nursery() as nursery:
        for _ in range(CONNECTIONS):
            nursery.start_soon(connection)
        num_due = 0
        while (passed_s := trio.current_time() - start_s) < seconds:
            while num_due <= passed_s * rate_per_s:
                due.append(start_s + num_due / rate_per_s)
                waiting.release()
                num_due += 1
            await trio.sleep(0.002)
        seen.num_unasked = len(due)
        due.clear()
        for _ in range(CONNECTIONS):
            waiting.release()


def told(seen: Seen, seconds: float) -> str:
    """Say what an open load saw, in one line."""
    ranked = sorted(seen.latency_s)
    p50, p99 = (ranked[int(part * len(ranked))] * 1e3 for part in (0.5, 0.99))
    done = len(ranked) / seconds
    unasked = f", {seen.num_unasked:,} not asked, for want of a free connection" if seen.num_unasked else ""
    return f"{len(ranked):,} answers, {done:,.0f}/s{unasked}; {p50:.0f} ms (p50), {p99:.0f} ms (p99)"
