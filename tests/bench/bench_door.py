"""What a streamed token, a request and a connection cost the server's process: processor time, memory.

    python -m tests.bench door [--streams 64 256 1000] [--tokens 120] [--step-scale 1]

The server is `sundog serve --simulate`, whole, in a process of its own; this one is the client. Each load
runs with few tokens and with many: the difference is the price of a token, what is left that of a request.
The same load without HTTP, in a third process, says which part of both is the door's. On a machine that
others use, steps that take longer (`--step-scale`) keep tokens from sharing a chunk.
"""

import argparse
import os
import resource
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass

import trio

from runtime.load.clients import Clients
from runtime.load.http import Connections, Site
from runtime.load.prompts import Units
from runtime.load.rows import Outcome
from runtime.load.server import Server
from sim.trace.record import TraceRequest
from tests.bench.graph_alone import FEW, ROUNDS
from tests.live import Live, live

SERVER = ("sundog", "serve", "--port", "0", "--simulate", "h100", "--model", "llama-3.1-8b")
LIMITS = ("--max-num-seqs", "1024", "--max-model-len", "4096", "--no-log-requests", "--disable-log-stats")
EXTRAS = {"ignore_eos": True}
TICK_S = 1 / os.sysconf("SC_CLK_TCK")


class Kept:
    """A listener that keeps what its clients saw."""

    def __init__(self) -> None:
        self.outcomes: list[Outcome] = []

    def due(self, row: TraceRequest, outcome: Outcome) -> None: ...

    def ended(self, row: TraceRequest, outcome: Outcome) -> None:
        assert outcome.trouble is None, outcome
        self.outcomes.append(outcome)


@dataclass(frozen=True, slots=True)
class Cost:
    """What a load took."""

    cpu_s: float
    peak_kb: int
    gaps_s: list[float]
    first_s: float
    """How long its clients waited for their first tokens, the longest of them."""
    num_chunks: int


def cpu_s(pid: int) -> float:
    """Processor time of a process so far, by Linux's count, in whole ticks."""
    with open(f"/proc/{pid}/stat") as file:
        fields = file.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) * TICK_S


def resident_kb(pid: int) -> int:
    with open(f"/proc/{pid}/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("VmRSS"))


async def played(server: Live, num_streams: int, num_tokens: int) -> Cost:
    """All streams at once."""
    connections, kept, pid = Connections(Site.of(server.url)), Kept(), server.process.pid
    target = Server(connections, "llama-3.1-8b", "completions", EXTRAS, Units(ids=range(300, 1000)))
    rows = [TraceRequest(f"r{num_tokens}-{i}", 0.0, 16, num_tokens) for i in range(num_streams)]
    before, peak = cpu_s(pid), 0

    async def watch() -> None:
        nonlocal peak
        while True:
            peak = max(peak, resident_kb(pid))
            await trio.sleep(0.2)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(watch)
        await Clients(target, kept, salt=f"{num_tokens}").play(rows)
        nursery.cancel_scope.cancel()
    gaps = sorted(gap for outcome in kept.outcomes for gap in outcome.gaps_s)
    first = max(outcome.first_s - outcome.sent_s for outcome in kept.outcomes)
    chunks = sum(outcome.num_chunks for outcome in kept.outcomes)
    return Cost(cpu_s(pid) - before, peak, gaps, first, chunks)


def prices(num_streams: int, num_tokens: int, rounds: list[tuple[float, float]]) -> tuple[float, float]:
    """Seconds of a token and of a request, by what few and many tokens cost."""
    tokens = num_streams * (num_tokens - FEW)
    token = statistics.median((many - few) / tokens for few, many in rounds)
    return token, statistics.median(few / num_streams - FEW * token for few, _ in rounds)


def alone(num_streams: int, num_tokens: int, step_scale: float) -> list[tuple[float, ...]]:
    """What `graph_alone` prints: the same where nobody speaks HTTP."""
    sizes = [str(num_streams), str(num_tokens), str(step_scale)]
    command = [sys.executable, "-m", "tests.bench.graph_alone", *sizes]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return [tuple(map(float, line.split())) for line in said.splitlines()]


def measure(server: Live, num_streams: int, num_tokens: int, step_scale: float) -> str:
    """The prices at this many streams."""
    trio.run(played, server, num_streams, FEW)  # so that everything is loaded
    idle_kb = resident_kb(server.process.pid)
    rounds = [
        (trio.run(played, server, num_streams, FEW), trio.run(played, server, num_streams, num_tokens))
        for _ in range(ROUNDS)
    ]
    each, request = prices(num_streams, num_tokens, [(few.cpu_s, many.cpu_s) for few, many in rounds])
    without = alone(num_streams, num_tokens, step_scale)
    graph_each, graph_request = prices(num_streams, num_tokens, [(few, many) for few, many, *_ in without])
    first_s, gap_s = (statistics.median(column) for column in list(zip(*without, strict=True))[2:])
    many = rounds[-1][1]
    kb = (max(many.peak_kb for _, many in rounds) - idle_kb) / num_streams
    p50, p99 = (many.gaps_s[int(len(many.gaps_s) * part)] for part in (0.5, 0.99))
    return (
        f"{num_streams:5d} streams: {each * 1e6:5.1f} us a token ({(each - graph_each) * 1e6:.1f} HTTP),"
        f" {request * 1e6:5.0f} us a request ({(request - graph_request) * 1e6:.0f} HTTP);"
        f" {many.num_chunks / num_streams / num_tokens:.2f} chunks a token, gaps {p50 * 1e3:.1f} ms (p50)"
        f" {p99 * 1e3:.1f} (p99, {gap_s * 1e3:.1f} without HTTP),"
        f" last first token {many.first_s * 1e3:.0f} ms ({first_s * 1e3:.0f});"
        f" {kb:.0f} kB a stream over {idle_kb / 1024:.0f} MB"
    )


def idle(server: Live, count: int) -> str:
    """What connections cost on which nothing happens."""
    pid, before_kb = server.process.pid, resident_kb(server.process.pid)

    async def hold() -> float:
        streams = [await trio.open_tcp_stream("127.0.0.1", server.port) for _ in range(count)]
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
    options = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    with live(*SERVER, *LIMITS, "--step-scale", f"{options.step_scale:g}") as server:
        for num_streams in options.streams:
            print(measure(server, num_streams, options.tokens, options.step_scale), flush=True)
        print(idle(server, 2000))


if __name__ == "__main__":
    main()
