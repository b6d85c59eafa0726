"""Questions and answers: a message names the type of its answer, which is here or will come.

A message that is asked names its answer (`Ask`), so the wire from the one who asks to the
method that answers is checked from end to end. A refusal is an answer.
"""

from collections.abc import Callable, Coroutine, Generator
from typing import Generic, NewType, Protocol, TypeVar, cast, overload

import trio

R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)
R_contra = TypeVar("R_contra", contravariant=True)
M_co = TypeVar("M_co", covariant=True)


class Ask(Protocol[M_co, R_contra]):
    """A message of type M that is answered with an R.

    It says so by one method that nobody calls, and not by a base class: a NamedTuple can have none,
    nor, where mypyc compiles it, can a dataclass have a generic one.
    """

    def answered_by(self, answer: R_contra, /) -> M_co: ...


class Reply(Generic[R_co]):
    """An answer that is here or will come. One task may wait for it, or one callback be told."""

    __slots__ = ("_error", "_settled", "_task", "_then", "_value")

    def __init__(self) -> None:
        self._settled = False
        self._value: object = None
        self._error: BaseException | None = None
        self._task: trio.lowlevel.Task | None = None
        self._then: Callable[[R_co | None, BaseException | None], None] | None = None

    def set(self, value: R_co) -> None:  # type: ignore[misc]  # only its maker sets it, and knows R
        """The answer."""
        self._settle(value, None)

    def fail(self, error: BaseException) -> None:
        """There will be no answer."""
        self._settle(None, error)

    async def wait(self) -> R_co:
        """The answer, or the error that came instead of it."""
        if not self._settled:
            self._task = trio.lowlevel.current_task()
            await trio.lowlevel.wait_task_rescheduled(self._abort)
        if self._error is not None:
            raise self._error
        return cast(R_co, self._value)

    def __await__(self) -> Generator[object, object, R_co]:
        return self.wait().__await__()

    def then(self, callback: Callable[[R_co | None, BaseException | None], None]) -> None:
        """Call back with the answer or the error, now or when it comes."""
        if self._settled:
            callback(cast(R_co, self._value), self._error)
        else:
            self._then = callback

    def pass_on(self, waiting: "Reply[R_co]") -> None:
        """Settle `waiting` with this answer, now or when it comes."""
        self.then(waiting._settle)

    def _settle(self, value: object, error: BaseException | None) -> None:
        self._settled, self._value, self._error = True, value, error
        if self._then is not None:
            self._then(cast(R_co, value), error)
        if self._task is not None:
            trio.lowlevel.reschedule(self._task)
            self._task = None

    def _abort(self, _raise_cancel: object) -> trio.lowlevel.Abort:
        self._task = None
        return trio.lowlevel.Abort.SUCCEEDED


Answered = NewType("Answered", object)
"""What a handler returns for a message that is asked; only `answer` makes one."""


@overload
def answer(message: Ask[object, R], given: Coroutine[object, object, R | Reply[R]]) -> Answered: ...
@overload
def answer(message: Ask[object, R], given: Reply[R]) -> Answered: ...
@overload
def answer(message: Ask[object, R], given: R) -> Answered: ...
def answer(message: object, given: object) -> Answered:
    """The answer to `message`: at once, as a Reply, or by a coroutine that the actor waits for."""
    return Answered(given)
