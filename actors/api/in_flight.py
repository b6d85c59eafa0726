"""AsyncLLM as routes use it, unfinished answers, and operators' control of them."""

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
    """Interface of AsyncLLM for routes."""

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
"""Number of requests to remember with their keys; larger than the number that the live page can show."""
CHOICE = re.compile(r"^\d+_")
"""Beginning of a choice's id, before that of its request."""
RETRY_AFTER_S = 1.0
"""Seconds for Retry-After of a stopping server, by which time load balancers have noticed."""


@dataclass(slots=True)
class AnswersInFlight:
    """Unfinished answers by the ids that their clients see, with the engine's requests for each.

    While paused, new ones wait at the gate, as in vLLM. It is the AnswerControl of its process.
    """

    _llm: LLM
    _requests: dict[str, list[tuple[str, ...]]] = field(default_factory=dict)
    _may_pass: trio.Event | None = None
    """Event that lets held requests pass; None while not paused."""
    _is_empty: trio.Event = field(default_factory=trio.Event)
    num_held: int = 0
    """Number of requests that wait at the gate."""
    is_closed: bool = False
    """Whether the server is shutting down: running requests finish, new ones are refused."""
    _owners: "OrderedDict[str, str]" = field(default_factory=OrderedDict)
    """Digest of the key of each of the latest requests that had one."""

    def begin(self, answer_id: str, request_ids: tuple[str, ...], owner: str | None = None) -> None:
        """Add an unfinished answer; two may have the same id, chosen by their clients."""
        self._requests.setdefault(answer_id, []).append(request_ids)
        if owner is not None:
            self._owners.update(dict.fromkeys(request_ids, owner))
            while len(self._owners) > MOST_OWNED:
                self._owners.popitem(last=False)

    def is_of(self, owner: str, request_id: str) -> bool:
        """Return whether a request, or the request of a choice, was sent with this key."""
        return owner in (self._owners.get(request_id), self._owners.get(CHOICE.sub("", request_id)))

    def end(self, answer_id: str, request_ids: tuple[str, ...]) -> None:
        """Remove an answer that ended, or whose client left."""
        self._requests[answer_id].remove(request_ids)
        if not self._requests[answer_id]:
            del self._requests[answer_id]
        if not self._requests:
            self._is_empty.set()
            self._is_empty = trio.Event()

    async def num_under_way(self) -> int:
        return sum(map(len, self._requests.values()))

    async def abort(self, answer_ids: tuple[str, ...] | None) -> int:
        """End these answers, or all, as if their clients had left; return their number."""
        chosen = dict.fromkeys(self._requests if answer_ids is None else answer_ids)
        aborted = [request_ids for name in chosen for request_ids in self._requests.get(name, ())]
        for request_ids in aborted:
            for request_id in request_ids:
                self._llm.tell(Cancel(request_id))
        return len(aborted)

    async def until_empty(self) -> None:
        """Wait until no answer is unfinished."""
        while self._requests:
            await self._is_empty.wait()

    @property
    def is_paused(self) -> bool:
        return self._may_pass is not None

    async def hold(self) -> None:
        """Pause: make new requests wait; idempotent."""
        if self._may_pass is None:
            self._may_pass = trio.Event()

    async def release(self) -> None:
        """Resume: let all waiting requests pass."""
        if self._may_pass is not None:
            self._may_pass.set()
            self._may_pass = None

    async def close(self) -> None:
        """Refuse new requests from now on, including those at the gate."""
        self.is_closed = True
        await self.release()

    async def pass_gate(self) -> None:
        """Wait while paused; raises 503 after `close`."""
        self.num_held += 1
        try:
            while self._may_pass is not None:
                await self._may_pass.wait()
        finally:
            self.num_held -= 1
        if self.is_closed:
            raise unavailable("The server is shutting down: retry, another server may answer.", RETRY_AFTER_S)


class AnswerControl(Protocol):
    """Control of answers: abort, pause, resume, wait, count."""

    async def abort(self, answer_ids: tuple[str, ...] | None) -> int:
        """End these answers, or all; return their number."""
        ...

    async def hold(self) -> None: ...

    async def release(self) -> None: ...

    async def until_empty(self) -> None: ...

    async def num_under_way(self) -> int: ...
