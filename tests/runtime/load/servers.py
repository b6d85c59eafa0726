"""Servers that do what a test says, on streams in memory: everything happens on the virtual clock."""

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import h11
import trio
from trio.testing import memory_stream_pair

from runtime.load.clients import Clients
from runtime.load.http import Connections, Site
from runtime.load.prompts import Units
from runtime.load.rows import Outcome
from runtime.load.server import TargetServer
from sim.trace.record import TraceRequest

SITE = Site.of("http://server:8000")


class Asked:
    """One request as the server sees it, and the means to answer."""

    def __init__(self, path: str, body: Any, headers: dict[str, str], stream: trio.abc.Stream) -> None:
        self.path, self.body, self.headers, self._stream = path, body, headers, stream

    async def write(self, data: bytes) -> None:
        await self._stream.send_all(data)

    async def answer(self, status: int, body: object, **headers: str) -> None:
        """A whole answer; text is sent as it is."""
        text = (body if isinstance(body, str) else json.dumps(body)).encode()
        lines = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
        head = f"HTTP/1.1 {status} X\r\nContent-Type: application/json\r\nContent-Length: {len(text)}\r\n"
        await self.write(f"{head}{lines}\r\n".encode() + text)

    async def begin(self) -> None:
        await self.write(
            b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
        )

    async def event(self, body: object) -> None:
        text = body if isinstance(body, str) else json.dumps(body)
        data = f"data: {text}\n\n".encode()
        await self.write(b"%x\r\n%b\r\n" % (len(data), data))

    async def token(self, reason: str | None = None) -> None:
        await self.event({"choices": [{"index": 0, "text": "a", "finish_reason": reason}]})

    async def end(self, num_prompt_tokens: int, num_tokens: int) -> None:
        usage = {"prompt_tokens": num_prompt_tokens, "completion_tokens": num_tokens}
        await self.event({"choices": [], "usage": usage})
        await self.event("[DONE]")
        await self.write(b"0\r\n\r\n")

    async def tokens(self, first_s: float, gap_s: float = 0.0) -> None:
        """A whole streamed answer of the length that was asked for."""
        await trio.sleep(first_s)
        await self.begin()
        count = self.body["max_tokens"]
        for index in range(count):
            await self.token("length" if index == count - 1 else None)
            if index < count - 1:
                await trio.sleep(gap_s)
        await self.end(len(self.body["prompt"]), count)


Script = Callable[[Asked], Awaitable[None]]


async def serve(stream: trio.abc.Stream, script: Script) -> None:
    """Answer request after request; a script that returns early has closed the connection."""
    async with stream:
        http = h11.Connection(h11.SERVER)
        while True:
            event = http.next_event()
            if event is h11.NEED_DATA:
                data = await stream.receive_some()
                if not data:
                    return
                http.receive_data(bytes(data))
            elif isinstance(event, h11.Request):
                head, body = event, b""
            elif isinstance(event, h11.Data):
                body += event.data
            elif isinstance(event, h11.EndOfMessage):
                headers = {name.decode(): value.decode() for name, value in head.headers}
                asked = Asked(head.target.decode(), json.loads(body) if body else None, headers, stream)
                try:
                    await script(asked)
                except (trio.BrokenResourceError, ConnectionAbortedError):
                    return
                http = h11.Connection(h11.SERVER)
            else:
                return


@asynccontextmanager
async def scripted(script: Script) -> AsyncIterator[Connections]:
    """Connections to a server that follows the script."""
    async with trio.open_nursery() as nursery:

        async def connect(_site: Site) -> trio.abc.Stream:
            ours, theirs = memory_stream_pair()
            nursery.start_soon(serve, theirs, script)
            return ours

        yield Connections(SITE, connect=connect)
        nursery.cancel_scope.cancel()


class Notes:
    """A listener that keeps what it is told."""

    def __init__(self) -> None:
        self.due_ids: list[str] = []
        self.outcomes: dict[str, Outcome] = {}

    def due(self, row: TraceRequest, outcome: Outcome) -> None:
        self.due_ids.append(row.request_id)

    def ended(self, row: TraceRequest, outcome: Outcome) -> None:
        self.outcomes[row.request_id] = outcome


def clients(
    connections: Connections, notes: Notes, num_clients: int | None = None, timeout_s: float | None = None
) -> Clients[TraceRequest]:
    """Clients that ask for completions of token ids."""
    server = TargetServer(connections, "m", "completions", {}, Units(ids=range(100)))
    return Clients(server, notes, salt="s", num_clients=num_clients, timeout_s=timeout_s)


async def played(
    script: Script, rows: list[TraceRequest], num_clients: int | None = None, timeout_s: float | None = None
) -> Notes:
    """What clients saw of these requests."""
    notes = Notes()
    async with scripted(script) as connections:
        await clients(connections, notes, num_clients, timeout_s).play(rows)
    return notes
