"""Streamed answers past Quart and Hypercorn: what all of them have new is written in one pass.

Each piece of a body costs an ASGI event, h11's state machine, a lock and a cancel scope, and each stream
a task that wakes for it. Once an answer's headers are out, all that HTTP/1.1 adds to a piece is its length:
so one task, `WritePass`, frames and writes what every stream has, one write a connection, and the stream's
own task sleeps until its end. Laws:

- A stream's bytes are those that would have gone through Hypercorn.
- First tokens go before others: their clients wait for all that was computed before, the others for a step.
- Nobody waits for a reader. What its socket does not take is left to the stream's own task, and what comes
  meanwhile merges in its feed: it costs memory for the text alone.
- Everything else stays as it is: the app sees the request's beginning and end, a client that leaves cancels
  the stream's task, and shutdown waits for it.

A connection offers itself in the ASGI scope's state; where it does not (TLS, HTTP/2, other servers), the
body goes the usual way.
"""

import logging
from collections import deque
from collections.abc import Callable
from typing import Protocol

import trio

from actors.api.edge.response import Feed

log = logging.getLogger("sundog.api")

DIRECT, ABORT = "sundog.direct", "sundog.abort"
"""Its name there, and that of what ends the connection."""
AT_A_TIME = 64
"""Streams that are written before other tasks have their turn: about a millisecond of them."""


class Connection(Protocol):
    """What is written to."""

    def write_now(self, data: bytes) -> int:
        """The number of bytes that went out without waiting; errors are left to `write`."""
        ...

    async def write(self, data: bytes) -> None:
        """Write all, however long it takes; a connection that has ended takes everything."""
        ...

    def hold(self, data: bytes) -> None:
        """Write it together with what is written next, or when the answer is over."""
        ...

    def abort(self) -> None:
        """End it at once."""
        ...


class WritePass:
    """The task that writes for all streams of a server: `run` it."""

    def __init__(self) -> None:
        self._first: deque[Body] = deque()
        self._due: deque[Body] = deque()
        self._task: trio.lowlevel.Task | None = None

    def add(self, body: "Body") -> None:
        """It has something to write."""
        (self._due if body.has_begun else self._first).append(body)
        if self._task is not None:
            trio.lowlevel.reschedule(self._task)
            self._task = None

    async def run(self) -> None:
        """For ever."""
        while True:
            first, due = self._first, self._due
            if not (first or due):
                self._task = trio.lowlevel.current_task()
                await trio.lowlevel.wait_task_rescheduled(self._abort)
            for _ in range(min(len(first) + len(due), AT_A_TIME)):
                (first or due).popleft().write()
            await trio.lowlevel.checkpoint()

    def _abort(self, _raise_cancel: object) -> trio.lowlevel.Abort:
        self._task = None
        return trio.lowlevel.Abort.SUCCEEDED


class Body:
    """The body of one answer in HTTP/1.1's chunks."""

    __slots__ = ("_connection", "_feed", "_is_with_task", "_rest", "_task", "_writes", "has_begun")

    def __init__(self, connection: Connection, writes: WritePass, feed: Feed) -> None:
        self._connection, self._writes, self._feed = connection, writes, feed
        self._task: trio.lowlevel.Task | None = None
        self._rest = b""
        self.has_begun = False
        """Whether anything of it has been written."""
        self._is_with_task = False
        """Whether its own task writes, or has ended, and the pass has nothing to do with it."""

    async def run(self) -> None:
        """Until all of the feed has been written, but for its end, which the connection holds."""
        self._feed.watch(self._has_more)
        try:
            while not self._feed.is_over or self._rest:
                if self._rest:
                    self._is_with_task = True
                    await self._connection.write(self._rest)
                    self._rest, self._is_with_task = b"", False
                    self.write()
                else:
                    self._task = trio.lowlevel.current_task()
                    await trio.lowlevel.wait_task_rescheduled(self._abort)
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
        chunk = b"%x\r\n%b\r\n" % (len(data), data)
        if self._feed.is_over:
            self._connection.hold(chunk)
            self._is_with_task = True
            self._wake()
            return
        num_written = self._connection.write_now(chunk)
        if num_written < len(chunk):
            self._rest, self._is_with_task = chunk[num_written:], True
            self._wake()

    def _has_more(self) -> None:
        if not self._is_with_task:
            self._writes.add(self)

    def _wake(self) -> None:
        if self._task is not None:
            trio.lowlevel.reschedule(self._task)
            self._task = None

    def _abort(self, _raise_cancel: object) -> trio.lowlevel.Abort:
        self._task = None
        return trio.lowlevel.Abort.SUCCEEDED


Offer = Callable[[Feed], Body]
"""What a connection offers: a body that is written to it."""
