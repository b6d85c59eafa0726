"""Waiting requests under a policy whose ranks may change while they wait.

Requests of one key (`Policy.rank_key`) stand in a line by turn, one without a key in a line of its own, and
the heap holds the first of each line. A rank is asked again when it is due (`due.py`).

Law: the next request is the one that would be next if all were ranked anew.
"""

import heapq

from actors.core.queue.due import FEW, Due, Line
from actors.core.queue.policy import Policy, Rank
from actors.core.queue.view import View
from actors.core.request import Request

Entry = tuple[Rank, int, Request]
"""(rank, turn, request): no two have the same turn."""
Place = tuple[Rank, int, int, Line]
"""(rank, turn, serial, line) of the first in a line."""


class Lines:
    """The first of each line, in the policy's order. O(log n) for each rank that is due."""

    __slots__ = (
        "_due",
        "_entries",
        "_heap",
        "_line_of",
        "_lines",
        "_policy",
        "_serial",
        "_unranked",
        "_view",
        "is_over",
        "is_stale",
    )

    def __init__(self, policy: Policy, view: View, entries: dict[str, Entry]) -> None:
        self._policy = policy
        self._view = view
        self._entries = entries
        self._due = Due(view, is_noted=hasattr(policy, "inner"))
        self._lines: dict[object, Line] = {}
        self._line_of: dict[str, Line] = {}
        self._unranked: dict[Line, None] = {}
        """Lines whose first request is another than the one that was ranked."""
        self._heap: list[Place] = []
        self._serial = 0
        self.is_stale = False
        """Whether ranks may be due since the heap was looked at."""
        self.is_over = False
        """Whether another policy has taken over, perhaps in the middle of an answer."""

    @property
    def may_turn(self) -> bool:
        """Whether the order may change by the time, the steps or the counts of requests alone."""
        return self.is_stale or bool(self._unranked) or self._due.may_come

    def rank_of(self, request: Request, own: Rank) -> Rank:
        """What the first in the line of a request was ranked last; its own rank if it is in none."""
        line = self._line_of.get(request.request_id)
        return own if line is None or line.rank is None else line.rank

    def enter(self, request: Request, turn: int, key: object, *, is_ranked: bool = False) -> None:
        """Queue a request whose entry is there, and which was ranked just now or is to be."""
        key = request if key is None else key
        line = self._lines.get(key)
        if line is None:
            line = self._lines[key] = Line(key)
        self._line_of[request.request_id] = line
        self.is_stale = True
        heapq.heappush(line.turns, (turn, request))
        if line.turns[0][1] is not request:
            return
        if is_ranked:
            self._unranked.pop(line, None)
            self._due.note(line)
            self._place(line, self._entries[request.request_id][0], turn)
        else:
            self._unranked[line] = None

    def leave(self, request: Request) -> None:
        """Forget a request whose entry is gone."""
        line = self._line_of.pop(request.request_id, None)
        if line is not None and line.turns[0][1] is request:
            self._next(line)

    def enter_anew(self, request: Request, key: object) -> None:
        """A request was given a token while it waits: rank and key may be others."""
        line = self._line_of.get(request.request_id)
        if line is not None:
            turn = self._entries[request.request_id][1]
            if line.turns[0][1] is request:
                self._next(line)
            else:
                line.turns.remove((turn, request))
                heapq.heapify(line.turns)
            self.enter(request, turn, key)

    def peek(self) -> Request | None:
        """The next request; None if there is none, or if another policy has taken over."""
        while self.is_stale or self._unranked:
            self._rank_due()
            if self.is_over:
                return None
        heap = self._heap
        while heap:
            _, _, serial, line = heap[0]
            if line.serial == serial:
                return line.turns[0][1]
            heapq.heappop(heap)
        return None

    def pass_over(self) -> Request:
        """Take the next request out, until it is entered again."""
        line = heapq.heappop(self._heap)[3]
        request = line.turns[0][1]
        del self._line_of[request.request_id]
        self._next(line)
        return request

    def _next(self, line: Line) -> None:
        """Let the first of a line go, and those behind it that have left."""
        turns, entries = line.turns, self._entries
        heapq.heappop(turns)
        line.serial = 0
        while turns:
            turn, request = turns[0]
            entry = entries.get(request.request_id)
            if entry is not None and entry[1] == turn:
                self._unranked[line] = None
                return
            heapq.heappop(turns)
        del self._lines[line.key]
        self._unranked.pop(line, None)
        self._due.forget(line)

    def _rank_due(self) -> None:
        """Rank the first of each line whose rank is due."""
        due, self._unranked = self._unranked, {}
        if self.is_stale:
            self.is_stale = False
            self._due.add_to(due, self._lines)
        are_many = 4 * len(due) > len(self._lines)
        for line in due:
            if line.turns:
                self._rank(line, are_many)
                if self.is_over:
                    return
        if are_many or len(self._heap) > 2 * len(self._lines) + FEW:
            heap = list[Place]()
            for line in self._lines.values():
                if line.rank is not None and line.serial:
                    heap.append((line.rank, line.turn, line.serial, line))
            heapq.heapify(heap)
            self._heap = heap

    def _rank(self, line: Line, are_many: bool) -> None:
        """Rank the first of a line; where many are ranked, the heap is made anew afterwards."""
        turn, request = line.turns[0]
        rank = self._policy.rank(request, self._view)
        if self.is_over:
            return
        self._entries[request.request_id] = (rank, turn, request)
        self._due.note(line)
        if line.serial and line.turn == turn and line.rank == rank:
            line.rank = rank
        elif are_many:
            self._number(line, rank, turn)
        else:
            self._place(line, rank, turn)

    def _place(self, line: Line, rank: Rank, turn: int) -> None:
        self._number(line, rank, turn)
        heapq.heappush(self._heap, (rank, turn, line.serial, line))

    def _number(self, line: Line, rank: Rank, turn: int) -> None:
        self._serial += 1
        line.rank, line.turn, line.serial = rank, turn, self._serial
