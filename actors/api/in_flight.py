"""AsyncLLM as routes see it, the answers that are under way, and what operators do with them."""

import re
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Protocol, overload

import trio

from sundog.actors.api.errors import unavailable
from sundog.actors.messages import (
    Accepted,
    Cancel,
    ChangeAdapters,
    CheckHealth,
    Done,
    Drain,
    Freeze,
    Generate,
    Health,
    Refused,
    ResetPrefixCache,
)


class LLM(Protocol):
    """The interface of AsyncLLM for routes: answers, health, resets and drains are asked, cancels told."""

    @overload
    async def ask(self, message: Generate, /) -> Accepted | Refused: ...

    @overload
    async def ask(self, message: CheckHealth, /) -> Health: ...

    @overload
    async def ask(self, message: ResetPrefixCache, /) -> Done | Refused: ...

    @overload
    async def ask(self, message: Freeze, /) -> Done | Refused: ...

    @overload
    async def ask(self, message: ChangeAdapters, /) -> Done | Refused: ...

    @overload
    async def ask(self, message: Drain, /) -> Done | Refused: ...

    def tell(self, message: Cancel, /) -> None: ...


MOST_OWNED = 10_000
"""Requests whose keys are remembered: more than may be shown at a time, running, waiting and ended."""
CHOICE = re.compile(r"^\d+_")
"""The beginning of a choice's id, before that of its request."""
RETRY_AFTER_S = 1.0
"""The seconds after which to ask a stopping server again: by then whatever balances the load knows of it."""


@dataclass(slots=True)
class AnswersInFlight:
    """Answers by the ids that their clients see, with the engine's requests that each is made of.

    While it is paused new ones wait at the gate, as they do in vLLM. It is the AnswerControl of its process.
    """

    _llm: LLM
    _requests: dict[str, list[tuple[str, ...]]] = field(default_factory=dict)
    _may_pass: trio.Event | None = None
    """The event that lets held requests pass; None while nothing is held up."""
    _is_empty: trio.Event = field(default_factory=trio.Event)
    num_held: int = 0
    """The number of requests that wait at the gate."""
    is_closed: bool = False
    """The server is about to end: what is under way finishes, and nothing new is begun."""
    _owners: "OrderedDict[str, str]" = field(default_factory=OrderedDict)
    """The key's digest of each of the latest requests that came with one."""

    def begin(self, answer_id: str, request_ids: tuple[str, ...], owner: str | None = None) -> None:
        """An answer is under way; two may have the id that their clients chose."""
        self._requests.setdefault(answer_id, []).append(request_ids)
        if owner is not None:
            self._owners.update(dict.fromkeys(request_ids, owner))
            while len(self._owners) > MOST_OWNED:
                self._owners.popitem(last=False)

    def is_of(self, owner: str, request_id: str) -> bool:
        """Return True if a request, or the request that a choice belongs to, came with this key."""
        return owner in (self._owners.get(request_id), self._owners.get(CHOICE.sub("", request_id)))

    def end(self, answer_id: str, request_ids: tuple[str, ...]) -> None:
        """Note that an answer is over, or that its client has left."""
        self._requests[answer_id].remove(request_ids)
        if not self._requests[answer_id]:
            del self._requests[answer_id]
        if not self._requests:
            self._is_empty.set()
            self._is_empty = trio.Event()

    async def num_under_way(self) -> int:
        return sum(map(len, self._requests.values()))

    async def abort(self, answer_ids: tuple[str, ...] | None) -> int:
        """End these answers, or all, as if their clients had left; returns how many there were."""
        chosen = dict.fromkeys(self._requests if answer_ids is None else answer_ids)
        aborted = [request_ids for name in chosen for request_ids in self._requests.get(name, ())]
        for request_ids in aborted:
            for request_id in request_ids:
                self._llm.tell(Cancel(request_id))
        return len(aborted)

    async def until_empty(self) -> None:
        """Wait until none is under way."""
        while self._requests:
            await self._is_empty.wait()

    @property
    def is_paused(self) -> bool:
        return self._may_pass is not None

    async def hold(self) -> None:
        """Hold up new ones; harmless when repeated."""
        if self._may_pass is None:
            self._may_pass = trio.Event()

    async def release(self) -> None:
        """Let all that are held up pass."""
        if self._may_pass is not None:
            self._may_pass.set()
            self._may_pass = None

    async def close(self) -> None:
        """Turn away new requests from now on, those too that are held up."""
        self.is_closed = True
        await self.release()

    async def pass_gate(self) -> None:
        """Wait while it is paused; raises a 503 once it is closed."""
        self.num_held += 1
        try:
            while self._may_pass is not None:
                await self._may_pass.wait()
        finally:
            self.num_held -= 1
        if self.is_closed:
            raise unavailable("The server is about to stop: ask again, another may answer.", RETRY_AFTER_S)


class AnswerControl(Protocol):
    """Ends answers, holds new ones up, lets them pass again, waits, counts."""

    async def abort(self, answer_ids: tuple[str, ...] | None) -> int:
        """End these answers, or all; returns how many there were."""
        ...

    async def hold(self) -> None: ...

    async def release(self) -> None: ...

    async def until_empty(self) -> None: ...

    async def num_under_way(self) -> int: ...
