"""Queue of waiting requests in the policy's order.

A `Tournament` finds the next request by (rank, turn); if the policy has no ranks, `Turns` does by turn alone.
Requests of one group (`Policy.rank_key`) form a line by turn, and only the first of each line takes part;
without groups all do. A rank is computed again when it may have changed: before each admission if the policy
`is_dynamic`, otherwise when its `Rank` expires.

Law: the next request is the one that would be next if all were ranked again.
"""

import heapq
from collections.abc import Iterator
from math import inf
from typing import Final

from sundog.actors.core.queue.policy import NEVER, Policy, Rank, RankValue, defines, gives_keys
from sundog.actors.core.queue.tenant_service import TenantService
from sundog.actors.core.queue.tournament import Place, Tournament, Turns
from sundog.actors.core.queue.view import View
from sundog.actors.core.request import Request

Line = list[tuple[int, Request]]
"""Heap of one group's requests; one that has left the queue is skipped when it is at the head."""
FEW: Final = 64
"""Number of obsolete alarms that the heap may hold, beyond one for each valid alarm."""


class Alarms:
    """Times, or step numbers, at which ranks expire; at most one per request."""

    __slots__ = ("_heap", "_of")

    def __init__(self) -> None:
        self._heap: list[tuple[float, str]] = []
        self._of: dict[str, float] = {}

    def __len__(self) -> int:
        return len(self._of)

    def set(self, name: str, at: float) -> None:
        """Set when the rank of a request expires, instead of any earlier setting. O(log n)"""
        if self._of.get(name) == at:
            return
        self._of[name] = at
        heapq.heappush(self._heap, (at, name))
        if len(self._heap) > 2 * len(self._of) + FEW:
            self._heap = [(each, other) for other, each in self._of.items()]
            heapq.heapify(self._heap)

    def forget(self, name: str) -> None:
        """Remove the expiry of a request's rank."""
        self._of.pop(name, None)

    def take(self, now: float, due: dict[str, None]) -> None:
        """Move the requests whose rank has expired to `due`."""
        heap = self._heap
        while heap and heap[0][0] <= now:
            at, name = heapq.heappop(heap)
            if self._of.get(name) == at:
                del self._of[name]
                due[name] = None


class WaitingQueue:
    """Waiting requests in the order of one policy. Each operation is O(log n), plus the ranks that
    expired.
    """

    __slots__ = (
        "_always",
        "_asks_again",
        "_at_memory",
        "_by_step",
        "_by_time",
        "_has_keys",
        "_is_stale",
        "_key_of",
        "_lines",
        "_now_s",
        "_num_changes",
        "_order",
        "_passed",
        "_policy",
        "_service",
        "_turn_back",
        "_turn_front",
        "_unranked",
        "_view",
        "places",
        "ranks",
    )

    def __init__(self, policy: Policy, view: View, service: TenantService | None) -> None:
        self._policy = policy
        self._view = view
        self._service = service
        self.places: dict[str, Place] = {}
        """The place of each waiting request, by its id."""
        self._passed: dict[str, Request] = {}
        self._turn_back = 0
        self._turn_front = 0
        self.ranks: list[tuple[str, RankValue]] | None = [] if defines(policy, "rank") else None
        """Ranks computed since they were last taken; None if all ranks are equal."""
        self._begin()

    def _begin(self) -> None:
        self._has_keys = self.ranks is not None and gives_keys(self._policy)
        self._asks_again = self._has_keys or (self.ranks is not None and self._policy.is_dynamic)
        """False while no rank can change in the queue."""
        self._order: Tournament | Turns = Turns() if self.ranks is None else Tournament()
        """Requests that may be next."""
        self._lines: dict[object, Line] = {}
        self._key_of: dict[str, object] = {}
        self._is_stale = False
        """Whether ranks may have expired since the next request was found."""
        self._unranked: dict[str, None] = {}
        """Requests that became the first of a line, or were passed over, since they were ranked."""
        self._always: dict[str, None] = {}
        """Requests whose rank is computed before each admission."""
        self._at_memory: dict[str, None] = {}
        """Requests whose rank expires whenever the policy may have changed its memory."""
        self._by_time = Alarms()
        self._by_step = Alarms()
        self._now_s, self._num_changes = self._view.now_s, self._view.num_memory_changes

    def __len__(self) -> int:
        return len(self.places)

    def __iter__(self) -> Iterator[Request]:
        """All waiting requests, the next one first, each ranked like the first of its line. O(n log n)"""
        now_s, places = self._view.now_s, self.places.values()
        order = sorted([(self._first_of(place).rank(now_s), place.turn, place.request) for place in places])
        return iter([request for _, _, request in order])

    @property
    def may_turn(self) -> bool:
        """Whether time, steps or token counts alone may change the order."""
        is_due = self._is_stale or bool(self._unranked) or bool(self._always)
        return is_due or bool(self._by_time) or bool(self._by_step) or self._order.may_turn

    def push(self, request: Request) -> None:
        """Queue an arriving request behind those of equal rank."""
        self._turn_back += 1
        self._push(request, self._turn_back)

    def put_back(self, request: Request) -> None:
        """Queue a returning request, in front of equal ranks if the policy `returns_to_front`."""
        if not self._policy.returns_to_front:
            return self.push(request)
        self._turn_front -= 1
        self._push(request, self._turn_front)

    def peek(self) -> Request | None:
        """Return the next request that is not passed over; None if there is none."""
        while self._is_stale or self._unranked:
            self._rank_due()
        place = self._order.first(self._view.now_s)
        return None if place is None else place.request

    def pass_over(self) -> None:
        """Skip the next request until `rewind`; it keeps its place."""
        place = self._order.first(self._view.now_s)
        assert place is not None, "no request is next"
        request = place.request
        self._passed[request.request_id] = request
        self._step_aside(request)

    def rewind(self) -> None:
        """Include the passed-over requests again."""
        if not self._passed:
            return
        passed, self._passed = self._passed, {}
        for name, request in passed.items():
            self._stand(request, self._key(request))
            if self._asks_again and self._is_first(request):
                self._unranked[name] = None

    def rerank(self) -> None:
        """Compute ranks that may have changed before the next request is found."""
        self._is_stale = self._asks_again

    def rank_anew(self, _reason: object = None) -> None:
        """Compute all ranks and groups again, because another policy took over, perhaps within a call.
        O(n)
        """
        self._begin()
        for name, former in list(self.places.items()):
            request = former.request
            answer = self._policy.rank(request, self._view)
            self.places[name] = _place(answer, former.turn, request)
            if name not in self._passed:
                self._stand(request, self._key(request))
                self._note(request, answer)

    def renew(self, request: Request) -> None:
        """Rank a waiting request again after a step, planned before its preemption, gave it a token."""
        if self._asks_again and request.request_id in self.places:
            self._step_aside(request)
            self._stand(request, self._key(request))
            self._is_stale = True
            if self._is_first(request):
                self._unranked[request.request_id] = None

    def note_rank(self, request: Request) -> None:
        """Record the rank of a request, for `take_ranks`."""
        if self.ranks is not None and self._asks_again:
            place = self.places[request.request_id]
            self.ranks.append((request.request_id, place.rank(self._view.now_s)))

    def take_ranks(self) -> tuple[tuple[str, RankValue], ...]:
        """Return and reset the new ranks: of requests that began to wait, lacked something at the head, or
        were admitted.
        """
        if not self.ranks:
            return ()
        ranks, self.ranks = self.ranks, []
        return tuple(ranks)

    def discard(self, request: Request) -> None:
        """Remove a request if it waits."""
        if request.request_id in self.places:
            del self.places[request.request_id]
            if self._asks_again:
                self._step_aside(request)
            else:
                self._order.remove(request.request_id, self._view.now_s)
            if self._service is not None:
                self._service.leave(request)

    def _push(self, request: Request, turn: int) -> None:
        request.waiting_since = self._view.step
        request.num_overtakes = 0
        if self._service is not None:
            self._service.enter(request)
        if self.ranks is None:
            place = self.places[request.request_id] = Place(0, 0.0, turn, request)
            return self._order.put(request.request_id, place, self._view.now_s)
        key = self._key(request)
        answer = self._policy.rank(request, self._view)
        place = self.places[request.request_id] = _place(answer, turn, request)
        self.ranks.append((request.request_id, place.rank(self._view.now_s)))
        self._stand(request, key)
        self._note(request, answer)
        self._is_stale = self._asks_again

    # --- lines and the order ---------------------------------------------------------------------

    def _key(self, request: Request) -> object:
        return self._policy.rank_key(request, self._view) if self._has_keys else None

    def _stand(self, request: Request, key: object) -> None:
        """Add a request to the line of its group; the first of a line takes part in the tournament."""
        place = self.places[request.request_id]
        if self._has_keys:
            key = request if key is None else key  # without a key, a line of its own
            self._key_of[request.request_id] = key
            line = self._lines.setdefault(key, [])
            former = line[0][1] if line else None
            heapq.heappush(line, (place.turn, request))
            if line[0][1] is not request:
                return
            if former is not None:
                self._forget(former.request_id)
        self._order.put(request.request_id, place, self._view.now_s)

    def _step_aside(self, request: Request) -> None:
        """Remove a request from its line; the new first one is ranked later."""
        name = request.request_id
        self._forget(name)
        key = self._key_of.pop(name, None)
        if key is None or self._lines[key][0][1] is not request:
            return
        line = self._lines[key]
        while line:
            turn, first = line[0]
            place = self.places.get(first.request_id)
            if place is not None and place.turn == turn and self._key_of.get(first.request_id) == key:
                self._unranked[first.request_id] = None
                return
            heapq.heappop(line)
        del self._lines[key]

    def _is_first(self, request: Request) -> bool:
        key = self._key_of.get(request.request_id)
        return key is None or self._lines[key][0][1] is request

    def _first_of(self, place: Place) -> Place:
        key = self._key_of.get(place.request.request_id)
        return place if key is None else self.places[self._lines[key][0][1].request_id]

    # --- ranks that are due ----------------------------------------------------------------------

    def _note(self, request: Request, answer: RankValue | Rank) -> None:
        name = request.request_id
        if not isinstance(answer, Rank):
            if self._asks_again and self._policy.is_dynamic and self._is_first(request):
                self._always[name] = None
            return
        self._asks_again = True
        if self._has_keys and not self._is_first(request):
            return
        if self._always:
            self._always.pop(name, None)
        if answer.until_memory_changes:
            self._at_memory[name] = None
        elif self._at_memory:
            self._at_memory.pop(name, None)
        if answer.until_s != inf:
            self._by_time.set(name, answer.until_s)
        if answer.until_step != NEVER:
            self._by_step.set(name, answer.until_step)

    def _forget(self, name: str) -> None:
        self._order.remove(name, self._view.now_s)
        self._unranked.pop(name, None)
        self._always.pop(name, None)
        self._at_memory.pop(name, None)
        self._by_time.forget(name)
        self._by_step.forget(name)

    def _rank_due(self) -> None:
        fresh, self._unranked = self._unranked, {}
        due = dict(fresh)
        if self._is_stale:
            self._is_stale = False
            self._add_due(due)
        if not due:
            return
        for name in due:
            former = self.places.get(name)
            if former is None:
                continue
            answer = self._policy.rank(former.request, self._view)
            self._note(former.request, answer)
            place = _place(answer, former.turn, former.request)
            if place.value != former.value or place.per_s != former.per_s or name in fresh:
                self.places[name] = place
                self._order.put(name, place, self._view.now_s)

    def _add_due(self, due: dict[str, None]) -> None:
        now_s, num_changes = self._view.now_s, self._view.num_memory_changes
        due.update(self._always)
        if num_changes != self._num_changes:
            due.update(self._at_memory)
            self._num_changes = num_changes
        if now_s < self._now_s:  # a rank may have been drawn from a time that is yet to come
            due.update(dict.fromkeys(self._firsts()))
        self._now_s = now_s
        if self._by_time:
            self._by_time.take(now_s, due)
        if self._by_step:
            self._by_step.take(self._view.step, due)

    def _firsts(self) -> list[str]:
        if self._has_keys:
            return [line[0][1].request_id for line in self._lines.values()]
        return [name for name in self.places if name not in self._passed]


def _place(answer: RankValue | Rank, turn: int, request: Request) -> Place:
    if isinstance(answer, Rank):
        return Place(answer.value, answer.per_s, turn, request)
    return Place(answer, 0.0, turn, request)
