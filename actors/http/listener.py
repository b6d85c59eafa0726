"""The listening socket: opening it, and accepting even when descriptors run out."""

import errno
import logging
import resource
import socket
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

import trio

from actors.core.config import ConfigError

log = logging.getLogger("sundog.api")

FULL = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
ENOUGH_DESCRIPTORS = 65_536
WAIT_S = 0.1
REMARK_EVERY_S = 60.0


class PortInUse(ConfigError):
    """Raised if another process listens at the port."""


def raise_descriptor_limit() -> None:
    """Allow this process as many descriptors as the system lets it, up to ENOUGH_DESCRIPTORS."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = ENOUGH_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, ENOUGH_DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


async def accept_for_ever(
    listener: trio.SocketListener,
    serve: Callable[[trio.SocketStream], Awaitable[object]],
    nursery: trio.Nursery,
    make_room: Callable[[], bool],
) -> None:
    """Serve every connection in a task of `nursery`; the listener is closed in the end.

    When no descriptor is left, `make_room` closes an idle connection; if there is none, new
    connections wait in the backlog.
    """
    remark_at_s = trio.current_time()
    async with listener:
        while True:
            try:
                # Without a free descriptor Linux refuses even if no client is waiting: check for one first.
                await trio.lowlevel.wait_readable(listener.socket)
                stream = await listener.accept()
            except OSError as error:
                if error.errno not in FULL:
                    raise
                if trio.current_time() >= remark_at_s:
                    remark_at_s = trio.current_time() + REMARK_EVERY_S
                    log.warning("no file descriptor is left (%s): raise `ulimit -n`", error.strerror)
                await trio.sleep(0 if make_room() else WAIT_S)
            else:
                nursery.start_soon(serve, stream)


def listen(
    host: str, port: int, backlog: int, stalled_client_s: float, *, shares_port: bool = False
) -> trio.SocketListener:
    """A listening socket whose connections inherit the limit on clients that do not read.

    The kernel deals connections out to all that `shares_port`. Raises ConfigError that names the option to
    change.
    """
    listening = _bound(host, port, backlog, shares_port=shares_port)
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        milliseconds = int(stalled_client_s * 1000)
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, milliseconds)
    return trio.SocketListener(trio.socket.from_stdlib_socket(listening))


def check_address(host: str, port: int) -> None:
    """Raise the ConfigError of `listen` if a server could not listen there now."""
    _bound(host, port, 1).close()


@contextmanager
def reserved(host: str, port: int) -> Iterator[int]:
    """Reserve a port for processes that share it, 0: a free one. Nothing is accepted here.

    Raises like `listen`, also if other processes share it already.
    """
    with _bound(host, port, 1) as alone:
        family, name = alone.family, alone.getsockname()
    with socket.socket(family) as holding:
        holding.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        try:
            holding.bind(name)
        except OSError as error:
            raise ConfigError(_why_not(host, port, error)) from None
        yield int(name[1])


def _bound(host: str, port: int, backlog: int, *, shares_port: bool = False) -> socket.socket:
    if not 0 <= port <= 65535:
        raise ConfigError(f"--port is {port}: it must be 0 to 65535")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        address = socket.getaddrinfo(host, port, family, socket.SOCK_STREAM)[0][4]
        return socket.create_server(address, family=family, backlog=backlog, reuse_port=shares_port)
    except (OSError, UnicodeError) as error:
        is_in_use = isinstance(error, OSError) and error.errno == errno.EADDRINUSE
        raise (PortInUse if is_in_use else ConfigError)(_why_not(host, port, error)) from None


def _why_not(host: str, port: int, error: OSError | UnicodeError) -> str:
    number = error.errno if isinstance(error, OSError) else None
    if number == errno.EADDRINUSE:
        return f"port {port} on {host} is in use: choose another with --port (0 takes a free one)"
    if number == errno.EACCES:
        return f"port {port} is not allowed to this user: choose one above 1023 with --port"
    return f"cannot listen on {host} ({error}): choose an address of this host with --host"
