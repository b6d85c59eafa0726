"""Scripted servers on in-memory streams, on the virtual clock."""

import json
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpcore
import httpx
import trio
from trio.testing import memory_stream_pair

from sundog.runtime.load.clients import Clients
from sundog.runtime.load.prompts import Units
from sundog.runtime.load.rows import Outcome
from sundog.runtime.load.server import TargetServer
from sundog.runtime.load.server_client import KEPT_S, ServerClient
from sundog.sim.trace.record import TraceRequest

URL = "http://server:8000"


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
    data = b""
    async with stream:
        while True:
            while b"\r\n\r\n" not in data:
                if not (part := await stream.receive_some()):
                    return
                data += part
            head, _, data = data.partition(b"\r\n\r\n")
            first, *lines = head.decode().split("\r\n")
            headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
            size = int(headers.get("content-length", 0))
            while len(data) < size:
                data += await stream.receive_some()
            body, data = data[:size], data[size:]
            asked = Asked(first.split()[1], json.loads(body) if body else None, headers, stream)
            try:
                await script(asked)
            except (trio.BrokenResourceError, ConnectionAbortedError):
                return


Connect = Callable[[], Awaitable[trio.abc.Stream]]
"""How a client connects; raises OSError if it cannot."""


class _Stream(httpcore.AsyncNetworkStream):
    """A stream in memory as httpcore reads and writes one."""

    def __init__(self, stream: trio.abc.Stream) -> None:
        self._stream = stream

    async def read(self, max_bytes: int, **_timeout: Any) -> bytes:
        try:
            return bytes(await self._stream.receive_some(max_bytes))
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            raise httpcore.ReadError(str(error)) from error

    async def write(self, buffer: bytes, **_timeout: Any) -> None:
        try:
            await self._stream.send_all(buffer)
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            raise httpcore.WriteError(str(error)) from error

    async def aclose(self) -> None:
        await self._stream.aclose()


class _InMemory(httpcore.AsyncNetworkBackend):
    """Where all of httpcore's connections lead to a script."""

    def __init__(self, connect: Connect) -> None:
        self.connect = connect

    async def connect_tcp(self, *_args: Any, **_further: Any) -> httpcore.AsyncNetworkStream:
        try:
            return _Stream(await self.connect())
        except OSError as error:
            raise httpcore.ConnectError(str(error)) from error


class _Transport(httpx.AsyncBaseTransport):
    """httpx's way over httpcore's connections, to a network that is passed in."""

    def __init__(self, pool: httpcore.AsyncConnectionPool) -> None:
        self._pool = pool

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        assert isinstance(request.stream, httpx.AsyncByteStream)
        url = httpcore.URL(
            scheme=request.url.raw_scheme,
            host=request.url.raw_host,
            port=request.url.port,
            target=request.url.raw_path,
        )
        try:
            answer = await self._pool.handle_async_request(
                httpcore.Request(
                    request.method,
                    url,
                    headers=request.headers.raw,
                    content=request.stream,
                    extensions=request.extensions,
                )
            )
        except tuple(RAISED) as error:
            raise RAISED[type(error)](str(error)) from error
        assert isinstance(answer.stream, AsyncIterable)
        return httpx.Response(answer.status, headers=answer.headers, stream=_Body(answer.stream))

    async def aclose(self) -> None:
        await self._pool.aclose()


class _Body(httpx.AsyncByteStream):
    def __init__(self, stream: Any) -> None:
        self._stream = stream

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            async for part in self._stream:
                yield part
        except tuple(RAISED) as error:
            raise RAISED[type(error)](str(error)) from error

    async def aclose(self) -> None:
        await self._stream.aclose()


RAISED: dict[type[Exception], type[httpx.TransportError]] = {
    httpcore.ConnectError: httpx.ConnectError,
    httpcore.ReadError: httpx.ReadError,
    httpcore.WriteError: httpx.WriteError,
    httpcore.RemoteProtocolError: httpx.RemoteProtocolError,
}


@dataclass
class Scripted:
    """A client of a script, and how it connects, which a test may change."""

    client: ServerClient
    network: _InMemory


@asynccontextmanager
async def scripted(script: Script, kept_s: float = KEPT_S) -> AsyncIterator[Scripted]:
    """A client of a server that follows the script."""
    async with trio.open_nursery() as nursery:

        async def connect() -> trio.abc.Stream:
            ours, theirs = memory_stream_pair()
            nursery.start_soon(serve, theirs, script)
            return ours

        network = _InMemory(connect)
        pool = httpcore.AsyncConnectionPool(
            max_connections=None, keepalive_expiry=kept_s, network_backend=network
        )
        yield Scripted(ServerClient(URL, transport=_Transport(pool), kept_s=kept_s), network)
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
    client: ServerClient, notes: Notes, num_clients: int | None = None, timeout_s: float | None = None
) -> Clients[TraceRequest]:
    """Clients that ask for completions of token ids."""
    server = TargetServer(client, "m", "completions", {}, Units(ids=range(100)))
    return Clients(server, notes, salt="s", num_clients=num_clients, timeout_s=timeout_s)


async def played(
    script: Script, rows: list[TraceRequest], num_clients: int | None = None, timeout_s: float | None = None
) -> Notes:
    """What clients saw of these requests."""
    notes = Notes()
    async with scripted(script) as server:
        await clients(server.client, notes, num_clients, timeout_s).play(rows)
    return notes
