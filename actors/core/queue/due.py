"""Which ranks have to be asked again: those that were drawn from something that has changed since.

Law: a rank that is not due would be answered alike now.
"""

import heapq
from math import inf
from typing import Final

from actors.core.queue.policy import Rank
from actors.core.queue.seen import NEVER
from actors.core.queue.view import View
from actors.core.request import Request

FEW: Final = 64
"""Obsolete entries that a heap may hold beside one for each line."""


class Line:
    """Requests of one key; `rank` is what the first of them was ranked last."""

    __slots__ = ("key", "rank", "serial", "turn", "turns", "until_s", "until_step")

    def __init__(self, key: object) -> None:
        self.key = key
        self.turns: list[tuple[int, Request]] = []
        """A heap; a request that left is skipped when it comes first."""
        self.rank: Rank | None = None
        self.turn = 0
        self.serial = 0
        """The number of its place in the heap, which no other has; 0: it has none."""
        self.until_s = inf
        self.until_step = NEVER
        """When its rank is due, as far as that is noted."""


class Due:
    """Lines by what lets their ranks be due. What is looked at is noted only of a user's policy."""

    __slots__ = (
        "_always",
        "_at_memory",
        "_at_moment",
        "_by_step",
        "_by_time",
        "_is_noted",
        "_now_s",
        "_num_changes",
        "_num_noted",
        "_step",
        "_view",
    )

    def __init__(self, view: View, *, is_noted: bool) -> None:
        self._view = view
        self._is_noted = is_noted
        self._always: dict[Line, None] = {}
        self._at_moment: dict[Line, None] = {}
        """Due whenever the clock has moved."""
        self._at_memory: dict[Line, None] = {}
        """Due whenever the policy may have changed its memory."""
        self._by_time: list[tuple[float, int, Line]] = []
        self._by_step: list[tuple[int, int, Line]] = []
        self._num_noted = 0
        self._now_s, self._step, self._num_changes = view.now_s, view.step, view.seen.num_changes

    @property
    def may_come(self) -> bool:
        """Whether a rank may be due by the time, the steps or the counts of requests alone."""
        return bool(self._always or self._at_moment or self._by_time or self._by_step)

    def note(self, line: Line) -> None:
        """Note what the answer that came last was drawn from: it is the line's rank."""
        seen = self._view.seen
        always = seen.anything or not self._is_noted
        _keep(self._always, line, always)
        _keep(self._at_moment, line, seen.moment and not always)
        _keep(self._at_memory, line, seen.memory and not always)
        if always or seen.moment:
            return
        self._num_noted += 1
        if seen.until_s < line.until_s:
            line.until_s = seen.until_s
            heapq.heappush(self._by_time, (line.until_s, self._num_noted, line))
        if seen.until_step < line.until_step:
            line.until_step = seen.until_step
            heapq.heappush(self._by_step, (line.until_step, self._num_noted, line))

    def forget(self, line: Line) -> None:
        """The line is empty."""
        for lines in (self._always, self._at_moment, self._at_memory):
            lines.pop(line, None)

    def add_to(self, due: dict[Line, None], lines: dict[object, Line]) -> None:
        """Add the lines that are due now, of these."""
        due.update(self._always)
        now_s, step, num_changes = self._view.now_s, self._view.step, self._view.seen.num_changes
        if now_s < self._now_s:  # nothing is noted of times that had come
            due.update(dict.fromkeys(lines.values()))
        if now_s != self._now_s or step != self._step:
            due.update(self._at_moment)
        if num_changes != self._num_changes:
            due.update(self._at_memory)
        self._now_s, self._step, self._num_changes = now_s, step, num_changes
        self._drop_obsolete(2 * len(lines) + FEW)
        while self._by_time and self._by_time[0][0] <= now_s:
            line = heapq.heappop(self._by_time)[2]
            line.until_s = inf
            due[line] = None
        while self._by_step and self._by_step[0][0] <= step:
            line = heapq.heappop(self._by_step)[2]
            line.until_step = NEVER
            due[line] = None

    def _drop_obsolete(self, most: int) -> None:
        """Entries of lines that are gone, or due at another time: the time of some never comes."""
        by_time, by_step = self._by_time, self._by_step
        if len(by_time) > most:
            self._by_time = [each for each in by_time if each[2].turns and each[0] == each[2].until_s]
            heapq.heapify(self._by_time)
        if len(by_step) > most:
            self._by_step = [each for each in by_step if each[2].turns and each[0] == each[2].until_step]
            heapq.heapify(self._by_step)


def _keep(lines: dict[Line, None], line: Line, belongs: bool) -> None:
    if belongs:
        lines[line] = None
    else:
        lines.pop(line, None)
