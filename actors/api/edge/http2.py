"""HTTP/2's answers whose readers stall: their windows are full, and nothing ever opens them again.

The socket's own limit does not see it: the client reads the connection, only not this answer. An answer of
which a client has taken nothing for too long is reset; what else the connection carries goes on.
"""

import logging
from collections.abc import Callable
from contextlib import suppress

import trio
from h2.errors import ErrorCodes
from h2.exceptions import ProtocolError
from hypercorn.events import Closed, RawData
from hypercorn.protocol import ProtocolWrapper
from hypercorn.protocol.h2 import H2Protocol, StreamBuffer
from hypercorn.protocol.h11 import H11Protocol
from hypercorn.trio.worker_context import EventWrapper

log = logging.getLogger("sundog.api")


class Untaken(StreamBuffer):
    """What of one answer waits for its reader, and since when it has taken nothing."""

    since_s: float | None = None

    async def push(self, data: bytes) -> None:
        if self.since_s is None:
            self.since_s = trio.current_time()
        await super().push(data)

    async def pop(self, max_length: int) -> bytes:
        data = await super().pop(max_length)
        if data:
            self.since_s = trio.current_time() if self.buffer else None
        return data


class _Buffers(dict[int, StreamBuffer]):
    """Hypercorn's buffers by stream, each of which knows when it was read."""

    def __setitem__(self, number: int, _: StreamBuffer) -> None:
        super().__setitem__(number, Untaken(EventWrapper))


class Protocol(ProtocolWrapper):
    """The protocol of one connection, which may become HTTP/2 by its first bytes."""

    _protocol: H11Protocol | H2Protocol

    @property
    def protocol(self) -> H11Protocol | H2Protocol:
        return self._protocol

    @protocol.setter
    def protocol(self, protocol: H11Protocol | H2Protocol) -> None:
        self._protocol = protocol
        if isinstance(protocol, H2Protocol):
            protocol.stream_buffers = _Buffers()


class Spoken:
    """What reads a connection's requests that are not plain; made for the first of them."""

    __slots__ = ("_make", "_protocol")

    def __init__(self, make: Callable[[str], Protocol]) -> None:
        self._make = make
        self._protocol: Protocol | None = None

    @property
    def now(self) -> H11Protocol | H2Protocol | None:
        """The protocol that has been needed so far."""
        return None if self._protocol is None else self._protocol.protocol

    def needed(self, name: str = "http/1.1") -> Protocol:
        """The protocol; of this name if there is none yet."""
        if self._protocol is None:
            self._protocol = self._make(name)
        return self._protocol

    async def close(self) -> None:
        """The connection has ended."""
        if self._protocol is not None:
            await self._protocol.handle(Closed())


async def handled(protocol: ProtocolWrapper, data: bytes) -> bool:
    """Let a connection's protocol handle what has come; False if nothing more is to be read."""
    try:
        await protocol.handle(RawData(data))
    except (KeyError, UnicodeDecodeError) as error:
        if not isinstance(http2 := protocol.protocol, H2Protocol):
            raise
        log.info("a client broke the rules of HTTP/2: %r", error)
        for number in [n for n, stream in http2.streams.items() if not hasattr(stream, "scope")]:
            del http2.streams[number]  # it never began, and could not be ended
        return False
    return bool(data)


async def reset_stalled(http2: H2Protocol, after_s: float) -> bool:
    """Reset the answers of which nothing was taken for `after_s` seconds, and tell the app; True if any."""
    last_s, any_stalled = trio.current_time() - after_s, False
    for number, buffer in tuple(http2.stream_buffers.items()):
        if isinstance(buffer, Untaken) and buffer.buffer and (buffer.since_s or last_s) <= last_s:
            any_stalled = True
            with suppress(ProtocolError):
                http2.connection.reset_stream(number, ErrorCodes.CANCEL)
            await http2._close_stream(number)
            await buffer.close()  # wakes what waits for it
            http2.priority.unblock(number)  # Hypercorn's sender drops what it finds closed
            await http2.has_data.set()
    await http2._flush()
    return any_stalled
