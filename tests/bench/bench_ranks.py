"""Two ranks that share a model against one process that has all of it: the cost of communication in a step.

    python -m tests.bench ranks [--rounds N] [--model DIR]

Both serve 8 streams in float32, one thread a rank, in turns; a step gives each stream a token, so the time
between tokens is that of a step. Then what a sum over two ranks alone takes, of one row and of 256. Wall
times mean something only on a machine with a core for each rank.
"""

import argparse
import os
import statistics
import time

import torch

from sundog.runtime.ranks.group import RankGroup
from sundog.runtime.ranks.rank import RankPlace, first_of
from tests.bench.bench_processes import Seen, load
from tests.live import live

NUM_SUMS = 2_000
WIDTH = 1024


def sums_us(rank: RankPlace) -> list[float]:
    """What a sum over the ranks takes, in µs, of 1 and of 256 rows."""
    torch.set_num_threads(1)
    group, found = RankGroup(rank, torch.device("cpu")), []
    for num_rows in (1, 256):
        part = torch.zeros(num_rows, WIDTH)
        group.sum(part)
        began_s = time.perf_counter()
        for _ in range(NUM_SUMS):
            group.sum(part)
        found.append((time.perf_counter() - began_s) / NUM_SUMS * 1e6)
    group.close()
    return found


def in_two_processes() -> list[float]:
    """The same at rank 0, of two."""
    first = first_of(2)
    if not os.fork():
        try:
            assert first.listening is not None
            os.close(first.listening)
            sums_us(first.other(1))
        finally:
            os._exit(0)
    found = sums_us(first)
    os.wait()
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--model", default="sundog-tiny")
    asked = parser.parse_args()
    one_row_us, many_rows_us = in_two_processes()
    print(f"a sum of {WIDTH} numbers over two ranks: {one_row_us:.0f} µs; of 256 rows: {many_rows_us:.0f} µs")
    os.environ["OMP_NUM_THREADS"] = "1"
    serve = ("sundog", "serve", asked.model, "--port", "0", "--dtype", "float32", "--disable-log-stats")
    seen: dict[int, list[Seen]] = {1: [], 2: []}
    for _ in range(asked.rounds):
        for num_ranks, loads in seen.items():
            with live(*serve, "-tp", str(num_ranks)) as server:
                load(server, 0)
                loads.append(load(server, 0))
    for num_ranks, loads in seen.items():
        print(
            f"{num_ranks} rank{'s' if num_ranks > 1 else ' '}"
            f" {statistics.median(each.tokens_per_s for each in loads):7.0f} tokens/s,"
            f" {statistics.median(each.cpu_s for each in loads):.2f} CPU s per 1000 tokens,"
            f" a step {statistics.median(statistics.median(each.gaps_s) for each in loads) * 1e3:.2f} ms"
        )
