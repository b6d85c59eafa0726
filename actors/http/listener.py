"""The listening socket, the descriptors that it needs, and the sockets accepted from it."""

import errno
import os
import resource
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from actors.core.config import ConfigError

ENOUGH_DESCRIPTORS = 65_536


class PortInUse(ConfigError):
    """Raised if another process listens at the port."""


def raise_descriptor_limit() -> None:
    """Allow this process as many descriptors as the system lets it, up to ENOUGH_DESCRIPTORS."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = ENOUGH_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, ENOUGH_DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def are_descriptors_short() -> bool:
    """Return whether the next connection's descriptor is in the upper half of those allowed."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    try:
        os.close(lowest_free := os.open(os.devnull, os.O_RDONLY))
    except OSError:
        return True
    return most != resource.RLIM_INFINITY and lowest_free >= most // 2


def listen(
    host: str, port: int, backlog: int, stalled_client_s: float, *, shares_port: bool = False
) -> socket.socket:
    """Return a listening socket whose connections inherit the limit on clients that do not read.

    The kernel deals connections out to all that `shares_port`. Raises ConfigError that names the option to
    change.
    """
    if not 0 <= port <= 65535:
        raise ConfigError(f"--port is {port}: it must be 0 to 65535")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        address = socket.getaddrinfo(host, port, family, socket.SOCK_STREAM)[0][4]
        listening = socket.create_server(address, family=family, backlog=backlog, reuse_port=shares_port)
    except (OSError, UnicodeError) as error:
        is_in_use = isinstance(error, OSError) and error.errno == errno.EADDRINUSE
        raise (PortInUse if is_in_use else ConfigError)(_why_not(host, port, error)) from None
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(stalled_client_s * 1000))
    return listening


@contextmanager
def reserved(host: str, port: int) -> Iterator[int]:
    """Reserve a port for processes that share it, 0: a free one. Nothing is accepted here.

    Raises like `listen`, also if other processes share it already.
    """
    with listen(host, port, 1, 1.0) as alone:
        family, name = alone.family, alone.getsockname()
    with socket.socket(family) as holding:
        holding.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        try:
            holding.bind(name)
        except OSError as error:
            raise ConfigError(_why_not(host, port, error)) from None
        yield int(name[1])


def cut_connections(port: int) -> None:
    """Shut every connection down that this process has accepted at `port`, whatever waits for its client."""
    for name in os.listdir("/dev/fd"):
        with suppress(OSError):
            each = socket.socket(fileno=int(name))
            try:
                if each.family != socket.AF_UNIX and each.getsockname()[1] == port and each.getpeername():
                    each.shutdown(socket.SHUT_RDWR)
            finally:
                each.detach()  # its owner closes it


def _why_not(host: str, port: int, error: OSError | UnicodeError) -> str:
    number = error.errno if isinstance(error, OSError) else None
    if number == errno.EADDRINUSE:
        return f"port {port} on {host} is in use: choose another with --port (0 takes a free one)"
    if number == errno.EACCES:
        return f"port {port} is not allowed to this user: choose one above 1023 with --port"
    return f"cannot listen on {host} ({error}): choose an address of this host with --host"
