"""How long a user's policy may take to answer, where clients wait for it."""

from collections.abc import Callable
from typing import Protocol, TypeVar

from actors.core.policies.answers import Wrong
from actors.core.policies.read_only import ReadOnlyRequest, ReadOnlyRequests
from actors.core.policies.read_only_view import ReadOnlyView
from actors.core.queue.policy import Rank, Refusal

Answer = TypeVar("Answer")

SLOW_S = 1.0
"""Every stream stands still while a policy thinks."""
MOST_SLOW_CALLS = 3
"""One slow call may be the machine's fault."""


class Shown(Protocol):
    """A user's policy: like a `Policy`, and what it is shown is read-only."""

    def rank(self, request: ReadOnlyRequest, view: ReadOnlyView) -> Rank: ...

    def rank_key(self, request: ReadOnlyRequest, view: ReadOnlyView) -> object: ...

    def urgency(self, request: ReadOnlyRequest, view: ReadOnlyView) -> Rank: ...

    def quota(self, request: ReadOnlyRequest, view: ReadOnlyView) -> int | None: ...

    def refuse(self, request: ReadOnlyRequest, view: ReadOnlyView) -> Refusal | None: ...

    def admitted(self, request: ReadOnlyRequest, view: ReadOnlyView) -> None: ...

    def finished(self, request: ReadOnlyRequest, view: ReadOnlyView) -> None: ...

    def victim(self, running: ReadOnlyRequests, view: ReadOnlyView) -> object: ...


class Patient:
    """Asks another, and raises Wrong when its slow answers have become too many."""

    def __init__(self, policy: Shown, clock: Callable[[], float]) -> None:
        self._policy = policy
        self._clock = clock
        self._num_slow = 0

    def rank(self, request: ReadOnlyRequest, view: ReadOnlyView) -> Rank:
        start_s = self._clock()
        return self._in_time(self._policy.rank(request, view), start_s)

    def rank_key(self, request: ReadOnlyRequest, view: ReadOnlyView) -> object:
        start_s = self._clock()
        return self._in_time(self._policy.rank_key(request, view), start_s)

    def urgency(self, request: ReadOnlyRequest, view: ReadOnlyView) -> Rank:
        start_s = self._clock()
        return self._in_time(self._policy.urgency(request, view), start_s)

    def quota(self, request: ReadOnlyRequest, view: ReadOnlyView) -> int | None:
        start_s = self._clock()
        return self._in_time(self._policy.quota(request, view), start_s)

    def refuse(self, request: ReadOnlyRequest, view: ReadOnlyView) -> Refusal | None:
        start_s = self._clock()
        return self._in_time(self._policy.refuse(request, view), start_s)

    def admitted(self, request: ReadOnlyRequest, view: ReadOnlyView) -> None:
        start_s = self._clock()
        self._policy.admitted(request, view)
        self._in_time(None, start_s)

    def finished(self, request: ReadOnlyRequest, view: ReadOnlyView) -> None:
        start_s = self._clock()
        self._policy.finished(request, view)
        self._in_time(None, start_s)

    def victim(self, running: ReadOnlyRequests, view: ReadOnlyView) -> object:
        start_s = self._clock()
        return self._in_time(self._policy.victim(running, view), start_s)

    def _in_time(self, answer: Answer, start_s: float) -> Answer:
        took_s = self._clock() - start_s
        self._num_slow += took_s > SLOW_S
        if self._num_slow >= MOST_SLOW_CALLS:
            raise Wrong(f"took {took_s:.1f} s, its call number {self._num_slow} of more than {SLOW_S:g} s")
        return answer
