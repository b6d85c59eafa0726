"""File descriptors are released at once, and the server survives running out of them."""

import os
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.live import EMULATED, Live, live
from tests.patience import HANGS_S

LIMIT = 64
GET = b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"


@pytest.fixture(scope="module")
def server() -> Iterator[Live]:
    with live(*EMULATED, "--debug", descriptor_limit=LIMIT) as server:
        yield server


def connect(server: Live) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.port), HANGS_S)


def status(client: socket.socket) -> bytes:
    client.sendall(GET)
    return client.recv(1000)[9:12]


def cpu_s(server: Live) -> float:
    fields = Path(f"/proc/{server.process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@pytest.mark.long(reason="uses up a server's descriptors, ten seconds")
def test_clients_come_one_after_the_other(server: Live) -> None:
    """Each keeps its connection alive, asks once and leaves: the upper half are free after a second."""
    for _ in range(4 * LIMIT):
        with connect(server) as client:
            assert status(client) == b"200"
    server.assert_sound()


@pytest.mark.long(reason="starts a server, and asks it over sockets", moderate=True)
def test_idle_connections_make_room_for_new_ones(server: Live) -> None:
    """More clients than descriptors stay connected: the upper half are closed, and one line says why."""
    with ExitStack() as crowd:
        for _ in range(2 * LIMIT):
            crowd.enter_context(connect(server))
        with connect(server) as client:
            assert status(client) == b"200"
    assert len([line for line in server.said if "ulimit" in line]) == 1
    server.assert_sound()


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="the system has no /proc")
def test_without_descriptors_the_server_waits_and_goes_on(server: Live) -> None:
    """All are held by requests on their way: the acceptor does not spin, and accepts when some end."""
    with ExitStack() as crowd:
        for _ in range(2 * LIMIT):
            client = crowd.enter_context(connect(server))
            client.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n{")
        time.sleep(0.3)
        begin_s, begin_cpu_s = time.monotonic(), cpu_s(server)
        time.sleep(0.7)
        share = (cpu_s(server) - begin_cpu_s) / (time.monotonic() - begin_s)
        assert share < 0.3, share
    with connect(server) as client:
        assert status(client) == b"200"
    server.assert_sound()
