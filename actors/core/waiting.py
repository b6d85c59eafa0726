"""The queue of requests that wait, in the order a policy gives them."""

import heapq
from collections.abc import Iterator
from typing import Any

from actors.core.policies.policy import Policy
from actors.core.request import Request


class WaitingQueue:
    """A heap by (rank, turn); a request that left is skipped when it surfaces. O(log n)."""

    __slots__ = ("_entries", "_heap", "_policy", "_turn_back", "_turn_front")

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._heap: list[tuple[Any, int, Request]] = []
        self._entries: dict[str, tuple[Any, int, Request]] = {}
        self._turn_back = 0
        self._turn_front = 0

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Request]:
        """Everyone who waits, the next one first. O(n log n)."""
        return (request for _, _, request in sorted(self._entries.values()))

    def push(self, request: Request) -> None:
        """A request arrives: behind those of equal rank."""
        self._turn_back += 1
        self._push(request, self._turn_back)

    def put_back(self, request: Request) -> None:
        """A request returns: in front of those of equal rank, if the policy says so."""
        if not self._policy.returns_to_front:
            return self.push(request)
        self._turn_front -= 1
        self._push(request, self._turn_front)

    def peek(self) -> Request:
        """Who is next. The queue is not empty."""
        heap, entries = self._heap, self._entries
        while entries.get(heap[0][2].request_id) is not heap[0]:
            heapq.heappop(heap)
        return heap[0][2]

    def discard(self, request: Request) -> None:
        """The request waits no longer, if it did."""
        self._entries.pop(request.request_id, None)

    def _push(self, request: Request, turn: int) -> None:
        entry = (self._policy.rank(request), turn, request)
        self._entries[request.request_id] = entry
        heapq.heappush(self._heap, entry)
