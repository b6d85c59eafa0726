"""Load of `bench door`: simultaneous streams, and their cost to the server."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import trio

from sundog.runtime.load.clients import Clients
from sundog.runtime.load.prompts import Units
from sundog.runtime.load.rows import Outcome
from sundog.runtime.load.server import TargetServer
from sundog.runtime.load.server_client import ServerClient
from sundog.sim.trace.record import TraceRequest
from tests.bench.graph_alone import FEW, ROUNDS

MODEL = "llama-3.1-8b"
EXTRAS = {"ignore_eos": True}


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
    """Processor time of a process so far, of the threads that it has now, by the scheduler's nanoseconds.

    In ticks of 10 ms, a token of one stream would cost whole multiples of 200 µs.
    """
    shares = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(each.read_text().split()[0]) for each in shares) / 1e9


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
    """Of the last load with many tokens; the gaps of all."""
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


def priced(servers: Sequence[Serving], num_streams: int, num_tokens: int) -> list[Price]:
    """Return the price of so many streams at a time from each server, asked in turn after a first load."""
    for server in servers:
        trio.run(played, server, num_streams, FEW)
    idle_kb = [resident_kb(server.pid) for server in servers]
    rounds = [
        [
            (trio.run(played, server, num_streams, FEW), trio.run(played, server, num_streams, num_tokens))
            for server in servers
        ]
        for _ in range(ROUNDS)
    ]
    found = list[Price]()
    for own, before_kb in zip(zip(*rounds, strict=True), idle_kb, strict=True):
        each, request = prices(num_streams, num_tokens, [(few.cpu_s, many.cpu_s) for few, many in own])
        kb = (max(many.peak_kb for _, many in own) - before_kb) / num_streams
        many = replace(own[-1][1], gaps_s=sorted(gap for _, many in own for gap in many.gaps_s))
        found.append(Price(each, request, many, num_streams, num_tokens, kb, before_kb))
    return found
