"""Fair turns of several clients at one worker: next is the client whose last turn is longest ago."""

from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")
MOST_CLIENTS = 1024
"""Number of clients whose last turn is kept; a forgotten client counts as new."""


class ClientTurns(Generic[T]):
    """Queues of work by client, first in first out per client. O(waiting clients) per turn."""

    __slots__ = ("_last_turns", "_num_turns", "_waiting")

    def __init__(self) -> None:
        self._waiting: dict[str | None, deque[T]] = {}
        self._last_turns: dict[str | None, int] = {}
        """Number of each client's last turn, oldest first."""
        self._num_turns = 0

    def put(self, client: str | None, item: T) -> None:
        self._waiting.setdefault(client, deque()).append(item)

    def take(self) -> T | None:
        """Remove and return the next work; None if nothing waits."""
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
        """Drop work for which `wanted` returns false."""
        left = {
            client: deque([each for each in items if wanted(each)]) for client, items in self._waiting.items()
        }
        self._waiting = {client: items for client, items in left.items() if items}
