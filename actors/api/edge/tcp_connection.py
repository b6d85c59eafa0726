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
- h11 and what is around it are a sixth of a request. Cure: only what is not plain needs it (`edge.exchange`).
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
from hypercorn.protocol.h11 import H11Protocol
from hypercorn.trio.worker_context import WorkerContext
from hypercorn.typing import AppWrapper, ConnectionState
from hypercorn.utils import parse_socket_addr

from actors.api.edge.admission import Admission
from actors.api.edge.direct import ABORT, DIRECT, Body, WritePass
from actors.api.edge.exchange import Address, Dates, scope_of
from actors.api.edge.http2 import Protocol, Spoken, handled, reset_stalled
from actors.api.edge.inbox import Inbox, Requests
from actors.api.edge.open_connections import OpenConnections
from actors.api.edge.plain_head import Head
from actors.api.edge.plain_requests import PlainRequests, closed, written
from actors.api.edge.tls import below, greeted

log = logging.getLogger("sundog.api")


class TcpConnection:
    """One accepted socket, kept in `open_connections` while it is served."""

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
        self.app, self.config, self.context, self.stream = app, config, context, stream
        self._state, self.send_lock = ConnectionState(offers), trio.Lock()
        self._client: Address = None
        self._server: Address = None
        self._open_connections = open_connections
        self._dates = dates
        self._task_group = Requests(admission)
        self._plain, self._spoken = PlainRequests(), Spoken(self._protocol)
        self._is_idle, self._head_has_begun = True, False
        self._peer_left = False
        self._held = b""
        """What goes with the next write."""

    async def run(self) -> None:
        self._open_connections.add(self)
        try:
            stream = self.stream
            if not isinstance(stream, trio.SSLStream):
                await self._serve("http/1.1")
            elif await greeted(stream, self.config.ssl_handshake_timeout):
                await self._serve(stream.selected_alpn_protocol())
        except Exception:
            log.exception("a connection failed")
        finally:
            self._open_connections.discard(self)
            self.abort()

    async def _serve(self, protocol: str | None) -> None:
        """The same as Hypercorn's, with the timers, protocols and requests of this room."""
        plain = below(self.stream)
        try:
            socket = plain.socket
            self._client = parse_socket_addr(socket.family, socket.getpeername())
            self._server = parse_socket_addr(socket.family, socket.getsockname())
            async with self._task_group:
                if protocol == "h2":
                    await self._spoken.needed(protocol).initiate()
                self._wait_for_request()
                await self._read_data()
        except OSError:
            pass
        finally:
            await closed(self.stream)

    def _protocol(self, name: str) -> Protocol:
        made = Protocol(
            *(self.app, self.config, self.context, self._task_group, self._state),
            *(not self._is_plain, self._client, self._server, self.protocol_send, name),
        )
        if isinstance(made.protocol, H11Protocol):
            made.protocol.keep_alive_requests = self._plain.num_begun
        return made

    def abort(self) -> None:
        """Close the socket at once; tasks that read or write it are woken."""
        if isinstance(plain := below(self.stream), trio.SocketStream):
            plain.socket.close()

    def hang_up(self) -> None:
        """Its timer has rung, or the server stops."""
        self._task_group.spawn(self._hang_up)

    async def _hang_up(self) -> None:
        with trio.CancelScope(shield=True):
            await self._spoken.close()
            await self.stream.aclose()

    def check_stalled(self) -> None:
        """Reset the answers over HTTP/2 whose readers stall; look again as long as there is any."""
        http2 = self._spoken.now
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
            await self._spoken.close()
        finally:
            self._peer_left = True
            self._plain.leave()
            self._task_group.close()
            if isinstance(http2 := self._spoken.now, H2Protocol):
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
        most = self.config.keep_alive_max_requests
        head = self._plain.head(self._spoken.now, most, data) if is_between else None
        if head is None:
            return await handled(self._spoken.needed(), data)
        await self._begin(head)
        await self._plain.take(data[head.num_bytes :])
        return True

    async def _begin(self, head: Head) -> None:
        """Have a plain request answered."""
        await self.protocol_send(Updated(idle=False))
        inbox = Inbox(self.config.max_app_queue_size)
        exchange = self._plain.begin(self, head, inbox, self._dates)
        if isinstance(http1 := self._spoken.now, H11Protocol):
            http1.keep_alive_requests += 1
        scope = scope_of(head, self._client, self._server, self._state, is_secure=not self._is_plain)
        self._task_group.spawn_with(inbox, self.app, self.config, scope, exchange.send)
        await exchange.begin()

    async def exchanged(self, *, may_go_on: bool) -> None:
        """A plain request has been answered."""
        may_go_on = may_go_on and not self.context.terminated.is_set()
        await self.protocol_send(Updated(idle=True) if may_go_on else Closed())
        self._plain.answered(may_go_on=may_go_on)

    @property
    def _speaks_http2(self) -> bool:
        return isinstance(self._spoken.now, H2Protocol)

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
                await self._spoken.close()
            return
        await closed(self.stream)
        await self._spoken.close()

    def write_now(self, data: bytes) -> int:
        """The number of bytes that went out without waiting; errors are left to the next write."""
        if not self._is_plain or self.send_lock.locked():
            return 0
        try:
            return os.write(self.stream.socket.fileno(), data)
        except OSError:
            return 0
