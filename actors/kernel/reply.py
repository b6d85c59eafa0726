"""Replies: a message sent by `ask` names the type of its reply, and gets exactly one, now or later.

The wire from the asking actor to the answering method is type-checked from end to end (`Ask`). A refusal is
an answer.
"""

import logging
from collections.abc import Callable, Coroutine, Generator
from typing import Generic, NewType, NoReturn, Protocol, TypeGuard, TypeVar, cast, overload

import trio
from mypy_extensions import mypyc_attr

from sundog.actors.kernel.clock import take_turn, wait_turn

R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)
R_contra = TypeVar("R_contra", contravariant=True)
M_co = TypeVar("M_co", covariant=True)

log = logging.getLogger("sundog.actors")
FAILED = "the %r of a reply failed"


class Ask(Protocol[M_co, R_contra]):
    """A message of type M that is answered with an R.

    The type is stated by a method that is never called. A base class could not state it: a NamedTuple cannot
    have one, and a dataclass compiled by mypyc no generic one.
    """

    def answered_by(self, answer: R_contra, /) -> M_co: ...


@mypyc_attr(allow_interpreted_subclasses=True)
class Reader:
    """Receiver of one answer: an actor, another Reply, or a callback."""

    __slots__ = ()

    def take_answer(self, value: object, error: BaseException | None) -> None:
        """Take the answer, or the error that came instead."""
        raise NotImplementedError


Taker = Callable[[object, BaseException | None], None]
"""Type of a function that takes an answer. It is made once: a type that is named in a call is made at every
call in plain Python.
"""


class _Callback(Reader):
    __slots__ = ("_call",)

    def __init__(self, call: Taker) -> None:
        self._call = call

    def take_answer(self, value: object, error: BaseException | None) -> None:
        self._call(value, error)

    def __repr__(self) -> str:
        return f"callback {self._call!r}"


class Reply(Reader, Generic[R_co]):
    """Answer that is here or will come: set once, and read by one task or one Reader.

    A second answer, a second waiting task and a second Reader are bugs, and raise.
    """

    __slots__ = ("_error", "_reader", "_task", "_turn", "_value", "is_settled")

    def __init__(self) -> None:
        self.is_settled = False
        self._value: object = None
        self._error: BaseException | None = None
        self._task: trio.lowlevel.Task | None = None
        self._reader: Reader | None = None
        self._turn: str | None = None
        """Place of the waiting task among those that get the same crash."""

    def set(self, value: R_co) -> None:  # type: ignore[misc]  # only its maker, which knows R, sets it
        """Settle the reply with an answer."""
        self._settle(value, None)

    def fail(self, error: BaseException) -> None:
        """Settle the reply with an error in place of an answer."""
        self._settle(None, error)

    async def wait(self) -> R_co:
        """Wait for the answer and return it, or raise the error that came instead. Always a checkpoint."""
        if self.is_settled:
            await trio.lowlevel.checkpoint()
        else:
            if self._task is not None or self._reader is not None:
                self._refuse_reader()
            self._task = trio.lowlevel.current_task()
            await trio.lowlevel.wait_task_rescheduled(self._abort)
            if self._error is not None:
                await wait_turn(self._turn)
        return self.result()

    def __await__(self) -> Generator[object, object, R_co]:
        return self.wait().__await__()

    def result(self) -> R_co:
        """Return the answer, which must have arrived, or raise the error in its place."""
        assert self.is_settled
        if self._error is not None:
            raise self._error
        return cast(R_co, self._value)

    def then(self, callback: Callable[[R_co | None, BaseException | None], None]) -> None:
        """Call back with the answer or the error, now or when it comes.

        A callback has no task to crash in: if it raises, the error is logged and nothing else is affected.
        """
        self.hand_to(_Callback(cast(Taker, callback)))

    def hand_to(self, reader: Reader) -> None:
        """Pass the answer or the error to `reader`, now or when it comes.

        A `reader` that is a settled Reply keeps its own answer.
        """
        if self._task is not None or self._reader is not None:
            self._refuse_reader()
        self._reader = reader
        if self.is_settled:
            try:
                reader.take_answer(self._value, self._error)
            except Exception:
                log.warning(FAILED, reader, exc_info=True)

    def take_answer(self, value: object, error: BaseException | None) -> None:
        """Settle with the answer of another reply, unless settled."""
        if not self.is_settled:
            self._settle(value, error)

    def _settle(self, value: object, error: BaseException | None) -> None:
        if self.is_settled:
            raise RuntimeError(f"a reply is set once: {error or value!r} comes after {self._value!r}")
        self.is_settled, self._value, self._error = True, value, error
        reader = self._reader
        if reader is not None:
            try:
                reader.take_answer(value, error)
            except Exception:
                log.warning(FAILED, reader, exc_info=True)
        elif self._task is not None:
            if error is not None:
                self._turn = take_turn()
            trio.lowlevel.reschedule(self._task)
            self._task = None

    def _refuse_reader(self) -> NoReturn:
        reader = self._reader if self._task is None else f"the task {self._task.name}"
        raise RuntimeError(f"a reply has one reader, and {reader} waits for this one")

    def _abort(self, _raise_cancel: object) -> trio.lowlevel.Abort:
        self._task = None
        return trio.lowlevel.Abort.SUCCEEDED


Waiting = Coroutine[object, object, object]
"""Coroutine of a handler that waits before it answers."""
Answered = NewType("Answered", object)
"""Result of a handler for a message that is asked; made by `answer` alone."""


@overload
def answer(message: Ask[object, R], given: Coroutine[object, object, R | Reply[R]]) -> Answered: ...
@overload
def answer(message: Ask[object, R], given: Reply[R]) -> Answered: ...
@overload
def answer(message: Ask[object, R], given: R) -> Answered: ...
def answer(message: object, given: object) -> Answered:
    """Return the answer to `message`: at once, as a Reply, or by a coroutine that the actor awaits."""
    return given  # type: ignore[return-value]  # what a call of the NewType would return, without the call


def must_wait(given: object) -> TypeGuard[Waiting]:
    """Return whether a result is a coroutine. Looks for a method, since reading the class takes four times as
    long.
    """
    return hasattr(given, "throw")


def discard(given: object) -> None:
    """Drop the result of a handler whose caller has gone."""
    if must_wait(given):
        given.close()
