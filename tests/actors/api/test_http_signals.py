"""Ctrl-C and SIGTERM to real processes: the first drains, the second aborts, further ones change nothing."""

import json
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import trio

from sundog.actors.api.context import ServedModel
from sundog.actors.api.serve_graph import SIGNALS, serve_graph
from sundog.actors.api.server_options import ServerOptions
from sundog.actors.config import EngineConfig
from sundog.actors.front.codec import Vocabulary
from sundog.actors.messages import Batch, Capacity, StepResult
from tests.live import EMULATED, Live, live
from tests.patience import HANGS_S


@contextmanager
def stream(server: Live, num_tokens: int) -> Iterator[socket.socket]:
    """A running stream whose first bytes have come."""
    body = json.dumps({"prompt": "x", "max_tokens": num_tokens, "ignore_eos": True, "stream": True})
    head = "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    with socket.create_connection(("127.0.0.1", server.port), HANGS_S) as client:
        client.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n{body}".encode())
        assert client.recv(100).startswith(b"HTTP/1.1 200")
        yield client


def read_to_end(client: socket.socket) -> bytes:
    data = b""
    while received := client.recv(1 << 16):
        data += received
    return data


@pytest.mark.long(keep=1, reason="more cases of the law whose first `make test` runs", moderate=True)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_lets_streams_finish_and_nobody_in(number: signal.Signals) -> None:
    """New requests are turned away at once, the stream goes on to its end, and the exit code is 0."""
    with live(*EMULATED, "--grace", "300") as server, stream(server, 600) as client:
        server.hurt(number)
        server.until_it_says("stopping")
        assert server.complete(max_tokens=1).status_code == 503
        data = read_to_end(client)
        assert b'"finish_reason":"length"' in data and b"data: [DONE]" in data
        assert server.ended() == 0
    assert not [line for line in server.said if "Traceback" in line], server.said


def test_the_second_signal_cuts_at_once() -> None:
    """Whatever runs is cut, long before the grace; further signals change nothing."""
    with live(*EMULATED, "--grace", "300") as server, stream(server, 4000) as client:
        server.hurt(signal.SIGINT)
        server.until_it_says("stopping")  # or two signals would be one to the system
        for _ in range(4):
            server.hurt(signal.SIGINT)
            time.sleep(0.02)
        assert b"[DONE]" not in read_to_end(client)
        assert server.ended() == 130
    assert not [line for line in server.said if "Traceback" in line], server.said


class NeverLoaded:
    """A backend whose model takes for ever."""

    def __init__(self) -> None:
        self.loading = trio.Event()

    async def load(self) -> Capacity:
        self.loading.set()
        await trio.sleep_forever()
        raise AssertionError

    async def execute(self, batch: Batch) -> StepResult:
        raise AssertionError(batch)

    async def close(self) -> None:
        pass


@pytest.mark.wall_clock
async def test_a_signal_while_the_model_loads_cuts_at_once() -> None:
    """There is nothing to drain: one signal is enough, and it is an interrupt."""
    backend = NeverLoaded()
    handlers = {number: signal.getsignal(number) for number in SIGNALS}
    try:
        async with trio.open_nursery() as nursery:
            with trio.fail_after(HANGS_S), pytest.raises(KeyboardInterrupt):
                nursery.start_soon(interrupt_at, backend.loading)
                await serve_graph(
                    EngineConfig(),
                    lambda replica: backend,
                    ServedModel("m", 16, 0),
                    None,  # nothing is ever tokenised
                    Vocabulary(),
                    ServerOptions(port=0),
                )
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


async def interrupt_at(event: trio.Event) -> None:
    await event.wait()
    signal.raise_signal(signal.SIGINT)
