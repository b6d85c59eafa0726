"""CPU time and memory of the server's process per streamed token, request and connection.

    python -m tests.bench door [--streams 64 256 1000] [--tokens 120] [--step-scale 1] [--anchors [PYTHON]]
                               [--before FOLDER ...]

The server is `sundog emulate`, whole, in a process of its own; this one is the client. Each load
runs with few tokens and with many: the difference is the price of a token, what is left that of a request.
The same load without HTTP, in a third process, says which part of both is the door's. On a machine that
others use, steps that take longer (`--step-scale`) keep tokens from sharing a chunk. With `--anchors` the
same clients read as many streams, at the same pace, from plain Quart, and from FastAPI if PYTHON, by default
this one, has it with uvicorn, uvloop and httptools. `--before` names other checkouts, whose servers are asked
as well. All are asked in turn, so that what else a machine does falls on all.
"""

import argparse
import os
import resource
import statistics
import subprocess
import sys
import time
from contextlib import ExitStack
from dataclasses import dataclass

import trio

from tests.bench.anchors import Anchor, checkout, frameworks, show
from tests.bench.door_load import Price, Serving, cpu_s, played, priced, prices, resident_kb
from tests.live import Live, live

SERVER = ("sundog", "emulate", "--port", "0", "--gpu", "h100", "--model", "llama-3.1-8b")
NO_FRONT = ("--front-cost", "request=0,response=0")
"""No time of simulated API processes, which other checkouts may not have: that is not what is measured."""
LIMITS = ("--max-num-seqs", "1024", "--max-model-len", "4096", "--no-log-requests", "--disable-log-stats")


@dataclass(frozen=True, slots=True)
class Served:
    """A live server as the load knows it."""

    live: Live

    @property
    def url(self) -> str:
        return self.live.url

    @property
    def pid(self) -> int:
        return self.live.process.pid


def alone(num_streams: int, num_tokens: int, step_scale: float) -> list[tuple[float, ...]]:
    """What `graph_alone` prints: the same where nobody speaks HTTP."""
    sizes = [str(num_streams), str(num_tokens), str(step_scale)]
    command = [sys.executable, "-m", "tests.bench.graph_alone", *sizes]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return [tuple(map(float, line.split())) for line in said.splitlines()]


def measure(server: Served, num_streams: int, options: argparse.Namespace, before: list[Anchor]) -> None:
    """Print the prices at this many streams, and beside others' if they are asked for."""
    with ExitStack() as running:
        beside = list(before)
        if options.anchors is not None:
            gaps_s = trio.run(played, server, num_streams, options.tokens).gaps_s
            beside += running.enter_context(frameworks(options.anchors, statistics.fmean(gaps_s)))
        servers: list[Serving] = [server, *beside]
        found = priced(servers, num_streams, options.tokens)
    report(found[0], num_streams, options.tokens, options.step_scale)
    if beside:
        show(["Sundog, with its engine", *(each.name for each in beside)], found)


def report(price: Price, num_streams: int, num_tokens: int, step_scale: float) -> None:
    """Print the prices, and what of them is HTTP's."""
    without = alone(num_streams, num_tokens, step_scale)
    graph_each, graph_request = prices(num_streams, num_tokens, [(few, many) for few, many, *_ in without])
    first_s, gap_s = (statistics.median(column) for column in list(zip(*without, strict=True))[2:])
    each, request = price.token_s, price.request_s
    print(
        f"{num_streams:5d} streams: {each * 1e6:5.1f} us a token ({(each - graph_each) * 1e6:.1f} HTTP),"
        f" {request * 1e6:5.0f} us a request ({(request - graph_request) * 1e6:.0f} HTTP);"
        f" {price.chunks_each:.2f} chunks a token, gaps {price.gap_s(0.5) * 1e3:.1f} ms (p50)"
        f" {price.gap_s(0.99) * 1e3:.1f} (p99, {gap_s * 1e3:.1f} without HTTP),"
        f" last first token {price.many.first_s * 1e3:.0f} ms ({first_s * 1e3:.0f});"
        f" {price.kb:.0f} kB a stream over {price.idle_kb / 1024:.0f} MB",
        flush=True,
    )


def idle(server: Served, count: int) -> str:
    """What connections cost on which nothing happens."""
    pid, before_kb = server.pid, resident_kb(server.pid)

    async def hold() -> float:
        streams = [await trio.open_tcp_stream("127.0.0.1", server.live.port) for _ in range(count)]
        for stream in streams:
            await stream.send_all(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
        for stream in streams:
            await stream.receive_some()
        begin_s, begin = time.monotonic(), cpu_s(pid)
        await trio.sleep(3)
        spent = (cpu_s(pid) - begin) / (time.monotonic() - begin_s)
        for stream in streams:
            await trio.aclose_forcefully(stream)
        return spent

    spent = trio.run(hold)
    kb = (resident_kb(pid) - before_kb) / count
    return f"{count:5d} idle connections: {spent * 100:.1f} % of a core, {kb:.0f} kB each"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--streams", type=int, nargs="*", default=[64, 256, 1000])
    parser.add_argument("--tokens", type=int, default=120)
    parser.add_argument("--step-scale", type=float, default=1.0)
    parser.add_argument("--anchors", nargs="?", const=sys.executable, metavar="PYTHON")
    parser.add_argument("--before", nargs="*", default=[], metavar="FOLDER")
    options = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    scaled = ("--step-scale", f"{options.step_scale:g}")
    with ExitStack() as running:
        own = running.enter_context(live(*SERVER, *LIMITS, *NO_FRONT, *scaled))
        server, before = Served(own), list[Anchor]()
        for folder in options.before:
            arguments = (*SERVER[1:], *LIMITS, *scaled)
            before += running.enter_context(checkout(os.path.abspath(folder), arguments))
        for count in options.streams:
            measure(server, count, options, before)
        print(idle(server, 2000), flush=True)


if __name__ == "__main__":
    main()
