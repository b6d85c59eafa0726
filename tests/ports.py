"""Consecutive free ports, for servers that take the ports after theirs."""

import os
import socket


def free_ports(count: int, begin: int) -> int:
    """The first of so many in a row that were free a moment ago, at most a thousand behind `begin`.

    Below 32,768, from where systems give ports to clients. Each test has a `begin` of its own, and each of
    the processes that run tests at once begins elsewhere: what is free may still be another's.
    """
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0")[2:])
    for first in range(begin + 100 * (worker % 10), begin + 1000, count):
        try:
            for port in range(first, first + count):
                socket.create_server(("", port)).close()
        except OSError:
            continue
        return first
    raise AssertionError("no ports are free")
