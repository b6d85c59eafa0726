"""HTTP/1.0 and 1.1 on one connection: heads and chunks are read by llhttp, in its strict mode.

Laws beyond llhttp's: a head has at most `max_head_bytes`; HTTP/1.1 needs one Host; `Transfer-Encoding` is
`chunked` and nothing else; a version that is not 1.0 or 1.1 is a 505. A refusal ends the connection. Requests
are answered one at a time: what a client sends early is kept unparsed, up to MOST_EARLY_BYTES. A client that
leaves cancels the app's task; ASGI's `http.disconnect` is never sent.
"""

import logging
from collections.abc import Callable

import httptools
import trio

from actors.http.exchange import BODILESS, BODY, AsgiApp, Event, Headers, RequestBody, http_date, scope_of
from actors.http.streams import LAST_CHUNK, Feed, StreamedBody, WritePass, chunk_of
from actors.http.transport import MOST_RECEIVED, OpenConnections, Transport

log = logging.getLogger("sundog.api")

HEAD_END = b"\r\n\r\n"
LINE_ENDS = b"\r\n"
WRONG_VERSION = "Invalid HTTP version"
"""llhttp's words for a version of HTTP that does not exist."""
MOST_EARLY_BYTES = MOST_RECEIVED
FEED = "sundog.feed"
"""ASGI extension: a coroutine function that writes a Feed as the rest of the answer."""
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


class Message:
    """A request as llhttp reads it."""

    def __init__(self) -> None:
        self.target = b""
        self.headers: Headers = []
        self.has_head = self.is_whole = self.keeps_connection = False
        self.pieces: list[bytes] = []
        self.parser = httptools.HttpRequestParser(self)

    def on_url(self, target: bytes) -> None:
        self.target += target

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self.has_head:  # trailers are dropped
            self.headers.append((name.lower(), value.strip(b" \t")))

    def on_headers_complete(self) -> None:
        self.has_head = True
        self.keeps_connection = self.version == "1.1" and bool(self.parser.should_keep_alive())

    def on_body(self, piece: bytes) -> None:
        self.pieces.append(bytes(piece))

    def on_message_complete(self) -> None:
        self.is_whole = True

    def feed(self, data: bytes) -> int:
        """Parse the next bytes; returns the status of the refusal, 0 if there is none."""
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            pass  # the request is answered as if it had not asked for another protocol
        except httptools.HttpParserError as error:
            return 505 if str(error) == WRONG_VERSION else 400
        return 0

    def values(self, name: bytes) -> list[bytes]:
        """Return the values of all headers of this name."""
        return [value.lower() for key, value in self.headers if key == name]

    def read_head(self, head: bytes) -> int:
        """Parse a whole head; returns the status with which it is refused, 0 if it is sound."""
        if status := self.feed(head):
            return status
        version = self.version
        line = b"%b %b HTTP/" % (self.parser.get_method(), self.target)
        if not self.has_head or not head.startswith(line):
            return 400
        if version not in ("1.0", "1.1"):
            return 505
        num_hosts = len(self.values(b"host"))
        if num_hosts > 1 or (version == "1.1" and not num_hosts):
            return 400
        if coding := self.values(b"transfer-encoding"):
            if version == "1.0":
                return 400
            if coding != [b"chunked"]:
                return 501
        if self.parser.get_method() == b"CONNECT":
            return 405
        return 403 if b"websocket" in self.values(b"upgrade") else 0

    @property
    def version(self) -> str:
        return str(self.parser.get_http_version())


class Http1Connection:
    """The requests of one connection, one after the other."""

    def __init__(
        self,
        transport: Transport,
        connections: OpenConnections,
        writes: WritePass,
        head_s: float,
        max_head_bytes: int,
    ) -> None:
        self.transport, self.connections, self.writes = transport, connections, writes
        self._head_s, self._max_head_bytes = head_s, max_head_bytes
        self._early = b""
        """The bytes that have been read and not been parsed."""

    async def run(self, begin: "Callable[[Exchange], None]") -> None:
        """Have requests begun until either side has had enough."""
        exchange: Exchange | None = None
        try:
            while (message := await self._next_message()) is not None:
                self.connections.has_request(self.transport)
                exchange = Exchange(self, message)
                begin(exchange)
                if not await self._read_body(exchange, message) or not await self._may_go_on(exchange):
                    return
        finally:
            if exchange is not None:
                exchange.leave()

    async def _next_message(self) -> Message | None:
        """Return the next request but for its body; None if there is none, or it is refused."""
        head = await self._read_head()
        if head is None:
            return None
        message = Message()
        if status := message.read_head(head):
            await self._refuse(status)
            return None
        return message

    async def _read_head(self) -> bytes | None:
        """Read up to the end of a head; None if the client has left, or was refused."""
        data, num_searched = bytearray(self._early.lstrip(LINE_ENDS)), 0
        while (end := data.find(HEAD_END, max(0, num_searched - len(HEAD_END)))) < 0:
            if len(data) > self._max_head_bytes:
                break
            if data and not num_searched:
                self.transport.end_in(self._head_s)
            num_searched = len(data)
            received = await self.transport.receive()
            if not received:
                return None
            data += received if data else received.lstrip(LINE_ENDS)
        end += len(HEAD_END)
        if end > self._max_head_bytes or end < len(HEAD_END):
            await self._refuse(431)
            return None
        self._early = bytes(data[end:])
        return bytes(data[:end])

    async def _read_body(self, exchange: "Exchange", message: Message) -> bool:
        """Hand the request's body over as it comes; False if the client has left or was refused."""
        lengths = message.values(b"content-length")
        num_left = int(lengths[0]) if lengths else 0
        num_framing, last = 0, b""
        while num_left or not (message.is_whole or lengths):
            data = self._early or await self.transport.receive()
            if not data:
                return False
            if lengths:
                piece, self._early = data[:num_left], data[num_left:]
                num_left -= len(piece)
                exchange.body.put(piece)
            else:
                # A message ends with an empty line, wherever the pieces that it comes in are cut.
                end = (last + data).find(HEAD_END) + len(HEAD_END) - len(last)
                part, self._early = (data[:end], data[end:]) if end > 0 else (data, b"")
                last = (last + part)[-3:]
                status = message.feed(part)
                num_framing = 0 if message.pieces else num_framing + len(part)
                if status or num_framing > self._max_head_bytes:
                    await exchange.refuse(status or 431)
                    return False
                exchange.body.put(b"".join(message.pieces))
                message.pieces.clear()
            await exchange.body.until_room()
        exchange.body.put(b"", is_last=True)
        return True

    async def _may_go_on(self, exchange: "Exchange") -> bool:
        """Wait until the answer is over and perhaps the next request comes; False if none may follow."""
        while not exchange.is_over:
            if self._early:  # or else the next bytes come after the answer
                with trio.CancelScope() as exchange.until_over:
                    if len(self._early) >= MOST_EARLY_BYTES:
                        await trio.sleep_forever()
                    received = await self.transport.receive()
                if exchange.until_over.cancelled_caught:
                    break
            else:
                received = await self.transport.receive()
            if not received:
                return False
            self._early += received
        return exchange.keeps_connection

    async def _refuse(self, status: int) -> None:
        await self.transport.write(_refusal(status))


class Exchange:
    """A request and its answer: `run` has the app answer it, `leave` ends it when its client has left."""

    def __init__(self, connection: Http1Connection, message: Message) -> None:
        transport, version = connection.transport, message.version
        method = message.parser.get_method().decode("ascii")
        self.scope = scope_of(transport, version, method, message.target, message.headers)
        self.body = self.scope["state"][BODY] = RequestBody()
        self.cancel_scope = trio.CancelScope()
        self.has_begun = False
        """True once the head of the answer was sent."""
        self.is_over = False
        """True once the answer was sent, or its client has left."""
        self._is_read = False
        self._connection = connection
        self._expects = version == "1.1" and b"100-continue" in message.values(b"expect")
        self.keeps_connection = message.keeps_connection
        self._has_body = method != "HEAD"
        self._has_length = self._is_chunked = False
        self._to_send = 0
        """Bytes of the announced length that have not been sent."""
        self._held = b""
        """The head of an answer whose length is known: it leaves with the body."""
        self.until_over = trio.CancelScope()
        if transport.is_plain and version == "1.1" and self._has_body:
            self.scope["extensions"][FEED] = self._send_feed

    async def run(self, app: AsgiApp) -> None:
        """Run the app until it has answered, or the client has left; never raises an Exception."""
        if self.is_over:
            return
        try:
            with self.cancel_scope:
                await app(self.scope, self.receive, self.send)
        except Exception:
            log.exception("a request failed outside of its handler")
        if not self.is_over:
            await self._give_up()

    async def receive(self) -> Event:
        """ASGI's `receive`: the next piece of the body. After the last one it only waits."""
        if self._expects and not self.body.is_whole and not self.has_begun:
            self._expects = False
            await self._connection.transport.write(CONTINUE)
        if self._is_read:
            await trio.sleep_forever()
        data, is_more = await self.body.read()
        self._is_read = not is_more
        return {"type": "http.request", "body": data, "more_body": is_more}

    async def send(self, event: Event) -> None:
        """ASGI's `send`: the head of the answer or a piece of its body."""
        if self.is_over:
            return
        write = self._connection.transport.write
        if event["type"] == "http.response.start":
            self._held = self._head(event["status"], event["headers"])
            self.has_begun = True
            if not self._has_length:
                head, self._held = self._held, b""
                await write(head)
            return
        data, is_more = event.get("body", b""), event.get("more_body", False)
        self._to_send -= len(data)
        if not self._has_body:
            data = b""
        elif self._is_chunked:
            data = (chunk_of(data) if data else b"") + (b"" if is_more else LAST_CHUNK)
        if data or not is_more:
            data, self._held = self._held + data, b""
            await write(data)
        if not is_more and not self.is_over:
            self._end(may_go_on=self._is_chunked or self._to_send == 0 or not self._has_body)

    async def _send_feed(self, feed: Feed) -> None:
        """Write a feed as the rest of the answer, whose head has been sent."""
        await StreamedBody(self._connection.transport, self._connection.writes, feed).run()
        if not self.is_over:
            self._end(may_go_on=True)

    async def _give_up(self) -> None:
        """End an answer that the app has not finished."""
        if self.has_begun:
            self._end(may_go_on=False)
        else:
            await self.refuse(500)

    async def refuse(self, status: int) -> None:
        """Answer with a status alone, if nothing was sent, and end the connection."""
        has_begun = self.has_begun
        self.leave()
        if not has_begun:
            await self._connection.transport.write(_refusal(status))
        self._connection.transport.scope.cancel()

    def leave(self) -> None:
        """Cancel the app, whose client has left; harmless once the answer is over."""
        if not self.is_over:
            self.is_over = True
            self.cancel_scope.cancel()

    def _end(self, *, may_go_on: bool) -> None:
        """Note that the answer is over: the connection has its next request, or ends."""
        self.is_over = True
        self.keeps_connection = self.keeps_connection and may_go_on and self.body.is_whole
        if self.keeps_connection:
            self._connection.connections.is_idle(self._connection.transport)
            self.until_over.cancel()
        else:
            self._connection.transport.scope.cancel()

    def _head(self, status: int, headers: Headers) -> bytes:
        """Return the head of an answer; raises ValueError for headers that would break it."""
        self.keeps_connection = self.keeps_connection and not self._connection.connections.is_stopping
        self._has_length = status in BODILESS
        lines = [b"HTTP/1.1 %d \r\n" % status]
        for name, value in headers:
            if name == b"content-length":
                self._has_length, self._to_send = True, int(value)
            lines.append(b"%b: %b\r\n" % (name, value.strip()))
        lines.append(b"date: %b\r\n" % http_date())
        if not self._has_length and self.scope["http_version"] == "1.1":
            self._is_chunked = True
            lines.append(b"Transfer-Encoding: chunked\r\n")
        self.keeps_connection = self.keeps_connection and (self._has_length or self._is_chunked)
        if not self.keeps_connection:
            lines.append(b"Connection: close\r\n")
        if any(b"\r" in line[:-2] or b"\n" in line[:-2] for line in lines):
            raise ValueError(f"a header has a line break: {lines}")
        return b"".join((*lines, LINE_ENDS))


def _refusal(status: int) -> bytes:
    """Return an answer without a body, after which the connection ends."""
    head = b"HTTP/1.1 %d \r\ncontent-length: 0\r\nconnection: close\r\ndate: %b\r\n\r\n"
    return head % (status, http_date())
