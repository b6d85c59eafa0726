"""The kernel: an actor owns its state and reads one mailbox; a `Ref` is all that actors share.

Laws: `tell` never waits. `ask` waits for room, then for the reply, and fails at once when nobody
will ever answer. A refusal is a reply; an exception is a crash, which ends the nursery the actor
lives in and carries a note with the actor and its message. An actor ends when its mailbox is
empty and everyone who could write to it has hung up.
"""

from collections import deque
from collections.abc import Callable
from typing import Any

import trio

Tap = Callable[[float, str, str, Any], None]
"""Sees every message: time on the run's clock, sender, receiver, message."""


class ActorDied(Exception):
    """Nobody will read this message: its receiver crashed or has ended."""


class MailboxFull(Exception):
    """A bounded mailbox overflowed: back-pressure was not counted where requests enter."""


class Reply:
    """One answer that one task waits for."""

    __slots__ = ("_error", "_settled", "_task", "_value", "_waiting")

    def __init__(self) -> None:
        self._settled = False
        self._value: Any = None
        self._error: BaseException | None = None
        self._task: trio.lowlevel.Task | None = None
        self._waiting: Reply | None = None

    def set(self, value: Any) -> None:
        self._value = value
        self._settle()

    def fail(self, error: BaseException) -> None:
        self._error = error
        self._settle()

    async def wait(self) -> Any:
        if not self._settled:
            self._task = trio.lowlevel.current_task()
            await trio.lowlevel.wait_task_rescheduled(self._abort)
        if self._error is not None:
            raise self._error
        return self._value

    def pass_on(self, waiting: "Reply") -> None:
        """Settle `waiting` with this answer, now or when it comes."""
        self._waiting = waiting
        if self._settled:
            self._settle()

    def _settle(self) -> None:
        self._settled = True
        if self._waiting is not None:
            self._waiting._value, self._waiting._error = self._value, self._error
            self._waiting._settle()
        if self._task is not None:
            trio.lowlevel.reschedule(self._task)
            self._task = None

    def _abort(self, _raise_cancel: object) -> trio.lowlevel.Abort:
        self._task = None
        return trio.lowlevel.Abort.SUCCEEDED


class Envelope:
    """A message on its way, and where its answer goes if one is waited for."""

    __slots__ = ("message", "reply", "sender")

    def __init__(self, message: Any, sender: str, reply: Reply | None) -> None:
        self.message = message
        self.sender = sender
        self.reply = reply


class Mailbox:
    """Messages in order of arrival, for one reader, and how many callers could still add more."""

    __slots__ = (
        "_reader", "_writers", "capacity", "closed", "doorbell", "envelopes", "num_callers",
        "owner",
    )  # fmt: skip

    def __init__(self, owner: str, capacity: int | None = None) -> None:
        self.owner = owner
        self.capacity = capacity
        self.doorbell: Callable[[], None] | None = None
        """Rung by every message that arrives while the owner is busy with one and left it on."""
        self.envelopes: deque[Envelope] = deque()
        self.num_callers = 0
        self.closed = False
        self._reader: trio.lowlevel.Task | None = None
        self._writers = trio.lowlevel.ParkingLot()

    @property
    def is_full(self) -> bool:
        return self.capacity is not None and len(self.envelopes) >= self.capacity

    @property
    def hung_up(self) -> bool:
        """Whether nobody who counts as a caller is left."""
        return self.num_callers == 0

    def put(self, envelope: Envelope) -> None:
        if self.closed:
            raise ActorDied(f"{self.owner} has ended and cannot take {envelope.message!r}")
        if self.is_full:
            raise MailboxFull(f"{self.owner} has {self.capacity} unread messages")
        self.envelopes.append(envelope)
        if self._reader is not None:
            self._wake_reader()
        if self.doorbell is not None:
            self.doorbell()

    async def room(self) -> None:
        """Wait until one more message fits."""
        while self.is_full and not self.closed:
            await self._writers.park()

    async def wait(self, *, past_hang_up: bool = False) -> bool:
        """Wait for a message; False if none will come, because every caller has hung up."""
        while not self.envelopes:
            if self.hung_up and not past_hang_up:
                return False
            self._reader = trio.lowlevel.current_task()
            await trio.lowlevel.wait_task_rescheduled(self._forget_reader)
        return True

    def take(self) -> Envelope:
        if self.capacity is not None:
            self._writers.unpark()
        return self.envelopes.popleft()

    def hang_up(self) -> None:
        self.num_callers -= 1
        if self.num_callers == 0 and self._reader is not None:
            self._wake_reader()

    def _wake_reader(self) -> None:
        assert self._reader is not None
        trio.lowlevel.reschedule(self._reader)
        self._reader = None

    def _forget_reader(self, _raise_cancel: object) -> trio.lowlevel.Abort:
        self._reader = None
        return trio.lowlevel.Abort.SUCCEEDED

    def close(self) -> None:
        """Nobody reads any more: whoever waits for an answer is told so."""
        self.closed = True
        self._writers.unpark_all()
        while self.envelopes:
            reply = self.envelopes.popleft().reply
            if reply is not None:
                reply.fail(ActorDied(f"{self.owner} ended before it answered"))


class Ref:
    """The address of an actor, as one named sender holds it.

    Where the actor runs is hidden here. A counted Ref keeps its actor alive until `close`. Who
    talks upward, to a listener, holds an uncounted one, so that no ring keeps itself alive; what
    is told to a listener that has ended is dropped.
    """

    __slots__ = ("_counted", "_mailbox", "_open", "_tap", "sender")

    def __init__(
        self, mailbox: Mailbox, sender: str, tap: Tap | None = None, *, counted: bool = True
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

    def tell(self, message: Any) -> None:
        """Leave a message. Raises MailboxFull, or ActorDied if the receiver was to stay."""
        if self._mailbox.closed and not self._counted:
            return
        if self._tap is not None:
            self._tap(trio.current_time(), self.sender, self._mailbox.owner, message)
        self._mailbox.put(Envelope(message, self.sender, None))

    async def ask(self, message: Any) -> Any:
        """Leave a message and wait for the answer. Raises ActorDied if none will come."""
        return await (await self.request(message)).wait()

    async def request(self, message: Any) -> Reply:
        """Leave a message; the answer can be waited for later."""
        if self._mailbox.is_full:
            await self._mailbox.room()
        if self._tap is not None:
            self._tap(trio.current_time(), self.sender, self._mailbox.owner, message)
        reply = Reply()
        self._mailbox.put(Envelope(message, self.sender, reply))
        return reply

    def close(self) -> None:
        """Hang up; harmless when repeated."""
        if self._open and self._counted:
            self._mailbox.hang_up()
        self._open = False


class Actor:
    """State with one owner. A subclass overrides `handle`, and if need be `opened` and `closed`."""

    def __init__(self, name: str, *, capacity: int | None = None, tap: Tap | None = None) -> None:
        self.name = name
        self.mailbox = Mailbox(name, capacity)
        self._tap = tap
        self._current: Envelope | None = None

    def ref(self, sender: str, *, counted: bool = True) -> Ref:
        """An address of this actor for `sender`, from whom it is counted or not."""
        return Ref(self.mailbox, sender, self._tap, counted=counted)

    async def opened(self) -> None:
        """Before the first message: whoever starts the actor waits for this."""

    async def handle(self, message: Any) -> Any:
        """The answer to one message, None to a tell; a Reply if another actor will give it."""
        raise NotImplementedError(f"{self.name} does not understand {message!r}")

    async def closed(self) -> None:
        """After the last message, unless the actor crashed: hang up on those below."""

    @property
    def idle(self) -> bool:
        """Whether the actor may end when all have hung up; False while it owes something."""
        return True

    async def run(self) -> None:
        """Read the mailbox until it is empty and everyone has hung up."""
        while await self.mailbox.wait(past_hang_up=not self.idle):
            await self.answer(self.mailbox.take())

    async def answer(self, envelope: Envelope) -> None:
        """Handle one message and reply if a reply is waited for."""
        self._current = envelope
        answer = await self.handle(envelope.message)
        self._current = None
        if envelope.reply is not None:
            if isinstance(answer, Reply):
                answer.pass_on(envelope.reply)
            else:
                envelope.reply.set(answer)

    async def live(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """The actor's whole life, as a task: `await nursery.start(actor.live, name=actor.name)`."""
        try:
            await self.opened()
            task_status.started()
            await self.run()
            await self.closed()
        except Exception as error:
            doing = "between messages" if self._current is None else repr(self._current.message)
            error.add_note(f"in actor {self.name}, handling {doing[:500]}")
            raise
        finally:
            if self._current is not None and self._current.reply is not None:
                self._current.reply.fail(ActorDied(f"{self.name} crashed before it answered"))
            self.mailbox.close()
