"""How many connections an address may have, and what one more is told."""

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio

from actors.api.seats import Full, Seats
from actors.kernel.actor import ActorDied

log = logging.getLogger("sundog.api")

REMARK_EVERY_S = 60.0
FAREWELL_S = 1.0
"""What a client that is turned away has to read why."""
BODY = b'{"error": {"message": "%b", "type": "Too Many Requests", "param": null, "code": 429}}'
ANSWER = (
    b"HTTP/1.1 429 Too Many Requests\r\nContent-Type: application/json\r\nContent-Length: %d\r\n"
    b"Retry-After: 1\r\nConnection: close\r\n\r\n%b"
)


class Addresses:
    """Connections by the address that they come from; `most` None for no limit."""

    def __init__(self, most: int | None, seats: Seats) -> None:
        self._most = most
        self._seats = seats
        self._remark_at_s = float("-inf")

    @asynccontextmanager
    async def entered(self, stream: trio.SocketStream) -> AsyncIterator[bool]:
        """Count a connection while it is open; False if its address has as many as it may."""
        if self._most is None:
            yield True
            return
        address = _address_of(stream)
        try:
            leave = await self._seats.take(f"connections of {address}", self._most)
        except Full:
            self._remark(address)
            yield False
            return
        except ActorDied:  # of a server that ends, and its doors with it
            yield False
            return
        try:
            yield True
        finally:
            leave()

    def _remark(self, address: str) -> None:
        if trio.current_time() >= self._remark_at_s:
            self._remark_at_s = trio.current_time() + REMARK_EVERY_S
            log.warning("%s has %d connections and gets no more: --limit-connections", address, self._most)

    async def turn_away(self, stream: trio.SocketStream, *, tells: bool) -> None:
        """Say why, where the protocol is known to be HTTP, and hang up."""
        text = b"This address has %d connections, as many as it may: close one of them." % (self._most or 0)
        body = BODY % text
        async with stream:
            with trio.move_on_after(FAREWELL_S):
                try:
                    if tells:
                        await stream.send_all(ANSWER % (len(body), body))
                        await stream.send_eof()
                        while await stream.receive_some():
                            pass  # or what it has sent resets the connection, and the answer with it
                except (trio.BrokenResourceError, trio.ClosedResourceError):
                    return


def _address_of(stream: trio.SocketStream) -> str:
    """Where it comes from; nowhere, if it has gone."""
    try:
        return str(stream.socket.getpeername()[0])
    except OSError:
        return ""
