"""The queue of waiting requests, in the policy's order."""

import heapq
from collections.abc import Iterator

from actors.core.policies.policy import Policy, Rank, defines, gives_keys
from actors.core.request import Request
from actors.core.tenant_service import TenantService
from actors.core.view import View

Entry = tuple[Rank, int, Request]
"""(rank, turn, request): no two have the same turn."""
Line = list[tuple[int, Request]]
"""A heap of (turn, request)."""


class WaitingQueue:
    """A heap by (rank, turn); a request that left is skipped when it surfaces. O(log n).

    Under a dynamic policy, requests of one key (`Policy.rank_key`) stand in a line by turn, one without a key
    in a line of its own, and the heap holds the first of each line, as ranked after the latest `rerank`.
    """

    __slots__ = (
        "_entries",
        "_has_keys",
        "_heap",
        "_is_stale",
        "_keys",
        "_line_ranks",
        "_lines",
        "_num_policies",
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
        self._is_stale = False
        """Whether the first of each line is to be ranked before the heap is looked at."""
        self._entries: dict[str, Entry] = {}
        self._passed: list[Request] = []
        self._has_keys = gives_keys(policy)
        self._keys: dict[str, object] = {}
        self._lines: dict[object, Line] = {}
        self._line_ranks: dict[object, Rank] = {}
        """What the first of each line was ranked last."""
        self._num_policies = 1
        """How many have ranked the queue, one after another."""
        self._turn_back = 0
        self._turn_front = 0
        self._ranks: list[tuple[str, Rank]] | None = [] if defines(policy, "rank") else None
        """What was seen of ranks since they were last told; None where all ranks are the same."""

    @property
    def _is_dynamic(self) -> bool:
        """Whether the order may change while requests wait; without ranks it is that of arrival."""
        return self._ranks is not None and self._policy.is_dynamic

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Request]:
        """All waiting requests, the next one first, each ranked like the first of its line. O(n log n)."""
        entries, ranks = list(self._entries.values()), self._line_ranks
        if self._has_keys:
            keys = self._keys
            entries = [(ranks.get(keys[r.request_id], rank), turn, r) for rank, turn, r in entries]
        return iter([request for _, _, request in sorted(entries)])

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
        while self._is_stale:
            self._rank_lines()
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
        request = heapq.heappop(self._heap)[2]
        self._passed.append(request)
        if self._is_dynamic:
            key = self._keys[request.request_id]
            heapq.heappop(self._lines[key])
            following = self._rank_first(key)
            if following is not None:
                heapq.heappush(self._heap, following)

    def rewind(self) -> None:
        """Look at all requests again."""
        for request in self._passed:
            self._enter(self._entries[request.request_id])
        self._passed.clear()

    def rerank(self) -> None:
        """Ask a dynamic policy that has ranks anew before the next request is named. O(lines)"""
        if self._is_dynamic:
            self._is_stale = True

    def _rank_lines(self) -> None:
        """Rank the first request of each line. Another policy may take over meanwhile."""
        self._is_stale = False
        heap, num_policies = list[Entry](), self._num_policies
        for key in list(self._lines):
            first = self._rank_first(key)
            if self._num_policies != num_policies:
                return
            if first is not None:
                heap.append(first)
        heapq.heapify(heap)
        self._heap = heap

    def _rank_first(self, key: object) -> Entry | None:
        """Rank the first request of a line, which goes when nobody is left in it."""
        line = self._lines[key]
        while line:
            turn, request = line[0]
            entry = self._entries.get(request.request_id)
            if entry is not None and entry[1] == turn:
                rank = self._policy.rank(request, self._view)
                entry = self._entries[request.request_id] = (rank, turn, request)
                self._line_ranks[key] = rank
                return entry
            heapq.heappop(line)
        del self._lines[key]
        self._line_ranks.pop(key, None)
        return None

    def rank_anew(self, _reason: object = None) -> None:
        """Ask for every rank and key: another policy takes over, perhaps in the middle of an answer. O(n)"""
        self._num_policies += 1
        self._has_keys = gives_keys(self._policy)
        self._heap, self._is_stale = [], False
        for records in (self._keys, self._lines, self._line_ranks):
            records.clear()
        for name, (_, turn, request) in list(self._entries.items()):
            entry = self._entries[name] = (self._policy.rank(request, self._view), turn, request)
            self._find_key(request)
            if request not in self._passed:
                self._enter(entry)

    def renew(self, request: Request) -> None:
        """A waiting request was given a token by a step from before it waited: its key may be another."""
        if self._has_keys and request.request_id in self._keys:
            entry, line = self._entries[request.request_id], self._lines[self._keys[request.request_id]]
            line.remove(entry[1:])
            heapq.heapify(line)
            self._find_key(request)
            self._enter(entry)

    def note_rank(self, request: Request) -> None:
        """Remember the rank of a request, which a dynamic policy may have changed, to be told."""
        if self._ranks is not None and self._is_dynamic:
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
        if left is not None:
            self._keys.pop(request.request_id, None)
            if self._service is not None:
                self._service.leave(request)

    def _push(self, request: Request, turn: int) -> None:
        request.waiting_since = self._view.step
        request.num_overtakes = 0
        if self._service is not None:
            self._service.enter(request)
        self._find_key(request)
        rank: Rank = 0  # as every policy gives that ranks none
        if self._ranks is not None:
            rank = self._policy.rank(request, self._view)
            self._ranks.append((request.request_id, rank))
        self._entries[request.request_id] = (rank, turn, request)
        self._enter((rank, turn, request))

    def _find_key(self, request: Request) -> None:
        if self._is_dynamic:
            key = self._policy.rank_key(request, self._view) if self._has_keys else None
            self._keys[request.request_id] = request if key is None else key

    def _enter(self, entry: Entry) -> None:
        if not self._is_dynamic:
            return heapq.heappush(self._heap, entry)
        _, turn, request = entry
        line = self._lines.setdefault(self._keys[request.request_id], [])
        heapq.heappush(line, (turn, request))
        self._is_stale = True
