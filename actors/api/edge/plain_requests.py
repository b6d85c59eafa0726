"""What one connection reads and writes while its requests are plain (`edge.exchange`)."""

import os
from contextlib import suppress

import trio
from hypercorn.protocol.h2 import H2Protocol
from hypercorn.protocol.h11 import H11Protocol
from hypercorn.trio.tcp_server import MAX_RECV as MOST_EARLY

from actors.api.edge.exchange import Connection, Dates, Exchange
from actors.api.edge.inbox import Inbox
from actors.api.edge.plain_head import Head, read_head


class PlainRequests:
    """Those of one connection, one at a time, and what its client sends before an answer is over."""

    __slots__ = ("_early", "_exchange", "_until_answered", "num_begun")

    def __init__(self) -> None:
        self._exchange: Exchange | None = None
        self.num_begun = 0
        self._early = b""
        self._until_answered: trio.CancelScope | None = None

    @property
    def is_busy(self) -> bool:
        """Whether one is under way."""
        return self._exchange is not None

    def begin(self, connection: Connection, head: Head, inbox: Inbox, dates: Dates) -> Exchange:
        """One is, until it is `answered`."""
        self.num_begun += 1
        self._exchange = Exchange(connection, head.num_body_bytes, inbox, dates)
        return self._exchange

    def head(self, protocol: H11Protocol | H2Protocol | None, most: int, data: bytes) -> Head | None:
        """The head of a plain request; None if h11 is to read it, or has begun to.

        A connection has `most` requests; what speaks its protocol, if it had to be made, counts its own.
        """
        num_begun = self.num_begun
        if protocol is not None:
            if not isinstance(protocol, H11Protocol) or protocol.connection.trailing_data[0]:
                return None
            num_begun = protocol.keep_alive_requests
        return None if num_begun >= most else read_head(data)

    async def receive(self, stream: trio.abc.Stream) -> bytes | None:
        """What the connection has next; None if an answer is over, and the next request was sent early."""
        if not self._early:
            return await received(stream)
        if self._exchange is None:
            data, self._early = self._early, b""
            return data
        with trio.CancelScope() as self._until_answered:
            if len(self._early) < MOST_EARLY:
                return await received(stream)
            await trio.sleep_forever()
        return None

    async def take(self, data: bytes) -> None:
        """Something has come while a request is under way."""
        assert self._exchange is not None
        self._early += await self._exchange.take(data)

    def answered(self, *, may_go_on: bool) -> None:
        """The answer is over; what came early has its turn, unless the connection ends."""
        self._exchange = None
        if not may_go_on:
            self._early = b""
        if self._until_answered is not None:
            self._until_answered.cancel()

    def leave(self) -> None:
        """The client has left."""
        if self._exchange is not None:
            self._exchange.leave()


async def received(stream: trio.abc.Stream) -> bytes:
    """What comes next, empty at the end; raises like `receive_some`, which waits in four functions more."""
    if not isinstance(stream, trio.SocketStream):
        return bytes(await stream.receive_some(MOST_EARLY))
    while True:
        if stream.socket.fileno() < 0:
            raise trio.ClosedResourceError("this socket was closed")
        await trio.lowlevel.wait_readable(stream.socket)
        try:
            return os.read(stream.socket.fileno(), MOST_EARLY)
        except BlockingIOError:
            continue
        except OSError as error:
            raise trio.BrokenResourceError(str(error)) from error


async def written(stream: trio.abc.Stream, lock: trio.Lock, data: bytes) -> bool:
    """Write all, however long it takes; False, which may be the first sign of it, if the client has left."""
    async with lock:
        try:
            with trio.CancelScope(shield=True):
                await stream.send_all(data)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            return False
    return True


async def closed(stream: trio.abc.Stream) -> None:
    """Close it; over TCP its client learns that nothing more comes before what it still sends is refused."""
    if isinstance(stream, trio.SocketStream):
        with suppress(trio.BrokenResourceError, trio.BusyResourceError, trio.ClosedResourceError):
            await stream.send_eof()
    await stream.aclose()
