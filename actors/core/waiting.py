"""The queue of waiting requests, in the policy's order."""

import heapq
from collections.abc import Iterator

from actors.core.policies.policy import Policy, Rank, defines
from actors.core.request import Request
from actors.core.tenant_service import TenantService
from actors.core.view import View

Entry = tuple[Rank, int, Request]
"""(rank, turn, request): no two have the same turn."""


class WaitingQueue:
    """A heap by (rank, turn); a request that left is skipped when it surfaces. O(log n).

    Under a policy that is dynamic the order is that of the latest `rerank`.
    """

    __slots__ = (
        "_entries",
        "_heap",
        "_keys",
        "_passed",
        "_policy",
        "_ranks",
        "_service",
        "_turn_back",
        "_turn_front",
        "_view",
    )

    def __init__(self, policy: Policy, view: View, service: TenantService | None) -> None:
        self._policy = policy
        self._view = view
        self._service = service
        self._heap: list[Entry] = []
        self._entries: dict[str, Entry] = {}
        self._passed: list[Entry] = []
        has_keys = type(policy).rank_key is not Policy.rank_key
        self._keys: dict[str, object] | None = {} if has_keys else None
        """What decides the rank of each request, where the policy says it."""
        self._turn_back = 0
        self._turn_front = 0
        self._ranks: list[tuple[str, Rank]] | None = [] if defines(policy, "rank") else None
        """What was seen of ranks since they were last told; None where all ranks are the same."""

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Request]:
        """All waiting requests, the next one first. O(n log n)."""
        return (request for _, _, request in sorted(self._entries.values()))

    def push(self, request: Request) -> None:
        """Queue a request that arrives, behind those of equal rank."""
        self._turn_back += 1
        self._push(request, self._turn_back)

    def put_back(self, request: Request) -> None:
        """Queue a request that returns, in front of those of equal rank if the policy says so."""
        if not self._policy.returns_to_front:
            return self.push(request)
        self._turn_front -= 1
        self._push(request, self._turn_front)

    def peek(self) -> Request | None:
        """The next request that is not passed over; None if there is none."""
        heap, entries = self._heap, self._entries
        while heap:
            _, turn, request = heap[0]
            entry = entries.get(request.request_id)
            if entry is not None and entry[1] == turn:
                return request
            heapq.heappop(heap)
        return None

    def pass_over(self) -> None:
        """Skip the next request, which keeps its place, until `rewind`."""
        self._passed.append(heapq.heappop(self._heap))

    def rewind(self) -> None:
        """Look at all requests again."""
        for entry in self._passed:
            heapq.heappush(self._heap, entry)
        self._passed.clear()

    def rerank(self) -> None:
        """Ask a dynamic policy for every rank anew. O(n)"""
        if self._policy.is_dynamic:
            self.rank_anew()

    def rank_anew(self, _reason: object = None) -> None:
        """Ask for every rank anew, even in the middle of `rerank`, when another policy takes over. O(n)"""
        rank, view = self._policy.rank, self._view
        passed = {request.request_id for _, _, request in self._passed}
        keys, ranks = self._keys, dict[object, Rank]()
        for name, (_, turn, request) in self._entries.items():
            key = None if keys is None else keys[name]
            known = ranks.get(key)
            if known is None:
                known = rank(request, view)
                if key is not None:
                    ranks[key] = known
            self._entries[name] = (known, turn, request)
        self._heap = [entry for name, entry in self._entries.items() if name not in passed]
        self._passed = [entry for name, entry in self._entries.items() if name in passed]
        heapq.heapify(self._heap)

    def note_rank(self, request: Request) -> None:
        """Remember the rank of a request, which a dynamic policy may have changed, to be told."""
        if self._ranks is not None and self._policy.is_dynamic:
            self._ranks.append((request.request_id, self._entries[request.request_id][0]))

    def take_ranks(self) -> tuple[tuple[str, Rank], ...]:
        """The ranks of requests that began to wait, were next and lacked something, or were admitted."""
        if not self._ranks:
            return ()
        ranks, self._ranks = self._ranks, []
        return tuple(ranks)

    def discard(self, request: Request) -> None:
        """Remove the request, if it waits."""
        left = self._entries.pop(request.request_id, None)
        if left is not None and self._keys is not None:
            del self._keys[request.request_id]
        if left is not None and self._service is not None:
            self._service.leave(request)

    def _push(self, request: Request, turn: int) -> None:
        request.waiting_since = self._view.step
        request.num_overtakes = 0
        if self._service is not None:
            self._service.enter(request)
        rank = self._policy.rank(request, self._view)
        if self._ranks is not None:
            self._ranks.append((request.request_id, rank))
        if self._keys is not None:
            self._keys[request.request_id] = self._policy.rank_key(request)
        entry = (rank, turn, request)
        self._entries[request.request_id] = entry
        heapq.heappush(self._heap, entry)
