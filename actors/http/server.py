"""Serving with Hypercorn, and stopping without dropping an answer or hanging."""

import logging
import os
import socket
import ssl
from collections.abc import Awaitable, Callable

import trio
from hypercorn.config import Config
from hypercorn.trio import serve
from hypercorn.typing import ASGIFramework

from sundog.actors.config.http import USUAL_HTTP, HttpSettings
from sundog.actors.http.connections import are_descriptors_short, cut_connections, log

log.setLevel(logging.WARNING)  # the server says itself where it runs
SHORT_KEEP_ALIVE_S = 1.0
"""Seconds an idle connection is kept if its descriptor is in the upper half, so that new clients find
room.
"""


class _Config(Config):
    keep_alive_s = 0.0

    @property
    def keep_alive_timeout(self) -> float:  # type: ignore[override]  # is only read
        """Seconds for which an idle connection is kept."""
        return min(self.keep_alive_s, SHORT_KEEP_ALIVE_S) if are_descriptors_short() else self.keep_alive_s


def hypercorn_config(settings: HttpSettings) -> Config:
    """Return Hypercorn's settings."""
    config, tls = _Config(), settings.tls
    config.backlog = settings.backlog
    config.keep_alive_s, config.ssl_handshake_timeout = settings.keep_alive_s, settings.greeting_s
    config.keep_alive_max_requests = 2**31  # over HTTP/2 the last one would cut the answers beside it
    config.h11_max_incomplete_size = config.h2_max_header_list_size = settings.max_head_bytes
    # Without TLS nothing needs HTTP/2.
    config.h2_max_concurrent_streams = 0 if tls is None else 1000
    config.include_server_header, config.errorlog = False, log
    if tls is not None:
        config.certfile, config.keyfile = tls.certfile, tls.keyfile or tls.certfile
        config.keyfile_password = ""  # or a key that has one would be asked for on the terminal
        config.ca_certs, config.verify_mode = tls.ca_certs, ssl.VerifyMode(tls.cert_reqs)
    return config


async def serve_http(
    app: ASGIFramework,
    listening: socket.socket,
    *,
    shutdown: Callable[[], Awaitable[object]],
    drain: Callable[[], Awaitable[object]] = trio.lowlevel.checkpoint,
    grace_s: float = 30.0,
    settings: HttpSettings = USUAL_HTTP,
) -> None:
    """Serve until `shutdown()` returns, then return as soon as the last answer is finished.

    After `shutdown()` answers have `grace_s` to finish; then they are cut. While `drain()` runs connections
    are still accepted, so that clients get an answer; then `listening` and idle connections are closed.
    """
    config, port = hypercorn_config(settings), listening.getsockname()[1]
    config.graceful_timeout = grace_s
    if hasattr(socket, "TCP_USER_TIMEOUT"):  # connections inherit it
        stalled_ms = int(min(settings.stalled_client_s, grace_s) * 1000)
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, stalled_ms)

    async def stop() -> None:
        await shutdown()
        nursery.cancel_scope.deadline = trio.current_time() + grace_s
        await drain()
        listening.close()

    async def cut_at_end() -> None:
        """Close connections whose clients do not read: Hypercorn shields its writes from cancellation."""
        try:
            await trio.sleep_forever()
        finally:
            cut_connections(port)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(cut_at_end)
        config.bind = [f"fd://{os.dup(listening.fileno())}"]
        await serve(app, config, shutdown_trigger=stop, mode="asgi")
        nursery.cancel_scope.cancel()
