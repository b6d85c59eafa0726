"""A queue is asked for its first place, and each place may move evenly with time: a tree of matches.

The earlier of two places wins a match, and goes up. A match is played again when one of its places
changes, or when time may have turned it. So time costs only what it turns. Of four requests whose ranks
are 7, 5 - t, 2 and 1, with the time until which each match holds:

                      1, until 4
              5 - t, always     1, always
              7      5 - t      2       1

At 4 the second wins the last match. Law: at any time the winner is the one that sorting all would put first.
Where all ranks are the same there is nothing to play for: the turns alone say who is first.
"""

import heapq
from collections.abc import Iterable
from math import inf
from typing import Final

from sundog.actors.core.queue.policy import RankValue
from sundog.actors.core.request import Request

DOUBT: Final = 2.0**-48
"""Two ranks may be rounded to the wrong order where they differ by less than this part of their terms."""


class Place:
    """A request's place in the queue: first by its rank, `value + per_s * now_s`, then by its turn."""

    __slots__ = ("per_s", "request", "turn", "value")

    def __init__(self, value: RankValue, per_s: float, turn: int, request: Request) -> None:
        self.value = value
        self.per_s = per_s
        self.turn = turn
        """The turn of the request; no two requests have the same."""
        self.request = request

    def rank(self, now_s: float) -> RankValue:
        """The rank at a time."""
        if not self.per_s:
            return self.value
        assert isinstance(self.value, float), "only a number moves"
        return self.value + self.per_s * now_s

    def is_before(self, other: "Place", now_s: float) -> bool:
        """True if it comes before another at a time."""
        own, its = self.value, other.value
        if self.per_s or other.per_s:
            own, its = self.rank(now_s), other.rank(now_s)
        return own < its or (self.turn < other.turn and not its < own)

    def stays_before(self, other: "Place", now_s: float) -> float:
        """The time until which it surely stays before another, which it is before now."""
        speed = self.per_s - other.per_s
        if (not speed and self.value == other.value) or not (self.per_s or other.per_s):
            return inf
        own, its = self.value, other.value
        assert isinstance(own, int | float) and isinstance(its, int | float), "only a number moves"
        gap = its - own - speed * now_s
        rates = DOUBT * (abs(self.per_s) + abs(other.per_s))
        doubt = DOUBT * (abs(own) + abs(its)) + rates * abs(now_s)
        if gap == inf:
            return inf
        if gap <= doubt:
            return now_s
        speed += rates
        return now_s + (gap - doubt) / speed if speed > 0 else inf


class Tournament:
    """Places by the names of their requests. O(log n) for each that changes or is overtaken."""

    __slots__ = ("_free", "_leaves", "_moves", "_now_s", "_size", "_untils", "_winners")

    def __init__(self) -> None:
        self._leaves: dict[str, int] = {}
        self._moves = False
        """True once there was a place that moves."""
        self._resize(1, [])

    def _resize(self, size: int, places: Iterable[Place]) -> None:
        self._size = size
        self._winners: list[Place | None] = [None] * (2 * size)
        """The winners of the matches: the last match at 1, those below match n at 2 n and 2 n + 1."""
        self._untils = [inf] * (2 * size)
        self._free = list(range(2 * size - 1, size - 1, -1))
        self._now_s = inf
        for place in places:
            self._leaves[place.request.request_id] = leaf = self._free.pop()
            self._winners[leaf] = place

    def put(self, name: str, place: Place, now_s: float) -> None:
        """Let the request of this name have this place."""
        leaf = self._leaves.get(name)
        if leaf is None:
            if not self._free:
                self._resize(2 * self._size, [each for each in self._winners[self._size :] if each])
            self._leaves[name] = leaf = self._free.pop()
        self._moves = self._moves or place.per_s != 0
        self._set(leaf, place, now_s)

    def remove(self, name: str, now_s: float) -> None:
        """Let the request of this name have no place, if it has one."""
        leaf = self._leaves.pop(name, None)
        if leaf is not None:
            self._free.append(leaf)
            self._set(leaf, None, now_s)

    def first(self, now_s: float) -> Place | None:
        """The first place now; None if there is none."""
        if now_s < self._now_s:  # a match may have been turned by a time that is yet to come
            for node in range(self._size - 1, 0, -1):
                self._play(node, now_s)
        elif self._untils[1] <= now_s:
            self._advance(1, now_s)
        self._now_s = now_s
        return self._winners[1]

    @property
    def may_turn(self) -> bool:
        """True if time alone may put another place first."""
        return self._untils[1] != inf

    def _set(self, leaf: int, place: Place | None, now_s: float) -> None:
        self._winners[leaf] = place
        node = leaf // 2
        while node and self._play(node, now_s):
            node //= 2

    def _advance(self, node: int, now_s: float) -> None:
        """Play this match again, and those below it whose ranks may have changed with time."""
        for child in (2 * node, 2 * node + 1):
            if self._untils[child] <= now_s:
                self._advance(child, now_s)
        self._play(node, now_s)

    def _play(self, node: int, now_s: float) -> bool:
        winners, untils = self._winners, self._untils
        one, other = winners[2 * node], winners[2 * node + 1]
        if one is None or (other is not None and other.is_before(one, now_s)):
            one, other = other, one
        has_changed = one is not winners[node]
        winners[node] = one
        if self._moves:
            until_s = min(untils[2 * node], untils[2 * node + 1])
            if one is not None and other is not None:
                until_s = min(until_s, one.stays_before(other, now_s))
            has_changed = has_changed or until_s != untils[node]
            untils[node] = until_s
        return has_changed


class Turns:
    """Places of equal rank, which go by their turns. O(log n) for each that changes."""

    __slots__ = ("_heap", "_places", "may_turn")

    def __init__(self) -> None:
        self._places: dict[str, Place] = {}
        self._heap: list[tuple[int, str]] = []
        """A heap of turns, some of them of places that were removed; the first one's place stands."""
        self.may_turn = False

    def put(self, name: str, place: Place, now_s: float) -> None:
        """Let the request of this name, which has no place, have this one."""
        self._places[name] = place
        heapq.heappush(self._heap, (place.turn, name))

    def remove(self, name: str, now_s: float) -> None:
        """Let the request of this name have no place, if it has one."""
        places, heap = self._places, self._heap
        places.pop(name, None)
        while heap and ((place := places.get(heap[0][1])) is None or place.turn != heap[0][0]):
            heapq.heappop(heap)

    def first(self, now_s: float) -> Place | None:
        """The first place; None if there is none."""
        return self._places[self._heap[0][1]] if self._heap else None
