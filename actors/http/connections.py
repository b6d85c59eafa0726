"""Connections that this process has accepted, with their sockets and descriptors."""

import logging
import os
import resource
import socket
from contextlib import suppress

from hypercorn.events import Event, Updated
from hypercorn.trio import run
from hypercorn.trio.tcp_server import TCPServer

from sundog.actors.engine.crash import root_cause, summary

log = logging.getLogger("sundog.api.http")


class ClientConnection(TCPServer):
    """Connection of Hypercorn: an error ends only this connection, and it ends when its client leaves."""

    _has_left = False

    async def run(self) -> None:
        """Serve the connection without raising: Hypercorn would end all others."""
        try:
            await super().run()
        except* Exception as group:  # noqa: BLE001  # whatever a client makes Hypercorn raise
            cause = summary(root_cause(group))
            log.warning("a connection was dropped: its bytes make Hypercorn raise %s", cause)

    async def protocol_send(self, event: Event) -> None:
        """Send an event unless the client has left, so that no timer is started for it."""
        if not (self._has_left and isinstance(event, Updated)):
            await super().protocol_send(event)

    async def _read_data(self) -> None:
        await super()._read_data()
        self._has_left = True
        await self.idle_task.stop()


run.TCPServer = ClientConnection  # type: ignore[attr-defined]  # `serve` has no argument for it


def are_descriptors_short() -> bool:
    """Return whether more than half of the allowed descriptors are in use."""
    try:
        with open(os.devnull, "rb", buffering=0) as lowest_free:
            return lowest_free.fileno() >= resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2
    except OSError:
        return True


def cut_connections(port: int) -> None:
    """Shut down every accepted connection at `port`, whatever waits for its client."""
    for name in os.listdir("/dev/fd"):
        with suppress(OSError):
            each = socket.socket(fileno=int(name))
            try:
                if each.family != socket.AF_UNIX and each.getsockname()[1] == port and each.getpeername():
                    each.shutdown(socket.SHUT_RDWR)
            finally:
                each.detach()  # its owner closes it
