"""One TCP connection of Hypercorn's, with the cures for clients that do not read.

- Hypercorn shields each write from cancellation, so a client that stops reading would hold up
  shutdown for ever. Cure: `abort` closes the socket under the write, and TCP_USER_TIMEOUT, set on
  the listening socket and inherited, ends a connection whose peer takes nothing.
- A connection that fails unexpectedly must not end the server. Cure: it is logged and dropped.

Most writes fit into the socket's buffer, so one non-blocking write is tried before Hypercorn's
lock, cancel scope and checkpoint.
"""

import logging
import os
from collections.abc import MutableSet

import trio
from hypercorn.config import Config
from hypercorn.events import Event, RawData
from hypercorn.trio.tcp_server import TCPServer
from hypercorn.trio.worker_context import WorkerContext
from hypercorn.typing import AppWrapper

log = logging.getLogger("sundog.api")


class TcpConnection(TCPServer):
    """One accepted socket, in `open_connections` as long as it is served."""

    def __init__(
        self,
        app: AppWrapper,
        config: Config,
        context: WorkerContext,
        open_connections: MutableSet["TcpConnection"],
        stream: trio.SocketStream,
    ) -> None:
        super().__init__(app, config, context, {}, stream)  # type: ignore[arg-type]  # plain too
        self._open_connections = open_connections

    async def run(self) -> None:
        self._open_connections.add(self)
        try:
            await super().run()
        except Exception:
            log.exception("a connection failed")
        finally:
            self._open_connections.discard(self)

    def abort(self) -> None:
        """Close the socket at once; whoever is reading or writing it is woken."""
        self.stream.socket.close()

    async def protocol_send(self, event: Event) -> None:
        if isinstance(event, RawData) and not self.send_lock.locked():
            num_sent = self._send_what_fits(event.data)
            if num_sent == len(event.data):
                return
            event = RawData(data=event.data[num_sent:])
        await super().protocol_send(event)

    def _send_what_fits(self, data: bytes) -> int:
        """The number of bytes that went out without waiting; errors are left to the next write."""
        try:
            return os.write(self.stream.socket.fileno(), data)
        except OSError:
            return 0
