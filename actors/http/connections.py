"""The sockets and descriptors of the connections that this process has accepted."""

import os
import resource
import socket
from contextlib import suppress


def are_descriptors_short() -> bool:
    """Return whether the next connection's descriptor is in the upper half of those allowed."""
    try:
        with open(os.devnull, "rb", buffering=0) as lowest_free:
            return lowest_free.fileno() >= resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2
    except OSError:
        return True


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
