"""Listening sockets of a server, with errors that name the option to change."""

import errno
import socket
from collections.abc import Iterator
from contextlib import contextmanager

from sundog.actors.config import ConfigError


class PortInUse(ConfigError):
    """Another process listens on the port."""


@contextmanager
def named_errors(host: str, port: int) -> Iterator[None]:
    """Convert socket errors to a ConfigError that names the option to change."""
    try:
        yield
    except (OSError, UnicodeError) as error:
        number = getattr(error, "errno", None)
        if number == errno.EADDRINUSE:
            taken = f"port {port} on {host} is in use: choose another with --port (0 takes a free one)"
            raise PortInUse(taken) from None
        if number == errno.EACCES:
            message = f"port {port} is not allowed to this user: choose one above 1023 with --port"
        else:
            message = f"cannot listen on {host} ({error}): choose an address of this host with --host"
        raise ConfigError(message) from None


def listen(host: str, port: int, *, backlog: int = 1, shares_port: bool = False) -> socket.socket:
    """Return a listening socket; the kernel spreads connections over sockets with `shares_port`.

    Raises ConfigError that names the option to change.
    """
    if not 0 <= port <= 65535:
        raise ConfigError(f"--port is {port}: it must be 0 to 65535")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with named_errors(host, port):
        address = socket.getaddrinfo(host, port, family, socket.SOCK_STREAM)[0][4]
        return socket.create_server(address, family=family, backlog=backlog, reuse_port=shares_port)
