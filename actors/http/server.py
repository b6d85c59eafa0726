"""Serve by Hypercorn, and stop without dropping an answer or hanging."""

import logging
import os
import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

import trio
from hypercorn.config import Config
from hypercorn.trio import serve
from hypercorn.typing import ASGIFramework

from actors.core.config import ConfigError
from actors.http.listener import are_descriptors_short, cut_connections, listen

log = logging.getLogger("sundog.api.http")
log.setLevel(logging.WARNING)  # the server says itself where it runs
REMARK_EVERY_S = 60.0
SHORT_KEEP_ALIVE_S = 1.0
"""For connections that get descriptors of the upper half: idle ones never keep new clients out for longer."""


class _Seldom(logging.Filter):
    """Lets Trio's remark that no descriptor is left pass once a minute; Trio makes ten a second."""

    next_s = 0.0

    def filter(self, record: logging.LogRecord) -> bool:
        if record.created < self.next_s:
            return False
        self.next_s = record.created + REMARK_EVERY_S
        record.msg, record.args, record.exc_info = "no file descriptor is left: raise `ulimit -n`", (), None
        return True


logging.getLogger("trio.serve_listeners").addFilter(_Seldom())


@dataclass(frozen=True, slots=True)
class Tls:
    """Files as PEM. `cert_reqs` is what clients' certificates are: 0 not asked for, 1 checked, 2 required."""

    certfile: str
    keyfile: str | None = None
    ca_certs: str | None = None
    cert_reqs: int = 0

    def configure(self, config: Config) -> None:
        """Have Hypercorn speak TLS; raises ConfigError that names the option and the file."""
        config.certfile, config.keyfile = self.certfile, self.keyfile or self.certfile
        config.keyfile_password = ""  # or a key that has one would be asked for on the terminal
        config.verify_mode = ssl.VerifyMode(self.cert_reqs)
        key = "" if self.keyfile is None else f" and --ssl-keyfile {self.keyfile}"
        wrong = "they are no certificate in PEM and the key to it, without a password"
        _try(config, f"--ssl-certfile {self.certfile}{key}", wrong)
        config.ca_certs = self.ca_certs
        _try(config, f"--ssl-ca-certs {self.ca_certs}", "it holds no certificate in PEM")


def _try(config: Config, options: str, wrong: str) -> None:
    try:
        config.create_ssl_context()
    except (OSError, ValueError) as error:
        is_about_file = isinstance(error, OSError) and not isinstance(error, ssl.SSLError)
        why = error.strerror if isinstance(error, OSError) and is_about_file else wrong
        raise ConfigError(f"{options}: {why or wrong}") from None


class _Config(Config):
    """Settings of Hypercorn, which reads `keep_alive_timeout` whenever a connection becomes idle."""

    keep_alive_s = 0.0

    @property
    def keep_alive_timeout(self) -> float:  # type: ignore[override]  # is only read
        """The seconds for which a connection without a request is kept, though its client has left."""
        return min(self.keep_alive_s, SHORT_KEEP_ALIVE_S) if are_descriptors_short() else self.keep_alive_s


@dataclass(frozen=True, slots=True)
class HttpSettings:
    """The limits and timeouts of connections.

    `backlog` connections may wait to be accepted. A connection on which no whole head has come is kept for
    `keep_alive_s` (5 s resets pooled clients), for a second at most if half of the descriptors are in use. A
    client is dropped that takes nothing of what was sent for `stalled_client_s`, or the grace if that is
    shorter, or whose TLS greeting takes longer than `greeting_s`. More than `max_head_bytes` or `max_headers`
    are a 431. Pages of `allowed_origins` may call; `*` is all.
    """

    backlog: int = 2048
    keep_alive_s: float = 75.0
    stalled_client_s: float = 60.0
    greeting_s: float = 10.0
    max_head_bytes: int = 2**16
    max_headers: int = 256
    allowed_origins: tuple[str, ...] = ()
    tls: Tls | None = None

    def on_clock(self, scale: float) -> "HttpSettings":
        """Return the settings for a clock that runs `scale` times as fast as that on the wall."""
        return replace(self, keep_alive_s=self.keep_alive_s * scale, greeting_s=self.greeting_s * scale)

    def config(self) -> Config:
        """Return Hypercorn's settings; raises ConfigError for certificates that cannot be used."""
        config = _Config()
        config.keep_alive_s, config.ssl_handshake_timeout = self.keep_alive_s, self.greeting_s
        config.keep_alive_max_requests = 2**31  # over HTTP/2 the last one would cut the answers beside it
        config.h11_max_incomplete_size = config.h2_max_header_list_size = self.max_head_bytes
        # Without TLS nothing needs HTTP/2, and its errors end all connections (docs/api.md).
        config.h2_max_concurrent_streams = 0 if self.tls is None else 1000
        config.include_server_header = False
        config.errorlog = log
        if self.tls is not None:
            self.tls.configure(config)
        return config


USUAL = HttpSettings()


async def serve_http(
    app: ASGIFramework,
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
    config = settings.config()
    config.graceful_timeout = grace_s
    stalled_s = min(settings.stalled_client_s, grace_s)
    with listen(host, port, settings.backlog, stalled_s, shares_port=shares_port) as listening:
        bound_port: int = listening.getsockname()[1]
        async with trio.open_nursery() as nursery:
            scope, is_stopping = nursery.cancel_scope, False
            await nursery.start(_cut_when_cancelled, bound_port)

            async def stop() -> None:
                nonlocal is_stopping
                await shutdown()
                is_stopping = True
                scope.deadline = min(scope.deadline, trio.current_time() + grace_s)
                await drain()
                listening.close()

            task_status.started(bound_port)
            while not is_stopping:
                config.bind = [f"fd://{os.dup(listening.fileno())}"]
                try:
                    await serve(app, config, shutdown_trigger=stop, mode="asgi")
                except Exception:
                    log.exception("Hypercorn failed: connections were lost, and the server goes on")
            scope.cancel()


async def _cut_when_cancelled(
    port: int, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
) -> None:
    """Cut all connections at the end: Hypercorn shields what it writes to a client that reads nothing."""
    task_status.started()
    try:
        await trio.sleep_forever()
    finally:
        cut_connections(port)
