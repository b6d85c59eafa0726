"""Tournament tree: finds the first place when ranks change linearly with time.

The earlier of two places wins a match and moves up. A match is replayed when one of its places changes, or
when time may have changed its winner, so that time costs only what it changes. Of four requests with the
ranks 7, 5 - t, 2 and 1, with the time until which each match is valid:

                      1, until 4
               5 - t, always     1, always
               7      5 - t      2       1

After 4 the second request wins the last match. Law: at any time the winner is the first of all places sorted.
If all ranks are equal, `Turns` orders by turn without matches.
"""

from collections.abc import Iterable
from heapq import heappop, heappush
from math import inf
from typing import Final

from sundog.actors.core.queue.policy import RankValue
from sundog.actors.core.request import Request

# Compiled code finds a final name at once, and an imported function by a look-up in its module.
_push: Final = heappush
_pop: Final = heappop
DOUBT: Final = 2.0**-48
"""Relative difference below which rounding may swap two ranks."""


class Place:
    """Place of a request in the queue: by its rank, `value + per_s * now_s`, then by its turn."""

    __slots__ = ("per_s", "request", "turn", "value")

    def __init__(self, value: RankValue, per_s: float, turn: int, request: Request) -> None:
        self.value = value
        self.per_s = per_s
        self.turn = turn
        """Turn of the request; unique."""
        self.request = request

    def rank(self, now_s: float) -> RankValue:
        """Return the rank at a time."""
        if not self.per_s:
            return self.value
        assert isinstance(self.value, float), "only a number moves"
        return self.value + self.per_s * now_s

    def is_before(self, other: "Place", now_s: float) -> bool:
        """Return whether this place is before another at a time."""
        own, its = self.value, other.value
        if self.per_s or other.per_s:
            own, its = self.rank(now_s), other.rank(now_s)
        return own < its or (self.turn < other.turn and not its < own)

    def stays_before(self, other: "Place", now_s: float) -> float:
        """Return until when this place, which is before the other now, certainly stays before it."""
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
    """Tournament of places by request name. O(log n) for each place that changes or is overtaken."""

    __slots__ = ("_free", "_leaves", "_moves", "_now_s", "_size", "_untils", "_winners")

    def __init__(self) -> None:
        self._leaves: dict[str, int] = {}
        self._moves = False
        """Whether any place ever had a rank that changes with time."""
        self._resize(1, [])

    def _resize(self, size: int, places: Iterable[Place]) -> None:
        self._size = size
        self._winners: list[Place | None] = [None] * (2 * size)
        """Winners of the matches: the final at 1, the matches below n at 2 n and 2 n + 1."""
        self._untils = [inf] * (2 * size)
        self._free = list(range(2 * size - 1, size - 1, -1))
        self._now_s = inf
        for place in places:
            self._leaves[place.request.request_id] = leaf = self._free.pop()
            self._winners[leaf] = place

    def put(self, name: str, place: Place, now_s: float) -> None:
        """Set the place of a request."""
        leaf = self._leaves.get(name)
        if leaf is None:
            if not self._free:
                self._resize(2 * self._size, [each for each in self._winners[self._size :] if each])
            self._leaves[name] = leaf = self._free.pop()
        self._moves = self._moves or place.per_s != 0
        self._set(leaf, place, now_s)

    def remove(self, name: str, now_s: float) -> None:
        """Remove the place of a request, if it has one."""
        leaf = self._leaves.pop(name, None)
        if leaf is not None:
            self._free.append(leaf)
            self._set(leaf, None, now_s)

    def first(self, now_s: float) -> Place | None:
        """Return the first place now; None if there is none."""
        if now_s < self._now_s:  # a match may have been turned by a time that is yet to come
            for node in range(self._size - 1, 0, -1):
                self._play(node, now_s)
        elif self._untils[1] <= now_s:
            self._advance(1, now_s)
        self._now_s = now_s
        return self._winners[1]

    @property
    def may_turn(self) -> bool:
        """Whether time alone may change the first place."""
        return self._untils[1] != inf

    def _set(self, leaf: int, place: Place | None, now_s: float) -> None:
        self._winners[leaf] = place
        node = leaf // 2
        while node and self._play(node, now_s):
            node //= 2

    def _advance(self, node: int, now_s: float) -> None:
        """Replay this match, and those below it whose ranks may have changed with time."""
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
    """Places of equal rank, ordered by turn. O(log n) per change."""

    __slots__ = ("_heap", "_places", "may_turn")

    def __init__(self) -> None:
        self._places: dict[str, Place] = {}
        self._heap: list[tuple[int, str]] = []
        """Heap of turns, including some of removed places; the first entry is always valid."""
        self.may_turn = False

    def put(self, name: str, place: Place, now_s: float) -> None:
        """Add the place of a request that has none."""
        self._places[name] = place
        _push(self._heap, (place.turn, name))

    def remove(self, name: str, now_s: float) -> None:
        """Remove the place of a request, if it has one."""
        places, heap = self._places, self._heap
        if name in places:
            del places[name]
        while heap and ((place := places.get(heap[0][1])) is None or place.turn != heap[0][0]):
            _pop(heap)

    def first(self, now_s: float) -> Place | None:
        """Return the first place; None if there is none."""
        return self._places[self._heap[0][1]] if self._heap else None
