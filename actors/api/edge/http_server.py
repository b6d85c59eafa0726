"""Hypercorn on Trio, composed by hand: listen, serve, and stop without dropping an answer or hanging.

Hypercorn's own `serve` hides its connections, and stopping for certain needs them. The app has no
lifespan hooks, so none are run.
"""

import logging
import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

import trio
from hypercorn.config import Config
from hypercorn.trio.worker_context import WorkerContext
from hypercorn.typing import AppWrapper
from quart_trio import QuartTrio

from actors.api.edge.admission import Admission
from actors.api.edge.direct import WritePass
from actors.api.edge.exchange import Dates
from actors.api.edge.listener import accept_for_ever, listen
from actors.api.edge.open_connections import OpenConnections
from actors.api.edge.tcp_connection import TcpConnection
from actors.api.edge.tls import Tls
from actors.api.edge.turned_away import Addresses
from actors.api.seats import OwnSeats, Seats

log = logging.getLogger("sundog.api")


@dataclass(frozen=True, slots=True)
class HttpSettings:
    """How connections are treated.

    `backlog` connections may wait to be accepted (Hypercorn's 100 refuses bursts); an idle one is
    kept for `keep_alive_s` (5 s resets pooled clients). A client that takes nothing of what was
    sent for `stalled_client_s` is dropped; of an answer over HTTP/2, for `stalled_answer_s`, it is reset. So
    is dropped one whose head, from its first byte, takes longer than
    `head_s`; one of more than `max_head_bytes` or `max_headers` is a 431. An address has at most
    `max_connections`, any number if None. Pages of `allowed_origins` may call; `*` is all.
    """

    backlog: int = 2048
    keep_alive_s: float = 75.0
    stalled_client_s: float = 60.0
    head_s: float = 10.0
    max_head_bytes: int = 2**16
    max_headers: int = 256
    max_connections: int | None = None
    stalled_answer_s: float = 60.0
    allowed_origins: tuple[str, ...] = ()
    tls: Tls | None = None

    def on_clock(self, scale: float) -> "HttpSettings":
        """The same where the clock runs so many times faster than that on the wall."""
        return replace(
            self,
            keep_alive_s=self.keep_alive_s * scale,
            head_s=self.head_s * scale,
            stalled_answer_s=self.stalled_answer_s * scale,
        )

    def hypercorn_config(self) -> Config:
        """Hypercorn's part of the settings; no access log, errors to our own log."""
        config = Config()
        config.keep_alive_timeout = self.keep_alive_s
        config.ssl_handshake_timeout = self.head_s
        config.h11_max_incomplete_size = config.h2_max_header_list_size = self.max_head_bytes
        config.include_server_header = False
        config.accesslog = None
        config.errorlog = log
        return config


USUAL = HttpSettings()


async def serve_http(
    app: QuartTrio,
    *,
    host: str,
    port: int,
    shares_port: bool = False,
    shutdown: Callable[[], Awaitable[object]],
    drain: Callable[[], Awaitable[object]] = trio.lowlevel.checkpoint,
    grace_s: float = 30.0,
    settings: HttpSettings = USUAL,
    seats: Seats | None = None,
    task_status: trio.TaskStatus[int] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve until `shutdown()` returns, then return as soon as the last answer is finished.

    After `shutdown()` answers have `grace_s` to finish; then they are cut. While `drain()` takes its time
    connections are still accepted, so that clients are told; then no more, and idle ones close. Reports the
    bound port through `task_status`; port 0 binds a free one. Processes that `shares_port` have it together,
    and count connections in the same `seats`. Raises ConfigError if it cannot listen or has no certificate.
    """
    tls = None if settings.tls is None else settings.tls.context()
    listener = listen(host, port, settings.backlog, settings.stalled_client_s, shares_port=shares_port)
    bound_port: int = listener.socket.getsockname()[1]
    config = settings.hypercorn_config()
    context = WorkerContext(None)
    writes, dates, admission = WritePass(), Dates(), Admission()
    open_connections = OpenConnections(settings.keep_alive_s, settings.head_s, settings.stalled_answer_s)
    wrapped = _wrapped(app)
    addresses = Addresses(settings.max_connections, seats or OwnSeats())

    def served(stream: trio.SocketStream) -> Awaitable[None]:
        edge = context, open_connections, writes, dates, admission
        return TcpConnection(wrapped, config, *edge, _secured(stream, tls)).run()

    async def counted(stream: trio.SocketStream) -> None:
        async with addresses.entered(stream) as is_welcome:
            if not is_welcome:
                return await addresses.turn_away(stream, tells=tls is None)
            await served(stream)

    # Every function between a connection and its socket costs memory while the connection is open.
    serve_connection = served if settings.max_connections is None else counted

    with listener.socket:  # also where a cancel comes before anybody accepts
        async with trio.open_nursery() as guarded:
            await guarded.start(_abort_when_cancelled, open_connections)
            for run in (writes.run, admission.run):
                guarded.start_soon(run)
            open_connections.begin(guarded)
            async with trio.open_nursery() as serving, trio.open_nursery() as accepting:
                make_room = open_connections.abort_longest_idle
                accepting.start_soon(accept_for_ever, listener, serve_connection, serving, make_room)
                task_status.started(bound_port)
                await shutdown()
                guarded.cancel_scope.deadline = trio.current_time() + grace_s
                await drain()
                accepting.cancel_scope.cancel()
                await context.terminated.set()
                open_connections.keep_alive.ring_all()
            guarded.cancel_scope.cancel()


def _wrapped(app: QuartTrio) -> AppWrapper:
    """The app as Hypercorn calls it."""
    return lambda scope, receive, send, *_threads: app(scope, receive, send)


def _secured(
    stream: trio.SocketStream, tls: ssl.SSLContext | None
) -> trio.SocketStream | trio.SSLStream[trio.SocketStream]:
    return stream if tls is None else trio.SSLStream(stream, tls, server_side=True, https_compatible=True)


async def _abort_when_cancelled(
    open_connections: OpenConnections, *, task_status: trio.TaskStatus[None]
) -> None:
    """Hypercorn shields its writes: only closing its socket ends a client that does not read."""
    task_status.started()
    try:
        await trio.sleep_forever()
    finally:
        open_connections.abort_all()
