"""Streamed answers over HTTP/1.1: what all of them have new is written in one pass.

Each piece of a body that goes through Quart costs a generator, an event and a task that wakes. Once the head
is out, HTTP/1.1 adds only a length to a piece. So one task, `WritePass`, frames and writes what every stream
has, one write a connection, and the stream's own task sleeps until its end. Laws:

- A stream's bytes are those that would have gone through Quart.
- First tokens go before others: their clients wait for all that was computed before, the others for a step.
- A slow reader holds up nothing. What a socket does not take is left to the stream's own task, and what comes
  meanwhile merges in its feed.
"""

from collections import deque
from collections.abc import Callable
from typing import Protocol

import trio

AT_A_TIME = 64
"""Streams that are written before other tasks have their turn: about a millisecond of them."""
LAST_CHUNK = b"0\r\n\r\n"


class Feed(Protocol):
    """A body that comes piece by piece, and whose writer never waits for its reader."""

    is_over: bool
    """True once all of it has been taken."""

    def watch(self, on_unread: Callable[[], None]) -> None:
        """Have this called whenever there is something to take; at once if there is."""
        ...

    def take(self) -> bytes:
        """Return what is new; empty if nothing is. Never raises."""
        ...


class Writer(Protocol):
    """The connection that a stream is written to."""

    def write_now(self, data: bytes) -> int:
        """Return the number of bytes that went out without waiting; errors are left to `write`."""
        ...

    async def write(self, data: bytes) -> None:
        """Write all, however long it takes; a connection that has ended takes everything."""
        ...


def chunk_of(data: bytes) -> bytes:
    """Return `data` as a chunk of HTTP/1.1."""
    return b"%x\r\n%b\r\n" % (len(data), data)


class WritePass:
    """The task that writes for all streams of a server: `run` it."""

    def __init__(self) -> None:
        self._first: deque[StreamedBody] = deque()
        self._due: deque[StreamedBody] = deque()
        self._has_some = trio.Event()

    def add(self, body: "StreamedBody") -> None:
        """Have a stream written that has something new."""
        (self._due if body.has_begun else self._first).append(body)
        self._has_some.set()

    async def run(self) -> None:
        """Write what streams have until cancelled."""
        first, due = self._first, self._due
        while True:
            if not (first or due):
                self._has_some = trio.Event()
                await self._has_some.wait()
            for _ in range(min(len(first) + len(due), AT_A_TIME)):
                (first or due).popleft().write()
            await trio.lowlevel.checkpoint()


class StreamedBody:
    """The body of one streamed answer in HTTP/1.1's chunks."""

    def __init__(self, writer: Writer, writes: WritePass, feed: Feed) -> None:
        self._writer, self._writes, self._feed = writer, writes, feed
        self._wake = trio.Event()
        self._rest = b""
        """The part of a chunk that the socket did not take at once."""
        self.has_begun = False
        """True once something of it has been written."""
        self._is_with_task = False
        """True while its own task writes, and after its end: the pass has nothing to do with it then."""

    async def run(self) -> None:
        """Return when the whole feed and the last chunk have been written."""
        self._feed.watch(self._has_more)
        try:
            while not self._feed.is_over or self._rest:
                await self._wake.wait()
                self._wake = trio.Event()
                if rest := self._rest:
                    self._rest = b""
                    await self._writer.write(rest)
                    self._is_with_task = False
                    self.write()
        finally:
            self._is_with_task = True

    def write(self) -> None:
        """Write what is new, as far as the socket takes it; never waits, never raises."""
        if self._is_with_task:
            return
        data = self._feed.take()
        if not data:
            return
        self.has_begun = True
        chunk = chunk_of(data)
        if self._feed.is_over:
            chunk += LAST_CHUNK
        num_written = self._writer.write_now(chunk)
        self._rest = chunk[num_written:]
        if self._rest or self._feed.is_over:
            self._is_with_task = True
            self._wake.set()

    def _has_more(self) -> None:
        if not self._is_with_task:
            self._writes.add(self)
