"""A reset of all replicas' prefix caches: one answer of many."""

from collections.abc import Iterable
from contextlib import suppress

from actors.kernel.actor import ActorDied, Reply
from actors.kernel.reply import Reader
from actors.messages import Done, EngineRefs, Refused, ResetPrefixCache


class _Every(Reader):
    """Settles `reply` when all replicas have answered, refused if any has; a lost one has no cache."""

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


def reset_all(reset: ResetPrefixCache, engines: Iterable[EngineRefs | None]) -> Reply[Done | Refused]:
    """Pass a reset on to every engine that is up."""
    reply: Reply[Done | Refused] = Reply()
    asked = []
    for engine in engines:
        if engine is not None:
            with suppress(ActorDied):
                asked.append(engine.kv_cache_manager.request(reset))
    if not asked:
        reply.set(Done())
    every = _Every(reply, len(asked))
    for answer in asked:
        answer.hand_to(every)
    return reply
