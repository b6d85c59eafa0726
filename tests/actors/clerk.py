"""Test actor for the laws of the kernel."""

from typing import Any, NamedTuple

import trio

from sundog.actors.kernel.actor import Actor, Ref, Reply
from sundog.actors.kernel.clock import Event, now_s


class Note(NamedTuple):
    """A message from `sender`, its `number`-th; `does` names what the handler does besides."""

    sender: str
    number: int
    does: str = ""
    request_id: str | None = None


class Clerk(Actor[Any]):
    """Keeps what it handles; does as it is told, and answers with the number."""

    def __init__(self, name: str = "clerk", **options: Any) -> None:
        super().__init__(name, **options)
        self.handled: list[Note] = []
        self.depth = self.most_deep = 0
        self.itself: Ref[Any] | None = None
        self.may_go_on = trio.Event()
        self.later: list[Reply[int]] = []
        self.below: Ref[Any] | None = None

    def handle(self, message: Note) -> Any:
        self.depth += 1
        self.most_deep = max(self.most_deep, self.depth)
        try:
            return self._do(message)
        finally:
            self.depth -= 1

    def _do(self, message: Note) -> Any:
        self.handled.append(message)
        match message.does:
            case "crash":
                raise ZeroDivisionError("a bug")
            case "leave":
                raise SystemExit("a handler wants the program to end")
            case "hold and expect" if self.below is not None:
                self.expect(self.below.request(Note(self.name, message.number, "later")), "below")
                return self._hold(message)
            case "tell yourself" if self.itself is not None:
                for number in range(3):
                    self.itself.tell(Note("itself", number))
            case "hold":
                return self._hold(message)
            case "later":
                self.later.append(Reply())
                return self.later[-1]
            case "schedule":
                self.schedule(now_s() + 0.01, Event.TIMEOUT, Note("timer", message.number))
            case "expect" if self.below is not None:
                self.expect(self.below.request(Note(self.name, message.number, "later")), "below")
        return message.number

    async def _hold(self, message: Note) -> int:
        await self.may_go_on.wait()
        return message.number

    @property
    def numbers(self) -> list[tuple[str, int]]:
        return [(note.sender, note.number) for note in self.handled]


def leaves(error: BaseException) -> list[BaseException]:
    """The errors in a tree of groups."""
    if not isinstance(error, BaseExceptionGroup):
        return [error]
    return [leaf for part in error.exceptions for leaf in leaves(part)]
