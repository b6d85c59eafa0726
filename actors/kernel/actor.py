"""The actor: it owns its state and reads one mailbox. `docs/kernel.md` numbers the laws.

A free actor handles its message at once, on its sender's stack: a hop costs a call instead of a switch of
tasks. In its own task a crash is raised, handlers that wait are awaited, and the actor ends.
"""

import logging
from collections.abc import Coroutine
from functools import partial
from typing import Generic, Never, NoReturn, TypeVar

import trio
from mypy_extensions import mypyc_attr

from sundog.actors.kernel.clock import Event, Timer
from sundog.actors.kernel.mailbox import ActorDied, Mailbox, MailboxFull, MailboxStatistics, Ref
from sundog.actors.kernel.owner import MessageTimer, Owner
from sundog.actors.kernel.reply import Answered, Reply, Waiting, answer, discard, must_wait
from sundog.actors.kernel.tap import Tap, guarded

log = logging.getLogger("sundog.actors")

MOST_CHARACTERS = 500


def explain(error: BaseException, actor: str, message: object, seen: MailboxStatistics) -> None:
    """Add a note with actor and message to an error; `message` is None if it occurred between messages."""
    doing = "between messages" if message is None else f"handling {_shown(message)}"
    request_id = getattr(message, "request_id", None)
    of_request = "" if request_id is None else f" of request {request_id}"
    error.add_note(f"in actor {actor}, {doing}{of_request}")
    if seen.num_handled:
        error.add_note(
            f"mailbox of {actor}: {seen.num_handled} taken, {seen.num_waiting} waiting,"
            f" at most {seen.most_waiting} at a time"
        )


def _shown(message: object) -> str:
    """Return a short text of a message; if its repr fails, return another text, so that a crash can be
    reported.
    """
    try:
        return repr(message)[:MOST_CHARACTERS]
    except Exception:
        log.debug("a message of a crash cannot be shown", exc_info=True)
        return f"a {type(message).__name__}"


__all__ = ["Actor", "ActorDied", "Handled", "MailboxFull", "Ref", "Reply", "Tap", "answer"]

M_contra = TypeVar("M_contra", contravariant=True)

Q = TypeVar("Q")
Handled = Answered | Coroutine[object, object, None] | None
"""Result of a handler: an answer, or None for a message without a reply."""


@mypyc_attr(allow_interpreted_subclasses=True)
class Actor(Owner[M_contra], Generic[M_contra]):
    """State with one owner, which handles messages of type M.

    A subclass overrides `handle`, and `opened` and `closed` if necessary.
    """

    def __init__(self, name: str, *, capacity: int | None = None, tap: Tap | None = None) -> None:
        self.name = name
        self.mailbox: Mailbox[M_contra] = Mailbox(name, self, capacity)
        self._tap = guarded(tap)
        self.message: M_contra | None = None
        self._reply: Reply[object] | None = None
        """Reply of the message being handled, or of the last one."""
        self._left: list[Reply[object]] = []
        """Replies that wait for other actors; some may be settled by now."""
        self._room_left = 16
        self._waiting: Waiting | None = None
        self._crash: BaseException | None = None
        """Error that ended the actor. Code that awaits or calls must check `mailbox.is_closed` instead:
        mypyc assumes that a field which was None when compared stays None.
        """
        self._task: trio.lowlevel.Task | None = None

    def ref(self, sender: str, *, counted: bool = True) -> Ref[M_contra]:
        """Return an address of this actor for `sender`; a counted one keeps the actor alive."""
        return Ref(self.mailbox, sender, self._tap, counted=counted)

    async def opened(self) -> None:
        """Prepare for the first message. The start of the actor waits for it."""

    def handle(self, message: M_contra) -> Handled:
        """Handle one message: a `match` with a method per type, and `self.unknown(message)` as the last case.

        For a message that is asked, return `answer(message, …)`: the answer itself, a Reply if the answer
        comes later or from another actor, or a coroutine if the actor must wait for it. Messages queue until
        that coroutine has returned.
        """
        raise NotImplementedError(f"{self.name} does not understand {message!r}")

    def unknown(self, message: Never) -> NoReturn:
        """Fail for a message without a case; a type checker proves that this call is unreachable."""
        raise NotImplementedError(f"{self.name} does not understand {message!r}")

    async def closed(self) -> None:
        """Clean up after the last message, unless the actor crashed: hang up on the actors below."""

    @property
    def idle(self) -> bool:
        """Whether the actor may end once all callers have hung up; False while a reply is pending."""
        return True

    def expect(self, reply: Reply[M_contra], sender: str) -> None:
        """Handle the answer of `sender` as a message; the actor crashes if there will be none."""
        if self._tap is None:
            reply.hand_to(self)
        else:
            reply.then(partial(self._tap_answer, sender))

    def pass_on(self, receiver: Ref[Q], message: Q) -> None:
        """Let another actor answer the message being handled, which it gets with its Reply.

        As with a Reply of the other's, which costs a second one, the caller gets an error if this actor
        crashes before the answer.
        """
        reply, self._reply = self._reply, None
        if reply is None:
            receiver.tell(message)
        else:
            receiver.pass_on(message, reply)
            self._keep_reply(reply)

    def leave_reply(self) -> Reply[object]:
        """Return the reply to the message being handled, for the caller to answer by `take_answer`, now or
        later; the message must be a request.

        As with `pass_on`, the sender gets an error if this actor crashes first, and a later answer is
        ignored.
        """
        reply, self._reply = self._reply, None
        assert reply is not None, "the message was told"
        self._keep_reply(reply)
        return reply

    def schedule(self, time_s: float, event: Event, message: M_contra) -> Timer:
        """Handle `message` at an instant of the run's clock, unless the returned timer is stopped."""
        timer = MessageTimer(self, message)
        clock = self._clock or self.clock
        clock.enter(time_s, event, self.name, timer)
        return timer

    def statistics(self) -> MailboxStatistics:
        """Return the statistics of the mailbox."""
        return self.mailbox.statistics()

    def take_answer(self, value: object, error: BaseException | None) -> None:
        """Handle an expected answer, or crash with the error in its place."""
        if error is None:
            self.tell_self(value)  # type: ignore[arg-type]  # only an M is expected
        elif not self.mailbox.is_closed:
            self._fail(error)

    def _tap_answer(self, sender: str, message: M_contra | None, error: BaseException | None) -> None:
        if error is None and self._tap is not None:
            self._tap(trio.current_time(), sender, self.name, message)
        self.take_answer(message, error)

    def tell_self(self, message: M_contra) -> None:
        """Handle a message from the actor to itself, unless the actor has ended."""
        mailbox = self.mailbox
        if mailbox.is_free:
            self.receive(message, None)
        elif not mailbox.is_closed:
            try:
                mailbox.put(message)
            except MailboxFull as error:
                self._fail(error)

    # --- one message after another ----------------------------------------------------------------

    def receive(self, message: M_contra, reply: Reply[object] | None) -> None:
        """Handle a message and all that arrive meanwhile, until a handler has to wait."""
        mailbox, clock = self.mailbox, self._clock or self.clock  # asking the property is a call a message
        agenda = clock.agenda
        mailbox.is_free = False
        try:
            while True:
                self.message, self._reply = message, reply
                mailbox.num_handled += 1
                mailbox.last_s = clock.now_s() if agenda is None else agenda.time_s
                given: object = self.handle(message)
                reply = self._reply  # None by now if it was passed on
                if mailbox.is_closed:
                    return discard(given)
                if given is None:
                    if reply is not None:
                        reply.set(None)
                elif isinstance(given, Reply):
                    if reply is not None:
                        self._answer_later(reply, given)
                elif must_wait(given):
                    self._waiting = given
                    return self.wake()
                elif reply is not None:
                    reply.take_answer(given, None)  # It may have an error, of one that passed it on.
                if not mailbox.queue:
                    break
                message, reply = mailbox.take()
        except BaseException as error:  # the actor's own task raises it
            return self._fail(error)
        mailbox.is_free = not mailbox.is_closed
        if mailbox.is_free and mailbox.num_callers == 0 and self.idle:
            self.wake()

    def _answer(self, reply: Reply[object], given: object) -> None:
        if isinstance(given, Reply):
            self._answer_later(reply, given)
        else:
            reply.take_answer(given, None)

    def _answer_later(self, reply: Reply[object], given: Reply[object]) -> None:
        given.hand_to(reply)
        self._keep_reply(reply)

    def _keep_reply(self, reply: Reply[object]) -> None:
        """Let a reply fail with this actor, unless it is settled by then."""
        if reply.is_settled:
            return
        if self._room_left == 0:
            self._left = [reply for reply in self._left if not reply.is_settled]
            self._room_left = len(self._left) + 16
        self._room_left -= 1
        self._left.append(reply)

    def _rest(self) -> None:
        if self.mailbox.queue:
            self.receive(*self.mailbox.take())
        else:
            self.mailbox.is_free = not self.mailbox.is_closed

    # --- its own task -----------------------------------------------------------------------------

    async def run(self) -> None:
        """Run until all callers have hung up: await handlers that wait, and raise their errors.

        After the end of this coroutine, for whatever reason, no message is handled.
        """
        try:
            await self._work()
        except Exception as error:
            if error is not self._crash:
                self._explain(error)
            raise
        finally:
            self._cease()
        self.message = None

    async def _work(self) -> None:
        mailbox = self.mailbox
        self._rest()
        while not mailbox.is_closed:
            if self._waiting is not None:
                waiting, self._waiting = self._waiting, None
                given = await waiting
                if not mailbox.is_closed:
                    if self._reply is not None:
                        self._answer(self._reply, given)
                    self._rest()
            elif mailbox.is_free and mailbox.num_callers == 0 and self.idle:
                return
            else:
                self._task = trio.lowlevel.current_task()
                await trio.lowlevel.wait_task_rescheduled(self._forget_task)
        assert self._crash is not None
        raise self._crash

    def wake(self) -> None:
        if self._task is not None:
            trio.lowlevel.reschedule(self._task)
            self._task = None

    def _forget_task(self, _raise_cancel: object) -> trio.lowlevel.Abort:
        self._task = None
        return trio.lowlevel.Abort.SUCCEEDED

    def _fail(self, error: BaseException) -> None:
        """Crash: handle no further message, and raise the error in the actor's own task."""
        if self._crash is None:
            self._explain(error)
            self._crash = error
            self._cease()
            self.wake()

    def _explain(self, error: BaseException) -> None:
        message = None if self.mailbox.is_free else self.message
        explain(error, self.name, message, self.statistics())

    def _cease(self) -> None:
        if not self.mailbox.is_closed:
            self.mailbox.close()
        discard(self._waiting)
        self._waiting = None
        waiting = self._left if self._reply is None else [self._reply, *self._left]
        for reply in waiting:
            if not reply.is_settled:
                reply.fail(ActorDied(f"{self.name} crashed before it answered"))

    async def live(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Run the actor as a task from start to end: `await nursery.start(actor.live, name=actor.name)`."""
        try:
            await self.opened()
            task_status.started()
            await self.run()
            await self.closed()
        except Exception as error:
            if self.message is None:
                self._explain(error)
            raise
        finally:
            self._cease()
