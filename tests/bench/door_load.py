"""The load of `bench door`: streams that are asked for at once, and what they take of their server."""

import os
import statistics
from dataclasses import dataclass
from typing import Protocol

import trio

from runtime.load.clients import Clients
from runtime.load.prompts import Units
from runtime.load.rows import Outcome
from runtime.load.server import TargetServer
from runtime.load.server_client import ServerClient
from sim.trace.record import TraceRequest
from tests.bench.graph_alone import FEW, ROUNDS

MODEL = "llama-3.1-8b"
EXTRAS = {"ignore_eos": True}
TICK_S = 1 / os.sysconf("SC_CLK_TCK")


class Serving(Protocol):
    """A server in a process of its own."""

    @property
    def url(self) -> str: ...
    @property
    def pid(self) -> int: ...


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


async def played(server: Serving, num_streams: int, num_tokens: int) -> Cost:
    """All streams at once."""
    client, kept, pid = ServerClient.of(server.url), Kept(), server.pid
    target = TargetServer(client, MODEL, "completions", EXTRAS, Units(ids=range(300, 1000)))
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


@dataclass(frozen=True, slots=True)
class Price:
    """What streams cost a server: processor time of a token and of a request, and what clients saw."""

    token_s: float
    request_s: float
    many: Cost
    """Of the last load with many tokens."""
    num_streams: int
    num_tokens: int
    kb: float
    idle_kb: int

    def gap_s(self, part: float) -> float:
        gaps_s = self.many.gaps_s
        return gaps_s[int(len(gaps_s) * part)]

    @property
    def pace_s(self) -> float:
        """The mean gap: where clients read several chunks at once, most gaps are nothing."""
        return statistics.fmean(self.many.gaps_s)

    @property
    def chunks_each(self) -> float:
        return self.many.num_chunks / self.num_streams / self.num_tokens


def priced(server: Serving, num_streams: int, num_tokens: int) -> Price:
    """The price of so many streams at a time, after a first load so that everything is there."""
    trio.run(played, server, num_streams, FEW)
    idle_kb = resident_kb(server.pid)
    rounds = [
        (trio.run(played, server, num_streams, FEW), trio.run(played, server, num_streams, num_tokens))
        for _ in range(ROUNDS)
    ]
    each, request = prices(num_streams, num_tokens, [(few.cpu_s, many.cpu_s) for few, many in rounds])
    kb = (max(many.peak_kb for _, many in rounds) - idle_kb) / num_streams
    return Price(each, request, rounds[-1][1], num_streams, num_tokens, kb, idle_kb)
