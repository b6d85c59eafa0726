"""Port shared by the doors."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager

from sundog.actors.api.address import listen, named_errors


@contextmanager
def reserved(host: str, port: int) -> Iterator[int]:
    """Reserve a port for processes that share it; 0 chooses a free one. Accepts no connections.

    Raises like `listen`, also if other processes already share the port.
    """
    with listen(host, port) as alone:
        family, name = alone.family, alone.getsockname()
    with socket.socket(family) as holding:
        holding.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        with named_errors(host, port):
            holding.bind(name)
        yield int(name[1])
