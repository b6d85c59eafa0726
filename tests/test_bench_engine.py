"""The engine benchmark treats all compared servers equally."""

import subprocess
import sys

import psutil

from tests.bench.bench_engine import turns
from tests.bench.engine_servers import Server

FORKS = "import os, sys; data = os.urandom(1 << 26); os.fork(); print(flush=True); sys.stdin.read()"


def test_servers_are_asked_in_reverse_order_in_each_second_round() -> None:
    """What a server leaves behind falls into the turns of both of its neighbours."""
    assert list(turns(3, 3)) == [(0, 0), (0, 1), (0, 2), (1, 2), (1, 1), (1, 0), (2, 0), (2, 1), (2, 2)]


def test_memory_that_two_processes_share_counts_once() -> None:
    """A forked process has the 64 MiB of its parent, which are there once."""
    command = [sys.executable, "-c", FORKS]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as server:
        assert server.stdout is not None
        assert [server.stdout.readline() for _ in range(2)] == [b"\n"] * 2
        found = Server("forks", 0, 0.0, psutil.Process(server.pid))
        assert len(found.family()) == 2 and 0.064 < found.memory_gb() < 0.120
