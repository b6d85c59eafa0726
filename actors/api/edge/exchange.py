"""One plain request and its answer over HTTP/1.1, past h11 and Hypercorn: a sixth of what a request costs.

Law: the bytes are those that Hypercorn would have written; `plain_head` says which requests come here. The
head of an answer whose length is known goes out with its body, that of a stream at once.
"""

import time
from collections.abc import Iterable
from typing import Protocol
from urllib.parse import unquote
from wsgiref.handlers import format_date_time

from hypercorn.typing import ASGISendEvent, ConnectionState, HTTPRequestEvent, HTTPScope

from actors.api.edge.inbox import Inbox
from actors.api.edge.plain_head import Head

BODILESS = (204, 304)
BEGAN = "sundog.began"
"""What the scope's state calls the instant at which a request's head was read, by `time.perf_counter`."""


Address = tuple[str, int] | None


class Connection(Protocol):
    """What an answer is written to."""

    async def write(self, data: bytes) -> None:
        """Write all, however long it takes; a connection that has ended takes everything."""
        ...

    def hold(self, data: bytes) -> None:
        """Write it together with what is written next."""
        ...

    async def exchanged(self, *, may_go_on: bool) -> None:
        """The answer is over; the connection has another, or ends."""
        ...


class Dates:
    """The header that says when an answer was made, spelled once a second."""

    __slots__ = ("_line", "_second")

    def __init__(self) -> None:
        self._second, self._line = 0, b""

    def line(self) -> bytes:
        """The header of now."""
        now = time.time()
        if int(now) != self._second:
            self._second, self._line = int(now), b"date: %b\r\n" % format_date_time(now).encode("ascii")
        return self._line


class Exchange:
    """One request: `take` its body, and give `send` to the app that answers it."""

    __slots__ = (
        "_connection",
        "_dates",
        "_has_begun",
        "_inbox",
        "_is_chunked",
        "_is_over",
        "_to_come",
        "_to_send",
    )

    def __init__(self, connection: Connection, num_body_bytes: int, inbox: Inbox, dates: Dates) -> None:
        self._connection, self._dates = connection, dates
        self._inbox = inbox
        self._to_come, self._to_send = num_body_bytes, 0
        """Bytes of both bodies."""
        self._has_begun = self._is_over = self._is_chunked = False

    async def take(self, data: bytes) -> bytes:
        """Take what belongs to the request; returns what comes after it."""
        if not self._to_come:
            return data
        piece = data[: self._to_come]
        self._to_come -= len(piece)
        if piece:
            await self._inbox.put(_body(piece, more=bool(self._to_come)))
        return data[len(piece) :]

    async def begin(self) -> None:
        """Say that there is no body, if there is none."""
        if not self._to_come:
            await self._inbox.put(_body(b"", more=False))

    def leave(self) -> None:
        """The client has left: it is told nothing more, and neither what went wrong."""
        self._is_over = True
        self._inbox.close()

    async def send(self, event: ASGISendEvent | None) -> None:
        """ASGI's `send`; None when the app has ended."""
        if self._is_over:
            return
        if event is None:
            self._is_over = True
            if not self._has_begun:
                headers = ((b"content-length", b"0"), (b"connection", b"close"))
                await self._connection.write(self._head(500, headers))
            await self._connection.exchanged(may_go_on=False)
        elif event["type"] == "http.response.start":
            self._has_begun = True
            head = self._head(event["status"], event["headers"])
            if self._is_chunked:
                await self._connection.write(head)
            else:
                self._connection.hold(head)
        elif event["type"] == "http.response.body":
            await self._send_body(event.get("body", b""), more=event.get("more_body", False))
        else:
            raise ValueError(f"no event of an answer: {event['type']}")

    async def _send_body(self, data: bytes, *, more: bool) -> None:
        self._to_send -= len(data)
        if self._is_chunked:
            data = b"%x\r\n%b\r\n" % (len(data), data) if data else b""
            data += b"" if more else b"0\r\n\r\n"
        if data or not more:
            await self._connection.write(data)
        if not more:
            self._is_over = True
            is_whole = self._is_chunked or self._to_send == 0
            await self._connection.exchanged(may_go_on=is_whole and not self._to_come)

    def _head(self, status: int, headers: Iterable[tuple[bytes, bytes]]) -> bytes:
        """The head of an answer; raises ValueError for headers that would break it."""
        lines = [b"HTTP/1.1 %d \r\n" % status]
        self._is_chunked = status not in BODILESS
        for name, value in headers:
            if name == b"content-length":
                self._is_chunked, self._to_send = False, int(value)
            lines.append(b"%b: %b\r\n" % (name, value.strip()))
        lines.append(self._dates.line())
        if self._is_chunked:
            lines.append(b"Transfer-Encoding: chunked\r\n")
        if any(b"\r" in line[:-2] or b"\n" in line[:-2] for line in lines):
            raise ValueError(f"a header has a line break: {lines}")
        return b"".join((*lines, b"\r\n"))


def _body(data: bytes, *, more: bool) -> HTTPRequestEvent:
    return {"type": "http.request", "body": data, "more_body": more}


def scope_of(
    head: Head, client: Address, server: Address, state: ConnectionState, *, is_secure: bool
) -> HTTPScope:
    """ASGI's scope of a request that h11 would have read, as Hypercorn makes it."""
    path, _, query = head.target.partition(b"?")
    return {
        "type": "http",
        "http_version": "1.1",
        "asgi": {"spec_version": "2.1", "version": "3.0"},
        "method": head.method,
        "scheme": "https" if is_secure else "http",
        "path": unquote(path.decode("ascii")),
        "raw_path": path,
        "query_string": query,
        "root_path": "",
        "headers": head.headers,
        "client": client,
        "server": server,
        "state": ConnectionState(state | {BEGAN: time.perf_counter()}),
        "extensions": {},
    }
