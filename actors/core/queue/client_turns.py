"""Work of several clients for one worker: the next is that of the client who waited longest for a turn."""

from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")
MOST_CLIENTS = 1024
"""Clients whose last turn is kept; one that is forgotten is as one that never had a turn."""


class ClientTurns(Generic[T]):
    """Work by client, in order for each of them. O(clients that wait) for a turn."""

    __slots__ = ("_last_turns", "_num_turns", "_waiting")

    def __init__(self) -> None:
        self._waiting: dict[str | None, deque[T]] = {}
        self._last_turns: dict[str | None, int] = {}
        """The number of each client's last turn, the oldest first."""
        self._num_turns = 0

    def put(self, client: str | None, item: T) -> None:
        self._waiting.setdefault(client, deque()).append(item)

    def take(self) -> T | None:
        """Return what is next, and forget it; None if nothing waits."""
        if not self._waiting:
            return None
        client = min(self._waiting, key=lambda each: self._last_turns.get(each, 0))
        item = self._waiting[client].popleft()
        if not self._waiting[client]:
            del self._waiting[client]
        self._num_turns += 1
        self._last_turns.pop(client, None)
        self._last_turns[client] = self._num_turns
        if len(self._last_turns) > MOST_CLIENTS:
            del self._last_turns[next(iter(self._last_turns))]
        return item

    def keep(self, wanted: Callable[[T], bool]) -> None:
        """Forget what is not wanted any more."""
        left = {
            client: deque([each for each in items if wanted(each)]) for client, items in self._waiting.items()
        }
        self._waiting = {client: items for client, items in left.items() if items}
