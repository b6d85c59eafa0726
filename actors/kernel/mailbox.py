"""Mailboxes, and addresses of them: a `Ref` is all that actors share."""

from collections import deque
from typing import Generic, NamedTuple, TypeVar

import trio

from sundog.actors.kernel.clock import take_turn, wait_turn
from sundog.actors.kernel.owner import Owner, Watcher
from sundog.actors.kernel.reply import Ask, Reply
from sundog.actors.kernel.tap import Tap

M = TypeVar("M")
M_contra = TypeVar("M_contra", contravariant=True)
Q = TypeVar("Q")
R = TypeVar("R")


class ActorDied(Exception):
    """Raised for a message that will not be handled: its receiver crashed or has ended."""


class MailboxFull(Exception):
    """Raised if a bounded mailbox overflows: requests were not limited where they enter."""


class MailboxStatistics(NamedTuple):
    """Counts of a mailbox; `last_s` is when the last message was taken, on the run's clock."""

    num_handled: int
    num_waiting: int
    most_waiting: int
    last_s: float | None


class Mailbox(Generic[M]):
    """Messages in order of arrival for one owner, and the number of counted callers."""

    __slots__ = (
        "_is_offered",
        "_writers",
        "capacity",
        "is_closed",
        "is_free",
        "last_s",
        "most_waiting",
        "name",
        "num_away",
        "num_callers",
        "num_handled",
        "owner",
        "queue",
        "watchers",
    )

    def __init__(self, name: str, owner: Owner[M], capacity: int | None = None) -> None:
        self.name = name
        self.owner = owner
        self.capacity = capacity
        self.queue: deque[tuple[M, Reply[object] | None]] = deque()
        self.num_callers = 0
        self.num_away = 0
        """Messages sent to an owner in another process that it has not begun to handle."""
        self.watchers: list[Watcher] = []
        self.is_free = False
        """Whether the owner handles a message at once: it runs, handles none, and none waits."""
        self.is_closed = False
        """Whether the owner has stopped taking messages."""
        self.num_handled = 0
        self.most_waiting = 0
        self.last_s = 0.0
        """Time at which the last message was taken; None before."""
        self._writers = trio.lowlevel.ParkingLot()
        self._is_offered = False
        """Whether a writer was woken to use the free room."""

    @property
    def is_full(self) -> bool:
        return self.capacity is not None and len(self.queue) + self.num_away >= self.capacity

    def put(self, message: M, reply: Reply[object] | None = None) -> None:
        """Add a message; a free owner handles it before this returns."""
        if self.is_free:
            return self.owner.receive(message, reply)
        if self.is_closed:
            raise ActorDied(f"{self.name} has ended and cannot take {message!r}")
        if self.is_full:
            raise MailboxFull(f"{self.name} has {self.capacity} unread messages")
        self.queue.append((message, reply))
        if len(self.queue) > self.most_waiting:
            self.most_waiting = len(self.queue)

    async def room(self) -> None:
        """Wait until one more message fits, in order of waiting, or until the mailbox is closed."""
        turn: str | None = None
        while not self.is_closed and (self.is_full or self._is_offered):
            turn = turn or take_turn()
            await self._writers.park()
            self._is_offered = False
        if self.is_closed:
            await wait_turn(turn)

    def offer_room(self) -> None:
        """Wake the task that has waited longest for room, and no other: Trio shuffles tasks that wake
        together.
        """
        if self._writers and not (self.is_full or self._is_offered):
            self._is_offered = True
            self._writers.unpark()

    def take(self) -> tuple[M, Reply[object] | None]:
        """Return the oldest message, with its reply if it was asked."""
        oldest = self.queue.popleft()
        if self.capacity is not None:
            self.offer_room()
            for watcher in self.watchers:
                watcher.taken()
        return oldest

    def hang_up(self) -> None:
        self.num_callers -= 1
        if self.num_callers == 0:
            self.owner.wake()

    def close(self) -> None:
        """Stop handling messages; tasks that wait for an answer get an error."""
        self.is_closed, self.is_free = True, False
        self._writers.unpark_all()
        while self.queue:
            reply = self.queue.popleft()[1]
            if reply is not None:
                reply.fail(ActorDied(f"{self.name} ended before it answered"))
        for watcher in self.watchers:
            watcher.closed()

    def statistics(self) -> MailboxStatistics:
        last_s = self.last_s if self.num_handled else None
        return MailboxStatistics(self.num_handled, len(self.queue), self.most_waiting, last_s)


class Ref(Generic[M_contra]):
    """The address of an actor that handles M, for one named sender, wherever the actor runs.

    A counted Ref keeps its actor alive until `close`. An actor that sends upward, to a listener, has an
    uncounted one, so that no ring of actors keeps itself alive; a message to a listener that has ended is
    dropped.
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
        return self._mailbox.name

    def tell(self, message: M_contra) -> None:
        """Send a message.

        Raises:
            MailboxFull: A bounded mailbox has no room.
            ActorDied: The actor has ended, and the Ref is counted.
        """
        mailbox = self._mailbox
        if mailbox.is_closed and not self._counted:
            return
        if self._tap is not None:
            self._tap(trio.current_time(), self.sender, mailbox.name, message)
        if mailbox.is_free:  # as `put` does it, one call cheaper
            mailbox.owner.receive(message, None)
        else:
            mailbox.put(message)

    def request(self: "Ref[Q]", message: Ask[Q, R]) -> Reply[R]:
        """Send a message, and return the Reply to wait for later. Raises like `tell`."""
        mailbox = self._mailbox
        if self._tap is not None:
            self._tap(trio.current_time(), self.sender, mailbox.name, message)
        reply: Reply[R] = Reply()
        if mailbox.is_free:
            mailbox.owner.receive(message, reply)  # type: ignore[arg-type]  # an Ask[Q, R] is a Q
        else:
            mailbox.put(message, reply)  # type: ignore[arg-type]  # the same
        return reply

    def pass_on(self, message: M_contra, reply: Reply[object]) -> None:
        """Send a message that another actor was asked and does not answer itself. Raises like `tell`."""
        mailbox = self._mailbox
        if self._tap is not None:
            self._tap(trio.current_time(), self.sender, mailbox.name, message)
        if mailbox.is_free:
            mailbox.owner.receive(message, reply)
        else:
            mailbox.put(message, reply)

    async def ask(self: "Ref[Q]", message: Ask[Q, R]) -> R:
        """Send a message and wait for the answer. Always a checkpoint.

        An ask that is cancelled before it has sent its message sends none. After that, the message is handled
        as usual and its answer is dropped. An answer that comes at once is never lost.

        Raises:
            ActorDied: There will be no answer.
        """
        await trio.lowlevel.checkpoint_if_cancelled()
        mailbox = self._mailbox
        if mailbox.capacity is not None:
            await mailbox.room()
        reply = self.request(message)
        if mailbox.capacity is not None:
            mailbox.offer_room()
        if not reply.is_settled:
            return await reply.wait()
        await trio.lowlevel.cancel_shielded_checkpoint()
        return reply.result()

    def close(self) -> None:
        """Hang up; idempotent."""
        if self._open and self._counted:
            self._open = False
            self._mailbox.hang_up()
