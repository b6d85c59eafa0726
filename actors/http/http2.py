"""HTTP/2 on one connection, by the library h2: its streams are answered side by side.

Laws: an answer whose reader takes nothing for `stalled_answer_s` is reset, and the connection goes on. What
breaks the rules of HTTP/2 ends its connection alone.
"""

import logging
from contextlib import suppress
from typing import Any

import h2.config
import h2.connection
import h2.errors
import h2.events
import h2.exceptions
import h2.settings
import trio

from actors.http.exchange import BODILESS, Begin, Event, Exchange, http_date, scope_of
from actors.http.transport import OpenConnections, Transport

log = logging.getLogger("sundog.api")

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
MOST_STREAMS = 100


class Http2Connection:
    """The streams of one connection."""

    def __init__(
        self, transport: Transport, connections: OpenConnections, stalled_answer_s: float, max_head_bytes: int
    ) -> None:
        self.transport, self.connections = transport, connections
        self.stalled_answer_s = stalled_answer_s
        self.http = h2.connection.H2Connection(
            h2.config.H2Configuration(client_side=False, header_encoding=None)
        )
        codes = h2.settings.SettingCodes
        limits = {codes.MAX_CONCURRENT_STREAMS: MOST_STREAMS, codes.MAX_HEADER_LIST_SIZE: max_head_bytes}
        self.http.local_settings = h2.settings.Settings(client=False, initial_values=limits)
        self._exchanges: dict[int, Http2Exchange] = {}
        self._has_data, self._is_written = trio.Event(), trio.Event()

    async def run(self, data: bytes, begin: Begin) -> None:
        """Have requests begun until either side has had enough; `data` has been read already."""
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._write)
                self.http.initiate_connection()
                await self._read(data, begin)
                nursery.cancel_scope.cancel()
        finally:
            for exchange in self._exchanges.values():
                exchange.leave()

    async def _read(self, data: bytes, begin: Begin) -> None:
        while True:
            try:
                for event in self.http.receive_data(data):
                    self._handle(event, begin)
            except (h2.exceptions.ProtocolError, ValueError):
                log.info("a client broke the rules of HTTP/2, and its connection is closed")
                await self.flushed()
                return
            self._has_data.set()
            data = await self.transport.receive()
            if not data:
                return

    async def _write(self) -> None:
        """Write what h2 has to say: in a task of its own, so that no stream's end cuts a frame in two."""
        while True:
            await self._has_data.wait()
            self._has_data = trio.Event()
            while data := self.http.data_to_send():
                await self.transport.write(data)
            self._is_written.set()
            self._is_written = trio.Event()

    async def flushed(self) -> None:
        """Return when all that h2 has to say has been written."""
        self._has_data.set()
        await self._is_written.wait()

    def _handle(self, event: h2.events.Event, begin: Begin) -> None:
        """Handle one event; raises ValueError for a path that is no text."""
        if isinstance(event, h2.events.RequestReceived):
            self._begin(event, begin)
        elif isinstance(event, h2.events.WindowUpdated | h2.events.RemoteSettingsChanged):
            for exchange in self._exchanges.values():
                exchange.look_again()
        elif isinstance(event, h2.events.ConnectionTerminated):
            self.transport.scope.cancel()
        elif isinstance(event, h2.events.DataReceived | h2.events.StreamEnded | h2.events.StreamReset):
            found = self._exchanges.get(event.stream_id or 0)
            if isinstance(event, h2.events.DataReceived):
                num_bytes = event.flow_controlled_length or 0
                if found is None:
                    self.http.acknowledge_received_data(num_bytes, event.stream_id or 0)
                else:
                    found.num_unread_bytes += num_bytes
                    found.body.put(event.data or b"")
            elif found is not None and isinstance(event, h2.events.StreamEnded):
                found.body.put(b"", is_last=True)
            elif found is not None:
                found.leave()
                self.forget(found)

    def _begin(self, event: h2.events.RequestReceived, begin: Begin) -> None:
        assert event.stream_id is not None and event.headers is not None
        pseudo = {name: value for name, value in event.headers if name.startswith(b":")}
        target = pseudo.get(b":path")
        if target is None or self.connections.is_stopping:
            self.http.reset_stream(event.stream_id, h2.errors.ErrorCodes.REFUSED_STREAM)
            return
        headers = [(name, value) for name, value in event.headers if not name.startswith(b":")]
        if b":authority" in pseudo:
            headers.insert(0, (b"host", pseudo[b":authority"]))
        method = pseudo[b":method"].decode("ascii").upper()
        scope = scope_of(self.transport, "2", method, target, headers)
        exchange = self._exchanges[event.stream_id] = Http2Exchange(self, event.stream_id, scope)
        self.connections.has_request(self.transport)
        begin(exchange)

    async def end(self, exchange: "Http2Exchange") -> None:
        """Write the end of an answer, and of the connection if the server stops and this was the last."""
        if exchange.num_unread_bytes:
            self.http.acknowledge_received_data(exchange.num_unread_bytes, exchange.number)
        if self.connections.is_stopping and len(self._exchanges) == 1:
            self.http.close_connection()
        await self.flushed()
        self.forget(exchange)

    def forget(self, exchange: "Http2Exchange") -> None:
        """Drop a request that is over; without any the connection is idle."""
        if self._exchanges.pop(exchange.number, None) is not None and not self._exchanges:
            self.connections.is_idle(self.transport)


class Http2Exchange(Exchange):
    """A stream of a connection: a request, and its answer as far as its reader's window lets it."""

    def __init__(self, connection: Http2Connection, number: int, scope: dict[str, Any]) -> None:
        super().__init__(scope)
        self._connection, self.number = connection, number
        self._has_body = scope["method"] != "HEAD"
        self._window_may_be_open = trio.Event()
        self.num_unread_bytes = 0
        """Bytes of the request's body that its sender still counts against its window."""

    def look_again(self) -> None:
        """Note that the window of the answer may be open."""
        self._window_may_be_open.set()

    async def receive(self) -> Event:
        event = await super().receive()
        if self.num_unread_bytes and not self.is_over:
            self._connection.http.acknowledge_received_data(self.num_unread_bytes, self.number)
            self.num_unread_bytes = 0
            await self._connection.flushed()
        return event

    async def send(self, event: Event) -> None:
        if self.is_over:
            return
        try:
            await self._send(event)
        except h2.exceptions.ProtocolError:  # the stream or its connection has ended
            self.leave()
            self._connection.forget(self)

    async def _send(self, event: Event) -> None:
        http = self._connection.http
        if event["type"] == "http.response.start":
            self.has_begun = True
            self._has_body = self._has_body and event["status"] not in BODILESS
            date = (b"date", http_date())
            http.send_headers(self.number, [(b":status", b"%d" % event["status"]), *event["headers"], date])
            if not any(name == b"content-length" for name, _ in event["headers"]):
                await self._connection.flushed()
            return
        if self._has_body:
            await self._send_data(event.get("body", b""))
        if not event.get("more_body", False) and not self.is_over:
            http.end_stream(self.number)
            if not self.body.is_whole:
                http.reset_stream(self.number, h2.errors.ErrorCodes.NO_ERROR)
            self.is_over = True
            await self._connection.end(self)

    async def _send_data(self, data: bytes) -> None:
        """Write data as its reader takes it; resets the stream if it takes nothing for too long."""
        http = self._connection.http
        while data:
            window = min(http.local_flow_control_window(self.number), http.max_outbound_frame_size)
            if window > 0:
                http.send_data(self.number, data[:window])
                data = data[window:]
                await self._connection.flushed()
                continue
            self._window_may_be_open = trio.Event()
            with trio.move_on_after(self._connection.stalled_answer_s) as waiting:
                await self._window_may_be_open.wait()
            if waiting.cancelled_caught:
                log.info("a client stopped reading an answer over HTTP/2; it is reset")
                await self.give_up()
                return

    async def give_up(self) -> None:
        http, status = self._connection.http, [(b":status", b"500"), (b"content-length", b"0")]
        with suppress(h2.exceptions.ProtocolError):  # it has ended already
            if self.has_begun:
                http.reset_stream(self.number, h2.errors.ErrorCodes.CANCEL)
            else:
                http.send_headers(self.number, status, end_stream=True)
        await self._connection.end(self)
        self.leave()
