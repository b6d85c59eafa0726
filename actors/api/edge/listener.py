"""The listening socket."""

import errno
import socket

import trio

from actors.core.config import ConfigError


def listen(host: str, port: int, backlog: int, stalled_client_s: float) -> trio.SocketListener:
    """A listening socket whose connections inherit the limit on clients that do not read.

    Raises ConfigError that names the option to change.
    """
    if not 0 <= port <= 65535:
        raise ConfigError(f"--port is {port}: it must be 0 to 65535")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        address = socket.getaddrinfo(host, port, family, socket.SOCK_STREAM)[0][4]
        listening = socket.create_server(address, family=family, backlog=backlog)
    except (OSError, UnicodeError) as error:
        raise ConfigError(_why_not(host, port, error)) from None
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        milliseconds = int(stalled_client_s * 1000)
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, milliseconds)
    return trio.SocketListener(trio.socket.from_stdlib_socket(listening))


def _why_not(host: str, port: int, error: OSError | UnicodeError) -> str:
    number = error.errno if isinstance(error, OSError) else None
    if number == errno.EADDRINUSE:
        return f"port {port} on {host} is in use: choose another with --port (0 takes a free one)"
    if number == errno.EACCES:
        return f"port {port} is not allowed to this user: choose one above 1023 with --port"
    return f"cannot listen on {host} ({error}): choose an address of this host with --host"
