"""One TCP connection of Hypercorn's, with the cures for clients that do not read, and that leave.

- Hypercorn shields each write from cancellation, so a client that stops reading would hold up
  shutdown for ever. Cure: `abort` closes the socket under the write, and TCP_USER_TIMEOUT, set on
  the listening socket and inherited, ends a connection whose peer takes nothing.
- After the peer has closed, Hypercorn keeps the descriptor until its timer rings. Cure: it starts no more.
- A head that trickles keeps its connection for as long as an idle one has. Cure: a timer of its own.
- A timer of Hypercorn's is a task that begins and is cancelled with each request. Cure: `OpenConnections`
  has those of all connections.
- HTTP/2's answers wait for windows that will never open once the connection has ended, and frames of streams
  that are over are errors of Python. Cure: the buffers are closed, the connection is dropped. Those of a
  client that stalls are reset (`edge.http2`).
- h11 and what is around it are a sixth of a request. Cure: plain requests pass by (`edge.exchange`).
- A connection that fails must not end the server. Cure: it is logged and dropped.

Most writes fit into the socket's buffer, so one non-blocking write is tried before Hypercorn's
lock, cancel scope and checkpoint. Streamed answers are offered to be written past Hypercorn (`edge.direct`).
"""

import logging
import os
from functools import partial

import trio
from hypercorn.config import Config
from hypercorn.events import Closed, Event, RawData, Updated
from hypercorn.protocol.h2 import H2Protocol
from hypercorn.trio.tcp_server import TCPServer
from hypercorn.trio.worker_context import WorkerContext
from hypercorn.typing import AppWrapper, ConnectionState
from hypercorn.utils import parse_socket_addr

from actors.api.edge.admission import Admission
from actors.api.edge.direct import ABORT, DIRECT, Body, WritePass
from actors.api.edge.exchange import Dates, PlainRequests, scope_of, written
from actors.api.edge.http2 import Protocol, handled, reset_stalled
from actors.api.edge.inbox import Inbox, Requests
from actors.api.edge.open_connections import OpenConnections
from actors.api.edge.plain_head import Head

log = logging.getLogger("sundog.api")


class TcpConnection(TCPServer):
    """One accepted socket, kept in `open_connections` while it is served."""

    _task_group: Requests

    def __init__(
        self,
        app: AppWrapper,
        config: Config,
        context: WorkerContext,
        open_connections: OpenConnections,
        writes: WritePass,
        dates: Dates,
        admission: Admission,
        stream: trio.SocketStream | trio.SSLStream[trio.SocketStream],
    ) -> None:
        self._is_plain = not isinstance(stream, trio.SSLStream)
        offers = {ABORT: self.abort} | ({DIRECT: partial(Body, self, writes)} if self._is_plain else {})
        super().__init__(app, config, context, offers, stream)  # type: ignore[arg-type]  # plain too
        self._open_connections = open_connections
        self._dates = dates
        self._task_group = Requests(admission)
        self._plain = PlainRequests()
        self._is_idle, self._head_has_begun = True, False
        self._peer_left = False
        self._held = b""
        """What goes with the next write."""

    async def run(self) -> None:
        self._open_connections.add(self)
        try:
            stream: object = self.stream
            if not isinstance(stream, trio.SSLStream):
                await self._serve("http/1.1")
            elif await self._greeted(stream):
                await self._serve(stream.selected_alpn_protocol())
        except Exception:
            log.exception("a connection failed")
        finally:
            self._open_connections.discard(self)
            self.abort()

    async def _greeted(self, stream: trio.SSLStream[trio.SocketStream]) -> bool:
        """Whether the client speaks TLS, and in time."""
        try:
            with trio.fail_after(self.config.ssl_handshake_timeout):
                await stream.do_handshake()
        except (trio.BrokenResourceError, trio.TooSlowError):
            return False
        return True

    async def _serve(self, protocol: str | None) -> None:
        """The same as Hypercorn's, with the timers, protocols and requests of this room."""
        plain = self._plain_stream()
        try:
            socket = plain.socket
            client = parse_socket_addr(socket.family, socket.getpeername())
            server = parse_socket_addr(socket.family, socket.getsockname())
            async with self._task_group:
                self.protocol = Protocol(
                    *(self.app, self.config, self.context, self._task_group, ConnectionState(self.state)),
                    *(not self._is_plain, client, server, self.protocol_send, protocol),
                )
                await self.protocol.initiate()
                self._wait_for_request()
                await self._read_data()
        except OSError:
            pass
        finally:
            await self._close()

    def _plain_stream(self) -> trio.SocketStream:
        """The stream below TLS, if there is any."""
        stream: trio.SSLStream[trio.SocketStream] | trio.SocketStream = self.stream
        return stream.transport_stream if isinstance(stream, trio.SSLStream) else stream

    def abort(self) -> None:
        """Close the socket at once; tasks that read or write it are woken."""
        if isinstance(plain := self._plain_stream(), trio.SocketStream):
            plain.socket.close()

    def hang_up(self) -> None:
        """Its timer has rung, or the server stops."""
        self._task_group.spawn(self._hang_up)

    async def _hang_up(self) -> None:
        with trio.CancelScope(shield=True):
            await self._initiate_server_close()

    def check_stalled(self) -> None:
        """Reset the answers over HTTP/2 whose readers stall; look again as long as there is any."""
        http2 = self.protocol.protocol
        if isinstance(http2, H2Protocol) and http2.stream_buffers:
            self._open_connections.stalls.start(self)
            self._task_group.spawn(self._reset_stalled, http2)

    async def _reset_stalled(self, http2: H2Protocol) -> None:
        if await reset_stalled(http2, self._open_connections.stalled_s):
            log.info("a client stopped reading answers over HTTP/2; they are reset")
            await self.protocol_send(Updated(idle=http2.idle))

    def _wait_for_request(self) -> None:
        """The connection has no request: it is kept for a while, unless the server is about to stop."""
        if self.context.terminated.is_set():
            self.hang_up()
        else:
            self._open_connections.keep_alive.start(self)

    def _stop_timers(self) -> None:
        self._open_connections.keep_alive.stop(self)
        self._open_connections.heads.stop(self)

    async def write(self, data: bytes) -> None:
        """Write all; a connection that has ended takes everything."""
        await self.protocol_send(RawData(data=data))

    def hold(self, data: bytes) -> None:
        """Write it together with what is written next."""
        self._held += data

    async def _read_data(self) -> None:
        try:
            while await self._read_some():
                if self._is_idle and not self._head_has_begun and not self._speaks_http2:
                    self._head_has_begun = True
                    self._open_connections.keep_alive.stop(self)
                    self._open_connections.heads.start(self)
            await self.protocol.handle(Closed())
        finally:
            self._peer_left = True
            self._plain.leave()
            self._task_group.close()
            if isinstance(http2 := self.protocol.protocol, H2Protocol):
                for buffer in tuple(http2.stream_buffers.values()):
                    await buffer.close()  # wakes what waits for it, and does not wait itself
            self._stop_timers()

    async def _read_some(self) -> bool:
        """Handle what comes next; False once nothing more will."""
        try:
            data = await self._plain.receive(self.stream)
        except (trio.ClosedResourceError, trio.BrokenResourceError):
            return False
        if data is None:
            return True
        if self._plain.is_busy:
            await self._plain.take(data)
            return bool(data)
        is_between = self._is_idle and not self._head_has_begun
        head = self._plain.head(self.protocol.protocol, data) if is_between else None
        if head is None:
            return await handled(self.protocol, data)
        await self._begin(head)
        await self._plain.take(data[head.num_bytes :])
        return True

    async def _begin(self, head: Head) -> None:
        """Have a plain request answered."""
        await self.protocol_send(Updated(idle=False))
        inbox = Inbox(self.config.max_app_queue_size)
        exchange = self._plain.begin(self, head, inbox, self._dates)
        scope = scope_of(head, self.protocol.protocol)
        self._task_group.spawn_with(inbox, self.app, self.config, scope, exchange.send)
        await exchange.begin()

    async def exchanged(self, *, may_go_on: bool) -> None:
        """A plain request has been answered."""
        may_go_on = may_go_on and not self.context.terminated.is_set()
        await self.protocol_send(Updated(idle=True) if may_go_on else Closed())
        self._plain.answered(may_go_on=may_go_on)

    @property
    def _speaks_http2(self) -> bool:
        return isinstance(self.protocol.protocol, H2Protocol)

    async def protocol_send(self, event: Event) -> None:
        if isinstance(event, Updated):
            self._open_connections.update(self, event.idle)
            self._is_idle, self._head_has_begun = event.idle, False
            self._stop_timers()
            if event.idle and not self._peer_left:
                self._wait_for_request()
            elif self._speaks_http2 and self not in self._open_connections.stalls:
                self._open_connections.stalls.start(self)
            return
        if isinstance(event, RawData):
            if self._held:
                event, self._held = RawData(data=self._held + event.data), b""
            if not event.data:
                return
            num_sent = self.write_now(event.data)
            if num_sent == len(event.data):
                return
            if not await written(self.stream, self.send_lock, event.data[num_sent:]):
                self._plain.leave()
                await self.protocol.handle(Closed())
            return
        await super().protocol_send(event)

    def write_now(self, data: bytes) -> int:
        """The number of bytes that went out without waiting; errors are left to the next write."""
        if not self._is_plain or self.send_lock.locked():
            return 0
        try:
            return os.write(self.stream.socket.fileno(), data)
        except OSError:
            return 0
