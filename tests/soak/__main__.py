"""`make soak`: 50,000 requests of all kinds to the embedded model, a day of an emulated server, and signals.

    python -m tests.soak [--requests 50000] [--hours 24] [--time-scale 96] [--signals 600] [--scale 1]

Memory, of a server and its engine processes, and its descriptors are printed as it goes, and at the end how
memory grew and how long a health probe waited. It fails if memory grows by more than GROWTH_MB once warm, if
a request is answered with 5xx or breaks off, and if a request, a block or a connection is held at the end.
`--scale 0.1` is a tenth of all of it.

    python -m tests.soak --rate 1000 --minutes 10     an emulated server, open load (tests/soak/steady.py)
    python -m tests.soak --clients 64 --minutes 60    the embedded model under so many clients at once
"""

import argparse
import math
import random
import statistics
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import httpx
import psutil  # type: ignore[import-untyped]  # ships no types
import trio

from tests.live import EMULATED, Live, live
from tests.soak.manners import MANNERS, Manner, ServerError, left_over
from tests.soak.signals import RANKS, REPLICAS, hurt_for
from tests.soak.steady import Broken, Seen, offered, told

GROWTH_MB = 32
"""0.7 kB for each of 50,000 requests would be more."""
WARM = 3000
"""Requests before memory counts: libraries are loaded, caches full, and the allocator knows its sizes."""
CLIENTS = 24
AN_HOUR = 360
"""Requests to the emulated server in an hour of its clock."""
QUIET = ("--no-log-requests", "--disable-log-stats")
TORCH = ("sundog", "serve", "--port", "0", "--debug", "--num-gpu-blocks", "512")
"""Few blocks: all are written to before memory counts, and requests are preempted."""
STEADY = (
    *("--replicas", "4", "--api-processes", "2", "--max-model-len", "2048", "--num-gpu-blocks", "1024"),
    *("--front-cost", "request=0,response=0"),
)
"""Our own doors are the limit, not the API processes that a server of such a GPU would have."""
SETTLE_S = 30.0
MORE_FDS = 2
"""Of a connection kept alive by whoever asks here, and a file just open."""
PROBE_EVERY_S = 0.2
EVERY_S = 10.0
"""The time between two signals to processes of a server."""


def megabytes(server: Live) -> list[float]:
    """What a server has in memory, and each of its processes."""
    root = psutil.Process(server.process.pid)
    return [each.memory_info().rss / 2**20 for each in (root, *root.children(recursive=True))]


def descriptors(server: Live) -> int:
    """Return the number of descriptors that a server's first process holds."""
    return int(psutil.Process(server.process.pid).num_fds())


class Failed(Exception):
    """The server is not as it was."""


class Soak:
    """One server under one load."""

    def __init__(self, server: Live, num_requests: int, every: int, seed: int = 1) -> None:
        self._server, self._num_requests, self._every = server, num_requests, every
        self._random = random.Random(seed)
        self._base_mb: float | None = None
        self._begin_s, self._begin_fds = time.monotonic(), descriptors(server)
        self._grown: list[tuple[int, float]] = []
        self._health_s: list[float] = []
        self.statuses: Counter[int] = Counter()

    @property
    def num_done(self) -> int:
        return self.statuses.total()

    async def one(self) -> None:
        """A request of any manner."""
        (manner,) = self._random.choices([*MANNERS], [*MANNERS.values()])
        await self.ask(manner)

    async def ask(self, manner: Manner) -> None:
        self.statuses[await manner(self._server.port, self._random)] += 1
        if self.num_done >= WARM and self._base_mb is None:
            self._base_mb = sum(megabytes(self._server))
        if self.num_done % self._every == 0:
            self.check()

    def check(self) -> None:
        """Print a line; raises Failed if memory has grown too much."""
        parts_mb, took_s = megabytes(self._server), time.monotonic() - self._begin_s
        now_mb = sum(parts_mb)
        grown = "" if self._base_mb is None else f", {now_mb - self._base_mb:+.1f} since it was warm"
        parts = " + ".join(f"{part:.0f}" for part in parts_mb)
        held = f"{now_mb:.0f} MB{grown}, {descriptors(self._server)} descriptors"
        print(f"{self.num_done:6d} requests, {took_s:5.0f} s: {parts} = {held}", flush=True)
        if self._base_mb is not None:
            self._grown.append((self.num_done, now_mb))
        if self._base_mb is not None and now_mb - self._base_mb > GROWTH_MB:
            raise Failed(f"memory has grown by more than {GROWTH_MB} MB")

    async def closed(self, num_clients: int = CLIENTS, seconds: float = math.inf) -> None:
        """So many clients at a time, until all requests have been made or the time is over."""
        num_begun, end_s = 0, trio.current_time() + seconds

        async def client() -> None:
            nonlocal num_begun
            while num_begun < self._num_requests and trio.current_time() < end_s:
                num_begun += 1
                await self.one()

        async with self._probed(), trio.open_nursery() as nursery:
            for _ in range(num_clients):
                nursery.start_soon(client)

    async def steady(self, rate_per_s: float, seconds: float) -> None:
        """Evenly spaced requests to an emulated server, whether or not it keeps up."""
        seen = Seen(self.statuses)
        start_s = trio.current_time()

        async def watch() -> None:
            while True:
                await trio.sleep(EVERY_S)
                if self._base_mb is None and self.num_done >= WARM:
                    self._base_mb = sum(megabytes(self._server))
                self.check()

        async with self._probed(), trio.open_nursery() as nursery:
            nursery.start_soon(watch)
            await offered(self._server.port, rate_per_s, seconds, seen)
            nursery.cancel_scope.cancel()
        print(told(seen, trio.current_time() - start_s), flush=True)

    async def paced(self, seconds: float) -> None:
        """All requests within this time, by a Poisson process."""
        start_s, rate = trio.current_time(), self._num_requests / seconds
        due_s = start_s
        async with self._probed(), trio.open_nursery() as nursery:
            for _ in range(self._num_requests):
                due_s += self._random.expovariate(rate)
                await trio.sleep_until(due_s)
                nursery.start_soon(self.one)

    @asynccontextmanager
    async def _probed(self) -> AsyncIterator[None]:
        """Meanwhile ask for the server's health, and note how long each answer took."""

        async def probe() -> None:
            async with httpx.AsyncClient(base_url=self._server.url, timeout=SETTLE_S) as client:
                while True:
                    begin_s = time.monotonic()
                    (await client.get("/health")).raise_for_status()
                    self._health_s.append(time.monotonic() - begin_s)
                    await trio.sleep(PROBE_EVERY_S)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(probe)
            yield
            nursery.cancel_scope.cancel()

    def end(self) -> None:
        """What must be true once all clients have left."""
        deadline_s = time.monotonic() + SETTLE_S
        while left := left_over(self._server.url):
            if time.monotonic() > deadline_s:
                raise Failed(f"the server still holds {left}")
            time.sleep(0.1)
        while (num_held := descriptors(self._server) - self._begin_fds) > MORE_FDS:
            if time.monotonic() > deadline_s:
                raise Failed(f"the server still holds {num_held} descriptors of clients that have left")
            time.sleep(0.1)
        self.check()
        ranked = sorted(self._health_s)
        middle, p99 = (ranked[int(part * len(ranked))] * 1e3 for part in (0.5, 0.99))
        print(f"health of {len(ranked)} probes: {middle:.0f} ms (p50), {p99:.0f} ms (p99)", flush=True)
        if len(self._grown) > 2:
            slope = statistics.linear_regression(*zip(*self._grown, strict=True)).slope
            print(f"memory grew by {slope * 1e3:+.2f} MB each 1,000 requests once warm", flush=True)
        self._server.assert_sound()
        print(f"statuses: {dict(sorted(self.statuses.items()))}; nothing is held", flush=True)
        if (lag := httpx.get(f"{self._server.url}/load").json().get("emulation")) is not None:
            print(f"its steps lost {lag['lost_s']:.1f} s of its clock, as /load has it", flush=True)


def run(command: tuple[str, ...], soak: Callable[[Live], tuple[Soak, Callable[[], object]]]) -> None:
    with live(*command, *QUIET) as server:
        soaking, load = soak(server)
        load()
        soaking.end()
        if (code := server.stop()) != 0:
            raise Failed(f"the server ended with {code}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=50_000)
    parser.add_argument("--hours", type=float, default=24.0)
    parser.add_argument("--time-scale", type=float, default=96.0)
    parser.add_argument(
        "--signals", type=float, default=600.0, help="seconds of killing and stopping processes"
    )
    parser.add_argument("--rate", type=float, help="requests/s offered to an emulated server, and no more")
    parser.add_argument("--clients", type=int, help="clients of the embedded model at once, and no more")
    parser.add_argument("--minutes", type=float, default=10.0, help="how long --rate or --clients lasts")
    parser.add_argument("--scale", type=float, default=1.0, help="the part of all of it that is done")
    options = parser.parse_args()
    options.requests = round(options.requests * options.scale)
    options.hours *= options.scale
    options.signals *= options.scale

    try:
        if options.rate or options.clients:
            soak_minutes(options)
            return
        soak_both(options)
        if options.signals:
            print(f"a process is killed or stopped every {EVERY_S:g} s", flush=True)
            for engines in (REPLICAS, RANKS):
                print(" ".join(engines), hurt_for(options.signals / 2, EVERY_S, engines), flush=True)
    except* (Failed, ServerError, Broken) as group:
        sys.exit("\n".join(map(str, group.exceptions)))


def soak_minutes(options: argparse.Namespace) -> None:
    """An open load on an emulated server, or many clients of the embedded model, for minutes."""
    seconds = options.minutes * 60

    def emulated(server: Live) -> tuple[Soak, Callable[[], object]]:
        soak = Soak(server, round(options.rate * seconds), 1000)
        return soak, lambda: trio.run(soak.steady, options.rate, seconds)

    def torch(server: Live) -> tuple[Soak, Callable[[], object]]:
        soak = Soak(server, sys.maxsize, 1000)
        return soak, lambda: trio.run(soak.closed, options.clients, seconds)

    if options.rate:
        print(f"{options.rate:,g} requests/s for {options.minutes:g} minutes, emulated", flush=True)
        run((*EMULATED, *STEADY), emulated)
    if options.clients:
        print(f"{options.clients} clients of the embedded model for {options.minutes:g} minutes", flush=True)
        run(TORCH, torch)


def soak_both(options: argparse.Namespace) -> None:
    """The embedded model, then an emulated server."""

    def torch(server: Live) -> tuple[Soak, Callable[[], object]]:
        soak = Soak(server, options.requests, 1000)
        return soak, lambda: trio.run(soak.closed)

    def emulated(server: Live) -> tuple[Soak, Callable[[], object]]:
        soak = Soak(server, int(options.hours * AN_HOUR), AN_HOUR)
        return soak, lambda: trio.run(soak.paced, options.hours * 3600 / options.time_scale)

    if options.requests:
        print(f"{options.requests:,} requests to the embedded model", flush=True)
        run(TORCH, torch)
    if options.hours:
        print(
            f"{options.hours:g} hours of an emulated server, {options.time_scale:g} times as fast", flush=True
        )
        run((*EMULATED, "--debug", "--time-scale", f"{options.time_scale}"), emulated)


if __name__ == "__main__":
    main()
