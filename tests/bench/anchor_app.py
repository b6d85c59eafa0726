"""Streams of tokens by a web framework alone, with no engine behind it: an anchor of `bench door`.

    python tests/bench/anchor_app.py quart|fastapi STEP_S

Every STEP_S each open stream has a token, all at once, as a batch gives them; a chunk is a dictionary through
`json.dumps`. Prints its URL, or one line that says what is not installed. Runs in any Python that has the
framework, and imports nothing of this project.
"""

import json
import socket
import sys
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

HEAD = {"id": "cmpl-0123456789abcdef", "object": "text_completion", "created": int(time.time()), "model": "x"}


def chunk(text: str, finish_reason: str | None) -> bytes:
    choice = {"index": 0, "text": text, "logprobs": None, "finish_reason": finish_reason}
    return f"data: {json.dumps({**HEAD, 'choices': [choice]}, separators=(',', ':'))}\n\n".encode()


class Batch:
    """Who is told that a step has ended."""

    def __init__(self) -> None:
        self.streams: dict[int, Callable[[str], None]] = {}

    def step(self) -> None:
        for put in tuple(self.streams.values()):
            put(" token")


async def events(batch: Batch, num_tokens: int, put: Any, get: Any) -> AsyncIterator[bytes]:
    """One answer."""
    batch.streams[id(put)] = put
    try:
        for left in range(num_tokens - 1, -1, -1):
            yield chunk(await get(), None if left else "length")
    finally:
        del batch.streams[id(put)]
    yield b"data: [DONE]\n\n"


def listening() -> socket.socket:
    return socket.create_server(("127.0.0.1", 0), backlog=2048)


def say(listener: socket.socket) -> None:
    print(f"http://127.0.0.1:{listener.getsockname()[1]}", flush=True)


def serve_quart(step_s: float) -> None:
    import trio
    from hypercorn.config import Config
    from hypercorn.trio import serve
    from quart import Response, request
    from quart_trio import QuartTrio

    app, batch = QuartTrio(__name__), Batch()

    @app.post("/v1/completions")
    async def completions() -> Response:
        asked = await request.get_json()
        send, receive = trio.open_memory_channel[str](1000)
        body = events(batch, asked["max_tokens"], send.send_nowait, receive.receive)
        response = Response(body, content_type="text/event-stream")
        response.timeout = None
        return response

    async def main() -> None:
        listener = listening()
        config = Config()
        config.bind, config.accesslog, config.errorlog = [f"fd://{listener.fileno()}"], None, None
        config.keep_alive_timeout, config.backlog = 75, 2048  # as Sundog's
        async with trio.open_nursery() as nursery:
            nursery.start_soon(serve, app, config)
            say(listener)
            due_s = trio.current_time()
            while True:
                due_s = max(due_s + step_s, trio.current_time())
                await trio.sleep_until(due_s)
                batch.step()

    trio.run(main)


def serve_fastapi(step_s: float) -> None:
    import asyncio
    import importlib

    uvicorn, fastapi = importlib.import_module("uvicorn"), importlib.import_module("fastapi")
    streaming = importlib.import_module("fastapi.responses").StreamingResponse
    for name in ("uvloop", "httptools"):
        importlib.import_module(name)
    app, batch = fastapi.FastAPI(), Batch()

    async def completions(asked: dict[str, Any]) -> Any:
        queue = asyncio.Queue[str]()
        body = events(batch, asked["max_tokens"], queue.put_nowait, queue.get)
        return streaming(body, media_type="text/event-stream")

    app.post("/v1/completions")(completions)

    async def steps() -> None:
        loop = asyncio.get_running_loop()
        due_s = loop.time()
        while True:
            due_s = max(due_s + step_s, loop.time())
            await asyncio.sleep(due_s - loop.time())
            batch.step()

    async def main() -> None:
        listener = listening()
        config = uvicorn.Config(
            app, http="httptools", access_log=False, log_level="warning", timeout_keep_alive=75
        )
        stepping = asyncio.create_task(steps())
        say(listener)
        await uvicorn.Server(config).serve(sockets=[listener])
        stepping.cancel()

    importlib.import_module("uvloop").run(main())


if __name__ == "__main__":
    try:
        {"quart": serve_quart, "fastapi": serve_fastapi}[sys.argv[1]](float(sys.argv[2]))
    except ModuleNotFoundError as missing:
        print(f"{missing.name} is not installed here", flush=True)
