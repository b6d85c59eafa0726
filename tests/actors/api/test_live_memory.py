"""Memory of the server per open stream."""

import resource

import pytest
import trio

from tests.live import EMULATED, Live, live
from tests.patience import START_S
from tests.soak.manners import request

MOST_KB = 60
"""Hypercorn's connections hold most of that (tests/bench/results/door-2-cores.md)."""
NUM_WARM, NUM_STREAMS = 50, 300
LONG = request(b'{"prompt": "Once upon a time", "stream": true, "ignore_eos": true, "max_tokens": 2000}')


def resident_kb(server: Live) -> int:
    with open(f"/proc/{server.process.pid}/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("VmRSS"))


async def opened(server: Live, count: int) -> list[trio.SocketStream]:
    """So many streams, each of which has begun."""
    streams = [await trio.open_tcp_stream("127.0.0.1", server.port) for _ in range(count)]
    with trio.fail_after(START_S):
        for stream in streams:
            await stream.send_all(LONG)
        for stream in streams:
            data = b""
            while b"data: " not in data:
                data += await stream.receive_some()
    return streams


@pytest.mark.long(reason="opens a thousand streams")
def test_an_open_stream_takes_little_memory() -> None:
    """While it is written; the body of its request is forgotten."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    with live(*EMULATED, "--max-num-seqs", "1024", "--step-scale", "100") as server:

        async def grown_kb() -> float:
            streams = await opened(server, NUM_WARM)
            await trio.sleep(1)
            before_kb = resident_kb(server)
            streams += await opened(server, NUM_STREAMS)
            await trio.sleep(1)
            grown_kb = resident_kb(server) - before_kb
            for stream in streams:
                await trio.aclose_forcefully(stream)
            return grown_kb / NUM_STREAMS

        assert trio.run(grown_kb) < MOST_KB
        server.assert_sound()
