"""HTTP/1.1 on Trio's streams by h11: a quarter of what a streamed token costs with httpx.

`python -m tests.bench client` measures both. Connections are kept, and lent to one request at a time.
"""

import select
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import NamedTuple
from urllib.parse import urlsplit

import h11
import trio

from actors.config import ConfigError

CHUNK_BYTES = 1 << 16


class RequestFailed(Exception):
    """A request that got no whole answer; `kind` is one of few, and counted."""

    def __init__(self, kind: str, reason: str = "") -> None:
        super().__init__(f"{kind}: {reason}" if reason else kind)
        self.kind, self.reason = kind, reason


NO_CONNECTION = "no connection"
CONNECTION_LOST = "connection lost"


class Head(NamedTuple):
    """The head of an answer; names of headers are lower case."""

    status: int
    headers: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Site:
    """The address of a server; `path` stands before every route."""

    host: str
    port: int
    path: str = ""
    tls: ssl.SSLContext | None = None

    @classmethod
    def of(cls, url: str) -> "Site":
        """The parts of a URL, which may end in /v1; raises ConfigError."""
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError as error:
            raise ConfigError(f"{url} is no URL: {error}") from None
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError(f"{url} is no URL of a server: give one like http://127.0.0.1:8000")
        tls = ssl.create_default_context() if parts.scheme == "https" else None
        path = parts.path.rstrip("/").removesuffix("/v1")
        return cls(parts.hostname, port or (443 if tls else 80), path, tls)

    @property
    def authority(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


class Connection:
    """A connection, which has one request at a time."""

    def __init__(self, stream: trio.abc.Stream, site: Site) -> None:
        self._stream, self._site = stream, site
        self._http = h11.Connection(h11.CLIENT)

    async def send(self, method: str, path: str, headers: Mapping[str, str], body: bytes) -> None:
        """Send one request, in one write."""
        lines = {"Host": self._site.authority, "Content-Length": str(len(body)), **headers}
        begin = h11.Request(method=method, target=self._site.path + path, headers=list(lines.items()))
        parts = (begin, h11.Data(data=body), h11.EndOfMessage())
        data = b"".join(self._http.send(part) or b"" for part in parts)
        try:
            await self._stream.send_all(data)
        except (trio.BrokenResourceError, OSError) as error:
            raise RequestFailed(CONNECTION_LOST, str(error)) from None

    async def head(self) -> Head:
        """The beginning of the answer."""
        event = await self._next()
        while isinstance(event, h11.InformationalResponse):
            event = await self._next()
        if not isinstance(event, h11.Response):
            raise RequestFailed(CONNECTION_LOST, "before there was an answer")
        headers = {name.decode(): value.decode("latin-1") for name, value in event.headers}
        return Head(event.status_code, headers)

    async def data(self) -> bytes:
        """The next part of the answer's body; empty at its end."""
        event = await self._next()
        if isinstance(event, h11.Data):
            return bytes(event.data)
        return b""

    async def _next(self) -> h11.Event | type[h11.PAUSED]:
        try:
            while True:
                event = self._http.next_event()
                if event is not h11.NEED_DATA:
                    return event  # type: ignore[return-value]  # h11's own sentinel types
                self._http.receive_data(bytes(await self._stream.receive_some(CHUNK_BYTES)))
        except (trio.BrokenResourceError, OSError) as error:
            raise RequestFailed(CONNECTION_LOST, str(error)) from None
        except h11.RemoteProtocolError as error:
            raise RequestFailed(CONNECTION_LOST, str(error)) from None

    def renew(self) -> bool:
        """Make ready for another request; whether that can be."""
        if self._http.our_state is not h11.DONE or self._http.their_state is not h11.DONE:
            return False
        self._http.start_next_cycle()
        return True

    @property
    def is_open(self) -> bool:
        """True if nothing came, not even an end, since the last answer."""
        stream = self._stream.transport_stream if isinstance(self._stream, trio.SSLStream) else self._stream
        if not isinstance(stream, trio.SocketStream):
            return True
        poll = select.poll()
        poll.register(stream.socket.fileno(), select.POLLIN)
        return not poll.poll(0)

    async def close(self) -> None:
        """Close at once: a server that is not read any more sees its client leave."""
        await trio.aclose_forcefully(self._stream)


async def connect(site: Site) -> trio.abc.Stream:
    """A new connection. Raises Failed."""
    try:
        socket = await trio.open_tcp_stream(site.host, site.port)
    except OSError as error:
        raise RequestFailed(NO_CONNECTION, _why(error)) from None
    if site.tls is None:
        return socket
    stream = trio.SSLStream(socket, site.tls, server_hostname=site.host, https_compatible=True)
    try:
        await stream.do_handshake()
    except (trio.BrokenResourceError, OSError) as error:
        await trio.aclose_forcefully(socket)
        raise RequestFailed(NO_CONNECTION, str(error.__cause__ or error)) from None
    return stream


KEPT_S = 3.0
"""The seconds for which an idle connection is used again: uvicorn, vLLM's server, closes one after 5 s, when
perhaps the next request is on its way."""


@dataclass(slots=True)
class Connections:
    """Connections to one server, kept between requests; `headers` go with each request."""

    site: Site
    headers: Mapping[str, str] = field(default_factory=dict)
    connect: Callable[[Site], Awaitable[trio.abc.Stream]] = connect
    _idle: list[tuple[float, Connection]] = field(default_factory=list)
    """The idle connections, each with the time at which it came back."""

    @asynccontextmanager
    async def lend(self) -> AsyncIterator[Connection]:
        """A connection for one request; kept if its answer was read to the end. Raises Failed."""
        connection = await self._take()
        is_kept = False
        try:
            yield connection
            is_kept = connection.renew()
        finally:
            if is_kept:
                self._idle.append((trio.current_time(), connection))
            else:
                await connection.close()

    async def _take(self) -> Connection:
        while self._idle:
            since_s, connection = self._idle.pop()
            if connection.is_open and trio.current_time() - since_s < KEPT_S:
                return connection
            await connection.close()
        return Connection(await self.connect(self.site), self.site)

    async def ask(self, method: str, path: str, body: bytes = b"") -> tuple[Head, bytes]:
        """Send one request, and return its whole answer. Raises Failed."""
        async with self.lend() as connection:
            await connection.send(method, path, self.typed if body else self.headers, body)
            head, parts = await connection.head(), []
            while part := await connection.data():
                parts.append(part)
            return head, b"".join(parts)

    @property
    def typed(self) -> Mapping[str, str]:
        """The headers of a request with a body."""
        return {**self.headers, "Content-Type": "application/json"}

    async def close(self) -> None:
        """Let all idle connections go."""
        while self._idle:
            await self._idle.pop()[1].close()


def _why(error: OSError) -> str:
    """Return one reason, also where several addresses were tried."""
    cause: BaseException = error
    while isinstance(cause, OSError) and cause.errno is None and cause.__cause__ is not None:
        cause = cause.__cause__
    if isinstance(cause, BaseExceptionGroup):
        cause = cause.exceptions[0]
    return (isinstance(cause, OSError) and cause.strerror) or str(cause)
