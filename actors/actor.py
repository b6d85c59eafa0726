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

from collections.abc import Coroutine
from functools import partial
from typing import Generic, Never, NoReturn, TypeVar, cast

import trio
from mypy_extensions import mypyc_attr

from actors.clock import Event, Timer, call_at
from actors.mailbox import ActorDied, Mailbox, MailboxFull, Ref, Tap
from actors.reply import Answered, Reply, answer

__all__ = ["Actor", "ActorDied", "Answered", "Handled", "MailboxFull", "Ref", "Reply", "Tap", "answer"]

M_contra = TypeVar("M_contra", contravariant=True)

Handled = Answered | Coroutine[object, object, None] | None
"""What handling a message gives: an answer, or nothing for a message that was told."""


@mypyc_attr(allow_interpreted_subclasses=True)
class Actor(Generic[M_contra]):
    """State with one owner, who understands the messages M.

    A subclass overrides `handle`, and if need be `opened` and `closed`.
    """

    def __init__(self, name: str, *, capacity: int | None = None, tap: Tap | None = None) -> None:
        self.name = name
        self.mailbox: Mailbox[M_contra] = Mailbox(name, capacity)
        self._tap = tap
        self._current: object = None
        self._reply: Reply[object] | None = None
        self._waiting: Coroutine[object, object, object] | None = None
        self._crash: BaseException | None = None
        self._task: trio.lowlevel.Task | None = None

    def ref(self, sender: str, *, counted: bool = True) -> Ref[M_contra]:
        """An address of this actor for `sender`, from whom it is counted or not."""
        return Ref(self.mailbox, sender, self._tap, counted=counted)

    async def opened(self) -> None:
        """Before the first message: whoever starts the actor waits for this."""

    def handle(self, message: M_contra) -> Handled:
        """One message: a `match` with a method per type, which ends with `self.unknown(message)`.

        What is asked returns `answer(message, …)`: with the answer itself, with a Reply if it comes
        later or from another, or with a coroutine if the actor must wait for it; then messages
        queue until it has answered.
        """
        raise NotImplementedError(f"{self.name} does not understand {message!r}")

    def unknown(self, message: Never) -> NoReturn:
        """The last case of `handle`: a type checker proves that it is never reached."""
        raise NotImplementedError(f"{self.name} does not understand {message!r}")

    async def closed(self) -> None:
        """After the last message, unless the actor crashed: hang up on those below."""

    @property
    def idle(self) -> bool:
        """Whether the actor may end when all have hung up; False while it owes something."""
        return True

    def expect(self, reply: Reply[M_contra], sender: str) -> None:
        """The answer of `sender` comes as a message; if none will come, that is a crash."""
        reply.then(self._hear if self._tap is None else partial(self._hear_tapped, sender))

    def schedule(self, time_s: float, event: Event, message: M_contra) -> Timer:
        """Have `message` handled at an instant of the run's clock, unless the timer is stopped."""
        return call_at(time_s, event, self.name, lambda: self._hear(message, None))

    def _hear(self, message: M_contra | None, error: BaseException | None) -> None:
        if error is not None:
            self._crash = error
            self._wake()
        elif not self.mailbox.closed:
            self.mailbox.put(cast(M_contra, message))

    def _hear_tapped(self, sender: str, message: M_contra | None, error: BaseException | None) -> None:
        if error is None and self._tap is not None:
            self._tap(trio.current_time(), sender, self.name, message)
        self._hear(message, error)

    def _receive(self, message: M_contra, reply: Reply[object] | None) -> None:
        """Handle a message, and those that come meanwhile, until a handler has to wait."""
        mailbox = self.mailbox
        mailbox.reader = None
        try:
            while True:
                self._current, self._reply = message, reply
                given: object = self.handle(message)
                if given is None or isinstance(given, Reply):
                    self._answer(given)
                elif isinstance(given, Coroutine):
                    self._waiting = given
                    return self._wake()
                else:
                    self._answer(given)
                if not mailbox.queue:
                    break
                message, reply = mailbox.take()
        except Exception as error:
            self._crash = error
            return self._wake()
        self._rest()

    def _answer(self, given: object) -> None:
        """Give the current message's answer to whoever waits for it."""
        reply = self._reply
        self._current = self._reply = None
        if reply is None:
            return
        if isinstance(given, Reply):
            given.pass_on(reply)
        else:
            reply.set(given)

    def _rest(self) -> None:
        """Go on with what has come meanwhile, or be free for the next message."""
        mailbox = self.mailbox
        if mailbox.queue:
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
