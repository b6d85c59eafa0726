"""How many of something one has at a time: answers to the holder of a key, connections of an address."""

from collections.abc import Callable
from typing import Protocol

from actors.front.intake import Turnover

MOST_IDLE = 1_000
"""Clients that have nothing now, and whose turnover is still known."""

Leave = Callable[[], None]


class Full(Exception):
    """One has as many as it may; there is room again in `room_in_s`."""

    def __init__(self, room_in_s: float) -> None:
        super().__init__(f"full for {room_in_s:g} s")
        self.room_in_s = room_in_s


class Seats(Protocol):
    """Counted in this process, or for all doors of a server in one place."""

    async def take(self, whose: str, most: int | None) -> Leave:
        """One more for `whose`, who may have `most`, None for any number; returns what gives it back.

        Raises Full.
        """
        ...


class OwnSeats:
    """Those of one process."""

    def __init__(self) -> None:
        self._taken: dict[str, _Row] = {}
        self._idle: dict[str, _Row] = {}
        """The longest idle first."""

    async def take(self, whose: str, most: int | None) -> Leave:
        return self.take_now(whose, most)

    def take_now(self, whose: str, most: int | None) -> Leave:
        """The same, at once."""
        row = self._taken.get(whose) or self._idle.pop(whose, None) or _Row()
        if most is not None and row.num >= most:
            raise Full(row.turnover.room_in_s(1, row.num))
        self._taken[whose] = row
        row.turnover.begun(row.num)
        row.num += 1
        return lambda: self._leave(whose, row)

    def _leave(self, whose: str, row: "_Row") -> None:
        row.num -= 1
        row.turnover.ended(row.num)
        if not row.num:
            self._idle[whose] = self._taken.pop(whose)
            if len(self._idle) > MOST_IDLE:
                del self._idle[next(iter(self._idle))]


class _Row:
    __slots__ = ("num", "turnover")

    def __init__(self) -> None:
        self.num, self.turnover = 0, Turnover()
