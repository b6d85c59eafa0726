"""The kernel: an actor owns its state and reads one mailbox; a `Ref` is all that actors share.

Laws: an actor handles one message at a time, in order. `tell` never waits. `ask` waits for room,
then for the answer, and fails at once when nobody will ever answer. A refusal is an answer; an
exception is a crash, which ends the nursery the actor lives in and carries a note with the actor
and its message. An actor ends when its mailbox is empty and everyone who could write to it has
hung up.

A free actor takes its turn at once, in the stack of whoever wrote to it: a hop costs a call, not
a switch of tasks. Its own task is where its crash surfaces, where a handler that waits is waited
for, and where it ends.
"""

from collections import deque
from collections.abc import Callable, Coroutine, Generator
from functools import partial
from typing import Any

import trio
from mypy_extensions import mypyc_attr

from actors.clock import Event, Timer, call_at

Tap = Callable[[float, str, str, Any], None]
"""Sees every message: time on the run's clock, sender, receiver, message."""


class ActorDied(Exception):
    """Nobody will read this message: its receiver crashed or has ended."""


class MailboxFull(Exception):
    """A bounded mailbox overflowed: back-pressure was not counted where requests enter."""


class Reply:
    """An answer that is here or will come. One task may wait for it, or one callback be told."""

    __slots__ = ("_error", "_settled", "_task", "_then", "_value")

    def __init__(self) -> None:
        self._settled = False
        self._value: Any = None
        self._error: BaseException | None = None
        self._task: trio.lowlevel.Task | None = None
        self._then: Callable[[Any, BaseException | None], None] | None = None

    def set(self, value: Any) -> None:
        self._settle(value, None)

    def fail(self, error: BaseException) -> None:
        self._settle(None, error)

    async def wait(self) -> Any:
        if not self._settled:
            self._task = trio.lowlevel.current_task()
            await trio.lowlevel.wait_task_rescheduled(self._abort)
        if self._error is not None:
            raise self._error
        return self._value

    def __await__(self) -> Generator[Any, Any, Any]:
        return self.wait().__await__()

    def then(self, callback: Callable[[Any, BaseException | None], None]) -> None:
        """Call back with the value or the error, now or when it comes."""
        if self._settled:
            callback(self._value, self._error)
        else:
            self._then = callback

    def pass_on(self, waiting: "Reply") -> None:
        """Settle `waiting` with this answer, now or when it comes."""
        self.then(waiting._settle)

    def _settle(self, value: Any, error: BaseException | None) -> None:
        self._settled, self._value, self._error = True, value, error
        if self._then is not None:
            self._then(value, error)
        if self._task is not None:
            trio.lowlevel.reschedule(self._task)
            self._task = None

    def _abort(self, _raise_cancel: object) -> trio.lowlevel.Abort:
        self._task = None
        return trio.lowlevel.Abort.SUCCEEDED


Receive = Callable[[Any, Reply | None], None]
"""Takes a message, and where its answer goes if one is waited for."""


class Mailbox:
    """Messages in order of arrival, for one reader, and how many callers could still add more."""

    __slots__ = ("_writers", "capacity", "closed", "end", "letters", "num_callers", "owner", "reader")

    def __init__(self, owner: str, capacity: int | None = None) -> None:
        self.owner = owner
        self.capacity = capacity
        self.letters: deque[tuple[Any, Reply | None]] = deque()
        self.num_callers = 0
        self.closed = False
        self.reader: Receive | None = None
        """The owner's way to take a message at once, while it is free to."""
        self.end: Callable[[], None] | None = None
        """Tells the owner that everyone has hung up."""
        self._writers = trio.lowlevel.ParkingLot()

    @property
    def is_full(self) -> bool:
        return self.capacity is not None and len(self.letters) >= self.capacity

    @property
    def hung_up(self) -> bool:
        """Whether nobody who counts as a caller is left."""
        return self.num_callers == 0

    def put(self, message: Any, reply: Reply | None = None) -> None:
        """Leave a message, which a free owner handles before this returns."""
        if self.reader is not None:
            return self.reader(message, reply)
        if self.closed:
            raise ActorDied(f"{self.owner} has ended and cannot take {message!r}")
        if self.is_full:
            raise MailboxFull(f"{self.owner} has {self.capacity} unread messages")
        self.letters.append((message, reply))

    async def room(self) -> None:
        """Wait until one more message fits."""
        while self.is_full and not self.closed:
            await self._writers.park()

    def take(self) -> tuple[Any, Reply | None]:
        if self.capacity is not None:
            self._writers.unpark_all()
        return self.letters.popleft()

    def hang_up(self) -> None:
        self.num_callers -= 1
        if self.num_callers == 0 and self.end is not None:
            self.end()

    def close(self) -> None:
        """Nobody reads any more: whoever waits for an answer is told so."""
        self.closed = True
        self.reader = None
        self._writers.unpark_all()
        while self.letters:
            reply = self.letters.popleft()[1]
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
        self._mailbox.put(message)

    def request(self, message: Any) -> Reply:
        """Leave a message whose answer can be waited for later. Raises like `tell`."""
        if self._tap is not None:
            self._tap(trio.current_time(), self.sender, self._mailbox.owner, message)
        reply = Reply()
        self._mailbox.put(message, reply)
        return reply

    async def ask(self, message: Any) -> Any:
        """Leave a message and wait for the answer. Raises ActorDied if none will come."""
        if self._mailbox.is_full:
            await self._mailbox.room()
        return await self.request(message).wait()

    def close(self) -> None:
        """Hang up; harmless when repeated."""
        if self._open and self._counted:
            self._open = False
            self._mailbox.hang_up()


@mypyc_attr(allow_interpreted_subclasses=True)
class Actor:
    """State with one owner. A subclass overrides `handle`, and if need be `opened` and `closed`."""

    def __init__(self, name: str, *, capacity: int | None = None, tap: Tap | None = None) -> None:
        self.name = name
        self.mailbox = Mailbox(name, capacity)
        self._tap = tap
        self._current: Any = None
        self._reply: Reply | None = None
        self._waiting: Coroutine[Any, Any, Any] | None = None
        self._crash: BaseException | None = None
        self._task: trio.lowlevel.Task | None = None

    def ref(self, sender: str, *, counted: bool = True) -> Ref:
        """An address of this actor for `sender`, from whom it is counted or not."""
        return Ref(self.mailbox, sender, self._tap, counted=counted)

    async def opened(self) -> None:
        """Before the first message: whoever starts the actor waits for this."""

    def handle(self, message: Any) -> Any:
        """The answer to one message, None to a tell; a Reply if it comes later or from another.

        May be `async` if it must wait: messages queue until it has answered.
        """
        raise NotImplementedError(f"{self.name} does not understand {message!r}")

    async def closed(self) -> None:
        """After the last message, unless the actor crashed: hang up on those below."""

    @property
    def idle(self) -> bool:
        """Whether the actor may end when all have hung up; False while it owes something."""
        return True

    def expect(self, reply: Reply, sender: str) -> None:
        """The answer of `sender` comes as a message; if none will come, that is a crash."""
        reply.then(self._hear if self._tap is None else partial(self._overhear, sender))

    def remind(self, time_s: float, event: Event, message: Any) -> Timer:
        """Have `message` handled at an instant of the run's clock, unless the timer is stopped."""
        return call_at(time_s, event, self.name, lambda: self._hear(message, None))

    def _hear(self, message: Any, error: BaseException | None) -> None:
        if error is not None:
            self._crash = error
            self._wake()
        elif not self.mailbox.closed:
            self.mailbox.put(message)

    def _overhear(self, sender: str, message: Any, error: BaseException | None) -> None:
        if error is None and self._tap is not None:
            self._tap(trio.current_time(), sender, self.name, message)
        self._hear(message, error)

    def _receive(self, message: Any, reply: Reply | None) -> None:
        """Handle a message, and those that come meanwhile, until a handler has to wait."""
        mailbox = self.mailbox
        mailbox.reader = None
        try:
            while True:
                self._current, self._reply = message, reply
                answer = self.handle(message)
                if answer is None or isinstance(answer, Reply):
                    self._answer(answer)
                elif isinstance(answer, Coroutine):
                    self._waiting = answer
                    return self._wake()
                else:
                    self._answer(answer)
                if not mailbox.letters:
                    break
                message, reply = mailbox.take()
        except Exception as error:
            self._crash = error
            return self._wake()
        self._rest()

    def _answer(self, answer: Any) -> None:
        """Give the current message's answer to whoever waits for it."""
        reply = self._reply
        self._current = self._reply = None
        if reply is None:
            return
        if isinstance(answer, Reply):
            answer.pass_on(reply)
        else:
            reply.set(answer)

    def _rest(self) -> None:
        """Go on with what has come meanwhile, or be free for the next message."""
        mailbox = self.mailbox
        if mailbox.letters:
            return self._receive(*mailbox.take())
        mailbox.reader = self._receive
        if mailbox.num_callers == 0 and self.idle:
            self._wake()

    async def run(self) -> None:
        """Until all have hung up: wait for what a handler waits for, and raise what it raised."""
        self.mailbox.end = self._wake
        self._rest()
        while not (self.mailbox.reader is not None and self.mailbox.hung_up and self.idle):
            if self._crash is not None:
                raise self._crash
            if self._waiting is not None:
                waiting, self._waiting = self._waiting, None
                self._answer(await waiting)
                self._rest()
            else:
                self._task = trio.lowlevel.current_task()
                await trio.lowlevel.wait_task_rescheduled(self._forget_task)

    def _wake(self) -> None:
        if self._task is not None:
            trio.lowlevel.reschedule(self._task)
            self._task = None

    def _forget_task(self, _raise_cancel: object) -> trio.lowlevel.Abort:
        self._task = None
        return trio.lowlevel.Abort.SUCCEEDED

    async def live(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """The actor's whole life, as a task: `await nursery.start(actor.live, name=actor.name)`."""
        try:
            await self.opened()
            task_status.started()
            await self.run()
            await self.closed()
        except Exception as error:
            doing = "between messages" if self._current is None else repr(self._current)
            error.add_note(f"in actor {self.name}, handling {doing[:500]}")
            raise
        finally:
            if self._waiting is not None:
                self._waiting.close()
            if self._reply is not None:
                self._reply.fail(ActorDied(f"{self.name} crashed before it answered"))
            self.mailbox.close()
