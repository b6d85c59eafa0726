"""CPU time per streamed token of the load client, beside that of plain httpx.

    python -m tests.bench client [--streams 500] [--tokens 100] [--gap 0.05]

A server in a child process sends each of its streams a token every so many seconds, all at the same instant.
"""

import argparse
import json
import resource
import socket
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import httpx
import trio

from sundog.runtime.load.clients import Clients
from sundog.runtime.load.prompts import Units
from sundog.runtime.load.rows import Outcome
from sundog.runtime.load.server import TargetServer
from sundog.runtime.load.server_client import ServerClient
from sundog.sim.trace.record import TraceRequest

EVENT = (
    b'data: {"id":"cmpl-0123456789abcdef0123456789abcdef","object":"text_completion","created":1700000000,'
    b'"model":"bench","choices":[{"index":0,"text":" token","logprobs":null,"finish_reason":%s}]}\n\n'
)
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def serve(num_streams: int, num_tokens: int, gap_s: float) -> None:
    """The child: say the port, wait for all streams, send their tokens."""
    listening = socket.create_server(("127.0.0.1", 0), backlog=4096)
    print(listening.getsockname()[1], flush=True)
    streams = [listening.accept()[0] for _ in range(num_streams)]
    for stream in streams:
        while b"max_tokens" not in stream.recv(1 << 16):
            pass
        stream.sendall(HEAD)
    token, last = chunk(EVENT % b"null"), chunk(EVENT % b'"length"') + chunk(b"data: [DONE]\n\n") + chunk(b"")
    for index in range(num_tokens):
        due_s = time.perf_counter() + gap_s
        for stream in streams:
            stream.sendall(last if index == num_tokens - 1 else token)
        time.sleep(max(0.0, due_s - time.perf_counter()))
    time.sleep(60)


class Silent:
    """A listener that keeps how many tokens came."""

    def __init__(self) -> None:
        self.num_tokens = 0

    def due(self, row: TraceRequest, outcome: Outcome) -> None: ...

    def ended(self, row: TraceRequest, outcome: Outcome) -> None:
        assert outcome.trouble is None, outcome
        self.num_tokens += outcome.num_chunks


async def ours(port: int, num_streams: int, num_tokens: int) -> int:
    client, seen = ServerClient.of(f"http://127.0.0.1:{port}"), Silent()
    server = TargetServer(client, "bench", "completions", {}, Units(ids=range(300, 1000)))
    rows = [TraceRequest(f"r{i}", 0.0, 16, num_tokens) for i in range(num_streams)]
    await Clients(server, seen, salt="").play(rows)
    return seen.num_tokens


async def with_httpx(port: int, num_streams: int, num_tokens: int) -> int:
    url, count = f"http://127.0.0.1:{port}/v1/completions", 0
    body = {"model": "bench", "prompt": [1] * 16, "max_tokens": num_tokens, "stream": True}

    async def one(client: httpx.AsyncClient) -> None:
        nonlocal count
        async with client.stream("POST", url, json=body) as response:
            async for line in response.aiter_lines():
                if line.startswith("data: {"):
                    count += len(json.loads(line[6:])["choices"])

    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(limits=limits, timeout=None) as client, trio.open_nursery() as nursery:
        for _ in range(num_streams):
            nursery.start_soon(one, client)
    return count


def measure(play: Callable[[int, int, int], Awaitable[int]], options: argparse.Namespace) -> float:
    """Microseconds of processor time a token."""
    sizes = [str(options.streams), str(options.tokens), str(options.gap)]
    root = Path(__file__).resolve().parents[2]
    command = [sys.executable, "-m", "tests.bench.bench_client", "--serve", *sizes]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, cwd=root)
    try:
        assert child.stdout is not None
        port, before = int(child.stdout.readline()), resource.getrusage(resource.RUSAGE_SELF)
        count = trio.run(play, port, options.streams, options.tokens)
        after = resource.getrusage(resource.RUSAGE_SELF)
    finally:
        child.kill()
        child.wait()
    assert count == options.streams * options.tokens, count
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return cpu_s / count * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--streams", type=int, default=500)
    parser.add_argument("--tokens", type=int, default=100)
    parser.add_argument("--gap", type=float, default=0.05)
    parser.add_argument("--serve", nargs=3, type=float)
    options = parser.parse_args()
    if options.serve:
        serve(int(options.serve[0]), int(options.serve[1]), options.serve[2])
        return
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    plain, lean = measure(with_httpx, options), measure(ours, options)
    print(f"{options.streams} streams: {lean:.1f} us a token, httpx {plain:.1f}: {lean / plain:.2f} of it")


if __name__ == "__main__":
    main()
