"""`make soak`: 50,000 requests of all manners to the embedded model, a day of an emulated server's, signals.

    python -m tests.soak [--requests 50000] [--hours 24] [--time-scale 96] [--signals 600]

Memory, of a server and its engine processes, is printed as it goes. It fails if that grows by more than
GROWTH_MB once warm, if a request is answered with 5xx or breaks off, and if anything is held at the end.
"""

import argparse
import random
import sys
import time
from collections import Counter
from collections.abc import Callable

import httpx
import psutil  # type: ignore[import-untyped]  # ships no types
import trio

from tests.live import EMULATED, Live, live
from tests.soak.manners import MANNERS, Manner, ServerError, left_over
from tests.soak.signals import RANKS, REPLICAS, hurt_for

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
SETTLE_S = 30.0
EVERY_S = 10.0
"""The time between two signals to processes of a server."""


def megabytes(server: Live) -> list[float]:
    """What a server has in memory, and each of its processes."""
    root = psutil.Process(server.process.pid)
    return [each.memory_info().rss / 2**20 for each in (root, *root.children(recursive=True))]


class Failed(Exception):
    """The server is not as it was."""


class Soak:
    """One server under one load."""

    def __init__(self, server: Live, num_requests: int, every: int, seed: int = 1) -> None:
        self._server, self._num_requests, self._every = server, num_requests, every
        self._random = random.Random(seed)
        self._base_mb: float | None = None
        self._begin_s = time.monotonic()
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
        print(f"{self.num_done:6d} requests, {took_s:5.0f} s: {parts} = {now_mb:.0f} MB{grown}", flush=True)
        if self._base_mb is not None and now_mb - self._base_mb > GROWTH_MB:
            raise Failed(f"memory has grown by more than {GROWTH_MB} MB")

    async def closed(self) -> None:
        """CLIENTS at a time, until all requests have been made."""
        num_begun = 0

        async def client() -> None:
            nonlocal num_begun
            while num_begun < self._num_requests:
                num_begun += 1
                await self.one()

        async with trio.open_nursery() as nursery:
            for _ in range(CLIENTS):
                nursery.start_soon(client)

    async def paced(self, seconds: float) -> None:
        """All requests within this time, by a Poisson process."""
        start_s, rate = trio.current_time(), self._num_requests / seconds
        due_s = start_s
        async with trio.open_nursery() as nursery:
            for _ in range(self._num_requests):
                due_s += self._random.expovariate(rate)
                await trio.sleep_until(due_s)
                nursery.start_soon(self.one)

    def end(self) -> None:
        """What must be true once all clients have left."""
        deadline_s = time.monotonic() + SETTLE_S
        while left := left_over(self._server.url):
            if time.monotonic() > deadline_s:
                raise Failed(f"the server still holds {left}")
            time.sleep(0.1)
        self.check()
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
    options = parser.parse_args()

    try:
        soak_both(options)
        if options.signals:
            print(f"a process is killed or stopped every {EVERY_S:g} s", flush=True)
            for engines in (REPLICAS, RANKS):
                print(" ".join(engines), hurt_for(options.signals / 2, EVERY_S, engines), flush=True)
    except* (Failed, ServerError) as group:
        sys.exit("\n".join(map(str, group.exceptions)))


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
