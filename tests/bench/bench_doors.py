"""Gain of `--api-processes N`: streams and short requests of one emulated server through one door, and
through N.

    python -m tests.bench doors [--processes 1 2] [--streams 256] [--tokens 60] [--requests 2000] [--times 3]

Steps take a hundredth of an H100's time and simulated API processes none, so that HTTP is what takes the
time. Clients of bare sockets in one process read as fast as they can. Servers are asked in turn, and
processor seconds are those of all processes of a server. Where a machine has no more cores than doors,
clients and engine take their part of them.
"""

import argparse
import resource
import selectors
import socket
import statistics
import time
from collections.abc import Callable
from contextlib import ExitStack

import psutil  # type: ignore[import-untyped]  # ships no types

from tests.bench.door_load import cpu_s
from tests.live import Live, live

SERVER = ("sundog", "emulate", "--port", "0", "--gpu", "h100", "--model", "llama-3.1-8b")
SHORT_STEPS = ("--step-scale", "0.01", "--front-cost", "request=0,response=0")
LIMITS = ("--max-num-seqs", "1024", "--max-model-len", "4096", "--no-log-requests", "--disable-log-stats")


def request(num_tokens: int, *, stream: bool) -> bytes:
    """One completion on a connection that is kept."""
    fields = f'"max_tokens": {num_tokens}, "ignore_eos": true, "stream": {str(stream).lower()}'
    body = f'{{"prompt": "a b c d e f g h", {fields}}}'.encode()
    head = "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


def all_cpu_s(server: Live) -> float:
    root = psutil.Process(server.process.pid)
    return sum(cpu_s(each.pid) for each in (root, *root.children(recursive=True)))


def play(port: int, num_clients: int, num_requests: int, sent: bytes, end: bytes) -> None:
    """So many clients at a time ask, each again when its answer has come, until all requests are answered."""
    selector, left = selectors.DefaultSelector(), num_requests - num_clients
    for _ in range(num_clients):
        client = socket.create_connection(("127.0.0.1", port))
        selector.register(client, selectors.EVENT_READ)
        client.sendall(sent)
    while selector.get_map():
        for key, _ in selector.select():
            client = key.fileobj  # type: ignore[assignment]  # none else is registered
            data = client.recv(2**20)
            assert data, "a connection was cut"
            if data.endswith(end):
                if left > 0:
                    left -= 1
                    client.sendall(sent)
                else:
                    selector.unregister(client)
                    client.close()


def measured(server: Live, load: Callable[[int], None]) -> tuple[float, float]:
    """Seconds on the wall, and of processors."""
    begin_s, begin = time.monotonic(), all_cpu_s(server)
    load(server.port)
    return time.monotonic() - begin_s, all_cpu_s(server) - begin


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--processes", type=int, nargs="*", default=[1, 2])
    parser.add_argument("--streams", type=int, default=256)
    parser.add_argument("--tokens", type=int, default=60)
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--times", type=int, default=3)
    options = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    streamed, short = request(options.tokens, stream=True), request(1, stream=False)
    loads: dict[str, tuple[int, Callable[[int], None]]] = {
        "tokens": (
            options.streams * options.tokens,
            lambda port: play(port, *(options.streams,) * 2, streamed, b"0\r\n\r\n"),
        ),
        "requests": (options.requests, lambda port: play(port, 64, options.requests, short, b"}")),
    }
    with ExitStack() as running:
        servers = {
            count: running.enter_context(live(*SERVER, *SHORT_STEPS, *LIMITS, "--api-processes", str(count)))
            for count in options.processes
        }
        for name, (number, load) in loads.items():
            rounds = [[measured(each, load) for each in servers.values()] for _ in range(options.times + 1)]
            # The first of them warms the servers up.
            for count, own in zip(servers, zip(*rounds[1:], strict=True), strict=True):
                wall_s, spent_s = (statistics.median(column) for column in zip(*own, strict=True))
                print(
                    f"--api-processes {count}: {number / wall_s:7.0f} {name} a second,"
                    f" {spent_s / number * 1e6:6.0f} us of processor time each,"
                    f" {spent_s / wall_s:.2f} cores at work",
                    flush=True,
                )


if __name__ == "__main__":
    main()
