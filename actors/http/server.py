"""Listen, serve and stop without dropping an answer or hanging: any ASGI app, on Trio.

The app has no lifespan hooks, so none are run.
"""

import logging
import ssl
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

import trio

from actors.http.exchange import AsgiApp
from actors.http.http1 import Exchange, Http1Connection
from actors.http.listener import accept_for_ever, listen
from actors.http.streams import WritePass
from actors.http.tls import Tls
from actors.http.transport import OpenConnections, Transport

log = logging.getLogger("sundog.api")

BEGUN_AT_A_TIME = 2
"""Requests that begin before other tasks have their turn: about a millisecond of them."""


@dataclass(frozen=True, slots=True)
class HttpSettings:
    """The limits and timeouts of connections.

    `backlog` connections may wait to be accepted. An idle connection is kept for `keep_alive_s` (5 s resets
    pooled clients). A client is dropped that takes nothing of what was sent for `stalled_client_s`, or whose
    head takes longer than `head_s` from its first byte. A head of more than `max_head_bytes` or `max_headers`
    is a 431. Pages of `allowed_origins` may call; `*` is all.
    """

    backlog: int = 2048
    keep_alive_s: float = 75.0
    stalled_client_s: float = 60.0
    head_s: float = 10.0
    max_head_bytes: int = 2**16
    max_headers: int = 256
    allowed_origins: tuple[str, ...] = ()
    tls: Tls | None = None

    def on_clock(self, scale: float) -> "HttpSettings":
        """Return the settings for a clock that runs `scale` times as fast as that on the wall."""
        return replace(self, keep_alive_s=self.keep_alive_s * scale, head_s=self.head_s * scale)


USUAL = HttpSettings()


class Server:
    """The parts that all connections of a server share; `run` the tasks."""

    def __init__(self, app: AsgiApp, settings: HttpSettings) -> None:
        self._app, self._settings = app, settings
        self.tls: ssl.SSLContext | None = None if settings.tls is None else settings.tls.context()
        self._waiting: deque[Exchange] = deque()
        self._has_waiting = trio.Event()
        self._writes = WritePass()
        self.connections = OpenConnections(settings.keep_alive_s)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Write streams and begin requests until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._writes.run)
            task_status.started()
            while True:
                await self._has_waiting.wait()
                for _ in range(min(len(self._waiting), BEGUN_AT_A_TIME)):
                    nursery.start_soon(self._waiting.popleft().run, self._app)
                if self._waiting:
                    await trio.lowlevel.checkpoint()
                else:
                    self._has_waiting = trio.Event()

    def begin(self, exchange: Exchange) -> None:
        """Have a request answered soon: of many that come at once, streams that run are written between."""
        self._waiting.append(exchange)
        self._has_waiting.set()

    async def serve(self, stream: trio.SocketStream) -> None:
        """Serve one connection to its end; never raises an Exception."""
        transport, settings = Transport(stream, self.tls), self._settings
        self.connections.add(transport)
        try:
            with transport.scope:
                await transport.greet(settings.head_s)
                limits = settings.head_s, settings.max_head_bytes
                await Http1Connection(transport, self.connections, self._writes, *limits).run(self.begin)
        except (trio.BrokenResourceError, trio.TooSlowError, OSError):
            pass  # the client has left, or does not speak TLS
        except Exception:
            log.exception("a connection failed")
        finally:
            self.connections.discard(transport)
            transport.close()


async def serve_http(
    app: AsgiApp,
    *,
    host: str,
    port: int,
    shares_port: bool = False,
    shutdown: Callable[[], Awaitable[object]],
    drain: Callable[[], Awaitable[object]] = trio.lowlevel.checkpoint,
    grace_s: float = 30.0,
    settings: HttpSettings = USUAL,
    task_status: trio.TaskStatus[int] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve until `shutdown()` returns, then return as soon as the last answer is finished.

    After `shutdown()` answers have `grace_s` to finish; then they are cut. While `drain()` takes its time
    connections are still accepted, so that clients are told; then no more, and idle ones close. Reports the
    bound port through `task_status`; port 0 binds a free one. Processes that `shares_port` have it together.
    Raises ConfigError if it cannot listen or has no certificate.
    """
    server = Server(app, settings)
    listener = listen(host, port, settings.backlog, settings.stalled_client_s, shares_port=shares_port)
    bound_port: int = listener.socket.getsockname()[1]
    with listener.socket:  # also where a cancel comes before anybody accepts
        async with trio.open_nursery() as running:
            await running.start(server.run)
            async with trio.open_nursery() as serving, trio.open_nursery() as accepting:
                make_room = server.connections.close_longest_idle
                accepting.start_soon(accept_for_ever, listener, server.serve, serving, make_room)
                task_status.started(bound_port)
                await shutdown()
                running.cancel_scope.deadline = trio.current_time() + grace_s
                await drain()
                accepting.cancel_scope.cancel()
                server.connections.stop()
            running.cancel_scope.cancel()
