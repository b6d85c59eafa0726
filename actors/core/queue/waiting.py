"""The queue of waiting requests, in the policy's order."""

import heapq
from collections.abc import Iterator

from actors.core.queue.lines import Entry, Lines
from actors.core.queue.policy import Policy, Rank, defines, gives_keys
from actors.core.queue.tenant_service import TenantService
from actors.core.queue.view import View
from actors.core.request import Request


class WaitingQueue:
    """A heap by (rank, turn); a request that left is skipped when it surfaces. O(log n).

    Under a dynamic policy the order is that of `Lines`.
    """

    __slots__ = (
        "_entries",
        "_has_keys",
        "_heap",
        "_lines",
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
        self._passed: list[Request] = []
        self._turn_back = 0
        self._turn_front = 0
        self._ranks: list[tuple[str, Rank]] | None = [] if defines(policy, "rank") else None
        """What was seen of ranks since they were last told; None where all ranks are the same."""
        self._has_keys = gives_keys(policy)
        self._lines = self._new_lines()

    def _new_lines(self) -> Lines | None:
        """For an order that may change while requests wait; without ranks it is that of arrival."""
        is_dynamic = self._ranks is not None and self._policy.is_dynamic
        return Lines(self._policy, self._view, self._entries) if is_dynamic else None

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Request]:
        """All waiting requests, the next one first, each ranked like the first of its line. O(n log n)."""
        entries = list(self._entries.values())
        if self._lines is not None and self._has_keys:
            lines = self._lines
            entries = [(lines.rank_of(request, rank), turn, request) for rank, turn, request in entries]
        return iter([request for _, _, request in sorted(entries)])

    @property
    def may_turn(self) -> bool:
        """Whether the order may change by the time, the steps or the counts of requests alone."""
        return self._lines is not None and self._lines.may_turn

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
        lines = self._lines
        if lines is not None:
            following = lines.peek()
            if not lines.is_over:
                return following
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
        lines = self._lines
        self._passed.append(heapq.heappop(self._heap)[2] if lines is None else lines.pass_over())

    def rewind(self) -> None:
        """Look at all requests again."""
        for request in self._passed:
            self._enter(self._entries[request.request_id])
        self._passed.clear()

    def rerank(self) -> None:
        """Have ranks that may have changed asked anew before the next request is named."""
        if self._lines is not None:
            self._lines.is_stale = True

    def rank_anew(self, _reason: object = None) -> None:
        """Ask for every rank and key: another policy takes over, perhaps in the middle of an answer. O(n)"""
        if self._lines is not None:
            self._lines.is_over = True
        self._has_keys = gives_keys(self._policy)
        self._heap, self._lines = [], self._new_lines()
        for name, (_, turn, request) in list(self._entries.items()):
            entry = self._entries[name] = (self._policy.rank(request, self._view), turn, request)
            if request not in self._passed:
                self._enter(entry)

    def renew(self, request: Request) -> None:
        """A waiting request was given a token by a step from before it waited: rank and key may be others."""
        if self._lines is not None:
            self._lines.enter_anew(request, self._key(request))

    def note_rank(self, request: Request) -> None:
        """Remember the rank of a request, which a dynamic policy may have changed, to be told."""
        if self._ranks is not None and self._lines is not None:
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
            if self._lines is not None:
                self._lines.leave(request)
            if self._service is not None:
                self._service.leave(request)

    def _push(self, request: Request, turn: int) -> None:
        request.waiting_since = self._view.step
        request.num_overtakes = 0
        if self._service is not None:
            self._service.enter(request)
        key = self._key(request)
        rank: Rank = 0  # as every policy gives that ranks none
        if self._ranks is not None:
            rank = self._policy.rank(request, self._view)
            self._ranks.append((request.request_id, rank))
        self._entries[request.request_id] = (rank, turn, request)
        if self._lines is None:
            heapq.heappush(self._heap, (rank, turn, request))
        else:
            self._lines.enter(request, turn, key, is_ranked=True)

    def _key(self, request: Request) -> object:
        has_key = self._lines is not None and self._has_keys
        return self._policy.rank_key(request, self._view) if has_key else None

    def _enter(self, entry: Entry) -> None:
        if self._lines is None:
            heapq.heappush(self._heap, entry)
        else:
            _, turn, request = entry
            self._lines.enter(request, turn, self._key(request))
