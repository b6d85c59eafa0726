"""Requests to all running engines of a Router, with one combined answer."""

from collections.abc import Callable, Iterable
from contextlib import suppress

from sundog.actors.kernel.actor import ActorDied, Reply
from sundog.actors.kernel.reply import Reader
from sundog.actors.messages import Done, EngineRefs, Refused


class _Every(Reader):
    """Collector of the engines' answers; settles `reply` when all are there: refused if any was refused."""

    __slots__ = ("_num_waiting", "_refused", "_reply")

    def __init__(self, reply: Reply[Done | Refused], num_waiting: int) -> None:
        self._reply = reply
        self._num_waiting = num_waiting
        self._refused: Refused | None = None

    def take_answer(self, value: object, error: BaseException | None) -> None:
        self._num_waiting -= 1
        if isinstance(value, Refused):
            self._refused = value
        if not self._num_waiting:
            self._reply.set(self._refused or Done())


def ask_all(
    engines: Iterable[EngineRefs | None], ask: Callable[[EngineRefs], Reply[Done | Refused]]
) -> Reply[Done | Refused]:
    """Send a request to every running engine and return one combined reply."""
    reply: Reply[Done | Refused] = Reply()
    asked = []
    for engine in engines:
        if engine is not None:
            with suppress(ActorDied):
                asked.append(ask(engine))
    if not asked:
        reply.set(Done())
    every = _Every(reply, len(asked))
    for asked_reply in asked:
        asked_reply.hand_to(every)
    return reply
