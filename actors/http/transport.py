"""An accepted socket, plain or under TLS, and the register of all of them.

A connection ends when its `scope` is cancelled: by its timer, its client's leaving, or the server's end.
"""

import logging
import os
import socket
import ssl
from contextlib import suppress

import trio

log = logging.getLogger("sundog.api")

Address = tuple[str, int] | None
MOST_RECEIVED = 2**16
FIRST_REQUEST_S = 5.0
"""The time that a new connection has for its first request before it may be closed to make room."""
Stream = trio.SocketStream | trio.SSLStream[trio.SocketStream]
GONE = (trio.BrokenResourceError, trio.ClosedResourceError)


class OpenConnections:
    """All connections of a server, and which of them may be closed: those without a request."""

    def __init__(self, keep_alive_s: float) -> None:
        self._keep_alive_s = keep_alive_s
        self._all: set[Transport] = set()
        self._may_close_from_s: dict[Transport, float] = {}  # the longest idle first
        self.is_stopping = False
        """True once no further request is begun."""

    def __len__(self) -> int:
        return len(self._all)

    def add(self, connection: "Transport") -> None:
        """Take in a new connection."""
        self._all.add(connection)
        self._may_close_from_s[connection] = trio.current_time() + FIRST_REQUEST_S
        connection.end_in(self._keep_alive_s)

    def discard(self, connection: "Transport") -> None:
        """Forget a connection that has ended."""
        self._all.discard(connection)
        self._may_close_from_s.pop(connection, None)

    def has_request(self, connection: "Transport") -> None:
        """Note that a connection has a request: it ends with its answer or its client."""
        self._may_close_from_s.pop(connection, None)
        connection.end_in(float("inf"))

    def is_idle(self, connection: "Transport") -> None:
        """Note that a connection has no request: it is kept for a while, unless the server stops."""
        if self.is_stopping:
            connection.scope.cancel()
            return
        self._may_close_from_s[connection] = trio.current_time()
        connection.end_in(self._keep_alive_s)

    def stop(self) -> None:
        """Begin no further request, and end all connections that have none."""
        self.is_stopping = True
        for connection in self._may_close_from_s:
            connection.scope.cancel()

    def close_longest_idle(self) -> bool:
        """End the connection that has been idle for longest; False if none may be closed."""
        now_s = trio.current_time()
        for connection, from_s in self._may_close_from_s.items():
            if from_s <= now_s:
                self._may_close_from_s.pop(connection)
                connection.close()
                return True
        return False


class Transport:
    """The bytes of one connection; no two tasks write at a time."""

    def __init__(self, stream: trio.SocketStream, tls: ssl.SSLContext | None) -> None:
        self._socket = stream.socket
        self._stream: Stream = stream
        self.is_plain = tls is None
        if tls is not None:
            self._stream = trio.SSLStream(stream, tls, server_side=True, https_compatible=True)
        self.scope = trio.CancelScope()
        self.client: Address = None
        self.server: Address = None

    async def greet(self, within_s: float) -> None:
        """Learn both addresses, and agree on TLS where it is spoken.

        Raises BrokenResourceError for a client that does not speak it, TooSlowError.
        """
        self.client = _address(self._socket.getpeername())
        self.server = _address(self._socket.getsockname())
        if isinstance(self._stream, trio.SSLStream):
            with trio.fail_after(within_s):
                await self._stream.do_handshake()

    def end_in(self, seconds: float) -> None:
        """End the connection then, unless this is said again before."""
        self.scope.deadline = trio.current_time() + seconds

    async def receive(self) -> bytes:
        """Return what comes next; empty if nothing more will."""
        try:
            return bytes(await self._stream.receive_some(MOST_RECEIVED))
        except GONE:
            return b""

    def write_now(self, data: bytes) -> int:
        """Return the number of bytes that went out without waiting; errors are left to `write`."""
        if not self.is_plain:
            return 0
        try:
            return os.write(self._socket.fileno(), data)
        except OSError:
            return 0

    async def write(self, data: bytes) -> None:
        """Write all, however long it takes; if the client has left, the connection ends."""
        num_written = self.write_now(data)
        if num_written == len(data):
            return
        try:
            await self._stream.send_all(data[num_written:])
        except GONE:
            self.scope.cancel()

    def close(self) -> None:
        """Close the socket, after telling the client that nothing more comes."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)
        self._socket.close()


def _address(name: object) -> Address:
    """Return host and port; None for what has none."""
    return (str(name[0]), int(name[1])) if isinstance(name, tuple) else None
