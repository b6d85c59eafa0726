"""Mailboxes and addresses: a `Ref` is all that actors share, a `Mailbox` all that it leads to."""

from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

import trio

from actors.reply import Ask, Reply

M = TypeVar("M")
M_contra = TypeVar("M_contra", contravariant=True)
Q = TypeVar("Q")
R = TypeVar("R")

Tap = Callable[[float, str, str, object], None]
"""Sees every message: time on the run's clock, sender, receiver, message."""


class ActorDied(Exception):
    """Nobody will read this message: its receiver crashed or has ended."""


class MailboxFull(Exception):
    """A bounded mailbox overflowed: back-pressure was not counted where requests enter."""


class Mailbox(Generic[M]):
    """Messages in order of arrival, for one reader, and how many callers could still add more."""

    __slots__ = ("_writers", "capacity", "closed", "end", "num_callers", "owner", "queue", "reader")

    def __init__(self, owner: str, capacity: int | None = None) -> None:
        self.owner = owner
        self.capacity = capacity
        self.queue: deque[tuple[M, Reply[object] | None]] = deque()
        self.num_callers = 0
        self.closed = False
        self.reader: Callable[[M, Reply[object] | None], None] | None = None
        """The owner's way to take a message at once, while it is free to."""
        self.end: Callable[[], None] | None = None
        """Tells the owner that everyone has hung up."""
        self._writers = trio.lowlevel.ParkingLot()

    @property
    def is_full(self) -> bool:
        return self.capacity is not None and len(self.queue) >= self.capacity

    @property
    def hung_up(self) -> bool:
        """Whether nobody who counts as a caller is left."""
        return self.num_callers == 0

    def put(self, message: M, reply: Reply[object] | None = None) -> None:
        """Leave a message, which a free owner handles before this returns."""
        if self.reader is not None:
            return self.reader(message, reply)
        if self.closed:
            raise ActorDied(f"{self.owner} has ended and cannot take {message!r}")
        if self.is_full:
            raise MailboxFull(f"{self.owner} has {self.capacity} unread messages")
        self.queue.append((message, reply))

    async def room(self) -> None:
        """Wait until one more message fits."""
        while self.is_full and not self.closed:
            await self._writers.park()

    def take(self) -> tuple[M, Reply[object] | None]:
        if self.capacity is not None:
            self._writers.unpark_all()
        return self.queue.popleft()

    def hang_up(self) -> None:
        self.num_callers -= 1
        if self.num_callers == 0 and self.end is not None:
            self.end()

    def close(self) -> None:
        """Nobody reads any more: whoever waits for an answer is told so."""
        self.closed = True
        self.reader = None
        self._writers.unpark_all()
        while self.queue:
            reply = self.queue.popleft()[1]
            if reply is not None:
                reply.fail(ActorDied(f"{self.owner} ended before it answered"))


class Ref(Generic[M_contra]):
    """The address of an actor that understands M, as one named sender holds it.

    Where the actor runs is hidden here. A counted Ref keeps its actor alive until `close`. Who
    talks upward, to a listener, holds an uncounted one, so that no ring keeps itself alive; what
    is told to a listener that has ended is dropped.
    """

    __slots__ = ("_counted", "_mailbox", "_open", "_tap", "sender")

    def __init__(
        self, mailbox: Mailbox[M_contra], sender: str, tap: Tap | None = None, *, counted: bool = True
    ) -> None:
        self._mailbox = mailbox
        self._tap = tap
        self._counted = counted
        self._open = True
        self.sender = sender
        mailbox.num_callers += counted

    @property
    def receiver(self) -> str:
        return self._mailbox.owner

    def tell(self, message: M_contra) -> None:
        """Leave a message. Raises MailboxFull, or ActorDied if the receiver was to stay."""
        if self._mailbox.closed and not self._counted:
            return
        if self._tap is not None:
            self._tap(trio.current_time(), self.sender, self._mailbox.owner, message)
        self._mailbox.put(message)

    def request(self: "Ref[Q]", message: Ask[Q, R]) -> Reply[R]:
        """Leave a message whose answer can be waited for later. Raises like `tell`."""
        if self._tap is not None:
            self._tap(trio.current_time(), self.sender, self._mailbox.owner, message)
        reply: Reply[R] = Reply()
        self._mailbox.put(message, reply)  # type: ignore[arg-type]  # a Ask[Q, R] is a Q
        return reply

    async def ask(self: "Ref[Q]", message: Ask[Q, R]) -> R:
        """Leave a message and wait for the answer. Raises ActorDied if none will come."""
        if self._mailbox.is_full:
            await self._mailbox.room()
        return await self.request(message).wait()

    def close(self) -> None:
        """Hang up; harmless when repeated."""
        if self._open and self._counted:
            self._open = False
            self._mailbox.hang_up()
