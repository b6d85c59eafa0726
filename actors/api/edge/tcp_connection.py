"""One TCP connection of Hypercorn's, with the cures for clients that do not read, and that leave.

- Hypercorn shields each write from cancellation, so a client that stops reading would hold up
  shutdown for ever. Cure: `abort` closes the socket under the write, and TCP_USER_TIMEOUT, set on
  the listening socket and inherited, ends a connection whose peer takes nothing.
- After the peer has closed, Hypercorn keeps the descriptor until the keep-alive timer rings. Cure:
  the timer stops when reading ends, and starts no more.
- A head that trickles keeps its connection for as long as an idle one has. Cure: a timer of its own.
- HTTP/2's answers wait for windows that will never open once the connection has ended, and frames of streams
  that are over are errors of Python. Cure: the buffers are closed, the connection is dropped.
- A connection that fails unexpectedly must not end the server. Cure: it is logged and dropped.

Most writes fit into the socket's buffer, so one non-blocking write is tried before Hypercorn's
lock, cancel scope and checkpoint. Streamed answers are offered to be written past Hypercorn (`edge.direct`).
"""

import logging
import os

import trio
from hypercorn.config import Config
from hypercorn.events import Closed, Event, RawData, Updated
from hypercorn.protocol.h2 import H2Protocol
from hypercorn.trio.tcp_server import MAX_RECV, TCPServer
from hypercorn.trio.worker_context import WorkerContext
from hypercorn.typing import AppWrapper

from actors.api.edge.direct import ABORT, DIRECT, Body, WritePass
from actors.api.edge.response import Feed

log = logging.getLogger("sundog.api")


FIRST_REQUEST_S = 5.0
"""What a new connection gets for its first request before it may be closed to make room."""


class OpenConnections:
    """All connections of one server, and which of them may be closed to make room."""

    def __init__(self) -> None:
        self._all: set[TcpConnection] = set()
        self._may_close_from_s: dict[TcpConnection, float] = {}  # idle connections, the longest first

    def __len__(self) -> int:
        return len(self._all)

    def add(self, connection: "TcpConnection") -> None:
        self._all.add(connection)
        self._may_close_from_s[connection] = trio.current_time() + FIRST_REQUEST_S

    def discard(self, connection: "TcpConnection") -> None:
        self._all.discard(connection)
        self._may_close_from_s.pop(connection, None)

    def update(self, connection: "TcpConnection", idle: bool) -> None:
        """The connection serves a request from now on, or no longer."""
        self._may_close_from_s.pop(connection, None)
        if idle:
            self._may_close_from_s[connection] = trio.current_time()

    def abort_all(self) -> None:
        for connection in tuple(self._all):
            connection.abort()

    def abort_longest_idle(self) -> bool:
        """Close the connection that has been idle for longest; False if none may be closed."""
        now_s = trio.current_time()
        for connection, from_s in self._may_close_from_s.items():
            if from_s <= now_s:
                self._may_close_from_s.pop(connection)
                connection.abort()
                return True
        return False


class TcpConnection(TCPServer):
    """One accepted socket, kept in `open_connections` while it is served."""

    def __init__(
        self,
        app: AppWrapper,
        config: Config,
        context: WorkerContext,
        open_connections: OpenConnections,
        writes: WritePass,
        stream: trio.SocketStream | trio.SSLStream[trio.SocketStream],
        head_s: float,
    ) -> None:
        self._is_plain = not isinstance(stream, trio.SSLStream)
        offers = {ABORT: self.abort} | ({DIRECT: self._body} if self._is_plain else {})
        super().__init__(app, config, context, offers, stream)  # type: ignore[arg-type]  # plain too
        self._open_connections = open_connections
        self._writes = writes
        self._head_s = head_s
        self._is_idle, self._head_has_begun = True, False
        self._peer_left = False

    async def run(self) -> None:
        self._open_connections.add(self)
        try:
            await super().run()
        except Exception:
            log.exception("a connection failed")
        finally:
            self._open_connections.discard(self)
            self.abort()

    def abort(self) -> None:
        """Close the socket at once; tasks that read or write it are woken."""
        stream: object = self.stream
        plain = stream.transport_stream if isinstance(stream, trio.SSLStream) else stream
        if isinstance(plain, trio.SocketStream):
            plain.socket.close()

    def _body(self, feed: Feed) -> Body:
        """The body of an answer whose chunks bypass Hypercorn."""
        return Body(self, self._writes, feed)

    async def write(self, data: bytes) -> None:
        """Write all; a connection that has ended takes everything."""
        await self.protocol_send(RawData(data=data))

    async def _read_data(self) -> None:
        try:
            while await self._read_some():
                if self._is_idle and not self._head_has_begun and not self._speaks_http2:
                    self._head_has_begun = True
                    await self.idle_task.restart(self._task_group, self._head_timeout)
            await self.protocol.handle(Closed())
        finally:
            self._peer_left = True
            if isinstance(http2 := self.protocol.protocol, H2Protocol):
                for buffer in tuple(http2.stream_buffers.values()):
                    await buffer.close()  # wakes what waits for it, and does not wait itself
        await self.idle_task.stop()

    async def _read_some(self) -> bool:
        """Handle what comes next; False once nothing more will."""
        try:
            data = bytes(await self.stream.receive_some(MAX_RECV))
        except (trio.ClosedResourceError, trio.BrokenResourceError):
            return False
        try:
            await self.protocol.handle(RawData(data))
        except (KeyError, UnicodeDecodeError) as error:
            if not isinstance(http2 := self.protocol.protocol, H2Protocol):
                raise
            log.info("a client broke the rules of HTTP/2: %r", error)
            for number in [n for n, stream in http2.streams.items() if not hasattr(stream, "scope")]:
                del http2.streams[number]  # it never began, and could not be ended
            return False
        return bool(data)

    @property
    def _speaks_http2(self) -> bool:
        return isinstance(self.protocol.protocol, H2Protocol)

    async def _head_timeout(self) -> None:
        """The rest of a request's head has not come in time."""
        await trio.sleep(self._head_s)
        with trio.CancelScope(shield=True):
            await self._initiate_server_close()

    async def protocol_send(self, event: Event) -> None:
        if isinstance(event, Updated):
            self._open_connections.update(self, event.idle)
            self._is_idle, self._head_has_begun = event.idle, False
            if self._peer_left:
                return
        elif isinstance(event, RawData):
            num_sent = self.write_now(event.data)
            if num_sent == len(event.data):
                return
            event = RawData(data=event.data[num_sent:])
        await super().protocol_send(event)

    def write_now(self, data: bytes) -> int:
        """The number of bytes that went out without waiting; errors are left to the next write."""
        if not self._is_plain or self.send_lock.locked():
            return 0
        try:
            return os.write(self.stream.socket.fileno(), data)
        except OSError:
            return 0
