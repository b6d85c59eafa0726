"""What the HTTP surface costs per streamed token, with and without the direct write.

    python tests/bench/bench_http.py [--streams 64] [--tokens 128] [--rounds 20]

A server in a child process answers from an engine that costs nothing; this process reads raw
sockets and counts events. Prints one JSON line per way of writing.
"""

import argparse
import json
import selectors
import socket
import subprocess
import sys
import time
from pathlib import Path

BODY = b'{"prompt": "x", "stream": true, "max_tokens": %d}'


def serve(write: str) -> None:
    """The child: print the port, serve until killed."""
    import trio
    from hypercorn.trio.tcp_server import TCPServer

    from actors.api import ServedModel, create_app, serve_http
    from actors.api.edge.tcp_connection import TcpConnection
    from actors.messages import Accepted, Cancel, Generate
    from actors.stream import Delta, DeltaStream

    class Ready(DeltaStream):
        """Has the next token whenever it is asked."""

        def __init__(self, num_tokens: int) -> None:
            super().__init__()
            self.num_left = num_tokens

        async def __anext__(self) -> Delta:
            await trio.lowlevel.checkpoint()
            self.num_left -= 1
            return Delta(" token", (1,), 1, None if self.num_left else "length")

    class Engine:
        async def ask(self, message: Generate) -> Accepted:
            assert message.request_id is not None and message.sampling.max_tokens is not None
            return Accepted(message.request_id, 1, (Ready(message.sampling.max_tokens),))

        def tell(self, message: Cancel) -> None:
            pass

    if write == "hypercorn":
        TcpConnection.protocol_send = TCPServer.protocol_send  # type: ignore[method-assign]

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            app = create_app(Engine(), ServedModel("bench", 4096, 0))

            async def run(*, task_status: trio.TaskStatus[int]) -> None:
                await serve_http(
                    app, host="127.0.0.1", port=0, shutdown=trio.sleep_forever, task_status=task_status
                )

            print(await nursery.start(run), flush=True)

    trio.run(main)


def read_streams(port: int, num_streams: int, num_tokens: int) -> tuple[int, float]:
    """Ask for all streams at once; the number of events and the seconds until the last ended."""
    body = BODY % num_tokens
    head = (
        b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Type: application/json\r\n"
    )
    request = head + b"Content-Length: %d\r\n\r\n" % len(body) + body
    selector = selectors.DefaultSelector()
    clients = [socket.create_connection(("127.0.0.1", port)) for _ in range(num_streams)]
    begin_s = time.perf_counter()
    for client in clients:
        client.sendall(request)
        selector.register(client, selectors.EVENT_READ)
    num_events = 0
    while selector.get_map():
        for key, _ in selector.select():
            data = key.fileobj.recv(1 << 16)  # type: ignore[union-attr]
            num_events += data.count(b"data: {")
            if not data:
                selector.unregister(key.fileobj)
                key.fileobj.close()  # type: ignore[union-attr]
    return num_events, time.perf_counter() - begin_s


def measure(write: str, num_streams: int, num_tokens: int, num_rounds: int) -> dict[str, object]:
    """Tokens per second of one way of writing: the median of the rounds after one to warm up."""
    root = Path(__file__).resolve().parents[2]
    command = [sys.executable, __file__, "--serve", write]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, cwd=root, env={"PYTHONPATH": str(root)})
    try:
        assert child.stdout is not None
        port = int(child.stdout.readline())
        rates = []
        for _ in range(num_rounds + 1):
            num_events, seconds = read_streams(port, num_streams, num_tokens)
            assert num_events == num_streams * num_tokens, num_events
            rates.append(num_events / seconds)
    finally:
        child.kill()
        child.wait()
    rate = sorted(rates[1:])[num_rounds // 2]
    return {
        "write": write,
        "streams": num_streams,
        "tokens_per_s": round(rate),
        "us_per_token": round(1e6 / rate, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--serve", choices=["direct", "hypercorn"])
    options = parser.parse_args()
    if options.serve:
        serve(options.serve)
        return
    for write in ("direct", "hypercorn"):
        print(json.dumps(measure(write, options.streams, options.tokens, options.rounds)))


if __name__ == "__main__":
    main()
