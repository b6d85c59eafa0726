"""A request as ASGI has it: its scope, and its body as it comes."""

import time
from collections.abc import Awaitable, Callable, Mapping
from functools import lru_cache
from typing import Any
from urllib.parse import unquote
from wsgiref.handlers import format_date_time

import trio

from actors.http.transport import Transport

MOST_UNREAD_BYTES = 2**16
BODILESS = (204, 304)
BEGAN = "sundog.began"
"""Key in the scope's state: the instant at which the request's head was read, by `time.perf_counter`."""
BODY = "sundog.body"
"""Key in the scope's state: the RequestBody, which knows if all of it has come."""
ABORT = "sundog.abort"
"""Key in the scope's state: a function that ends the connection at once."""
Headers = list[tuple[bytes, bytes]]
Event = Mapping[str, Any]
"""An event of ASGI, by its keys."""
Receive = Callable[[], Awaitable[Event]]
Send = Callable[[Event], Awaitable[None]]
AsgiApp = Callable[[Any, Any, Any], Awaitable[None]]


class RequestBody:
    """The unread part of a request's body that has come: MOST_UNREAD_BYTES, and one piece."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._num_bytes = 0
        self._arrived: trio.Event | None = None
        self._room: trio.Event | None = None
        self.is_whole = False
        """True once all of it has come."""

    def put(self, piece: bytes, *, is_last: bool = False) -> None:
        """Add a piece for the app."""
        if piece:
            self._pieces.append(piece)
            self._num_bytes += len(piece)
        self.is_whole = self.is_whole or is_last
        if self._arrived is not None:
            self._arrived.set()

    async def until_room(self) -> None:
        """Wait while the app has more to read than it may be kept waiting for."""
        while self._num_bytes > MOST_UNREAD_BYTES:
            self._room = trio.Event()
            await self._room.wait()

    async def read(self) -> tuple[bytes, bool]:
        """Return all that has come, at least something of what is to come, and True if more is to come."""
        while not self._pieces and not self.is_whole:
            self._arrived = trio.Event()
            await self._arrived.wait()
        data = b"".join(self._pieces)
        self._pieces.clear()
        self._num_bytes = 0
        if self._room is not None:
            self._room.set()
        return data, not self.is_whole


def http_date() -> bytes:
    """Return the value of an answer's `Date` header."""
    return _date_of(int(time.time()))


@lru_cache(maxsize=1)
def _date_of(second: int) -> bytes:
    return format_date_time(second).encode("ascii")


def scope_of(
    transport: Transport, version: str, method: str, target: bytes, headers: Headers
) -> dict[str, Any]:
    """Return ASGI's scope of a request."""
    path, _, query = target.partition(b"?")
    if not path.startswith(b"/") and b"://" in path:  # the absolute form, meant for proxies
        path = b"/" + path.partition(b"://")[2].partition(b"/")[2]
    return {
        "type": "http",
        "http_version": version,
        "asgi": {"spec_version": "2.1", "version": "3.0"},
        "method": method,
        "scheme": "http" if transport.is_plain else "https",
        "path": unquote(path.decode("ascii")),
        "raw_path": path,
        "query_string": query,
        "root_path": "",
        "headers": headers,
        "client": transport.client,
        "server": transport.server,
        "state": {ABORT: transport.close, BEGAN: time.perf_counter()},
        "extensions": {},
    }
