"""Limits on the number of concurrent answers per API key."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from sundog.actors.front.intake import Turnover

MOST_IDLE = 1_000
"""Number of idle clients whose rate of answers is remembered."""


@dataclass(frozen=True, slots=True)
class KeyHolder:
    """Client that holds a key. Its answers count towards the limits of the key `limited_as`; None sets no
    limits.
    """

    limited_as: str | None = None
    tenant: str | None = None
    max_requests: int | None = None
    priority: int | None = None


Release = Callable[[], None]
"""Function that gives back what was acquired; called once."""


class LimitReached(Exception):
    """Raised for a client at its limit; an answer of its own is expected to end in `room_in_s`."""

    def __init__(self, room_in_s: float) -> None:
        super().__init__(f"full for {room_in_s:g} s")
        self.room_in_s = room_in_s


class ConcurrencyLimits(Protocol):
    """Counts of each client's answers, in this process or for all HTTP processes of a server."""

    async def acquire(self, client: str, most: int | None) -> Release:
        """Count one more for `client`, whose limit is `most` (None: unlimited); raises LimitReached."""
        ...


class LocalLimits:
    """Counts of one process."""

    def __init__(self) -> None:
        self._active: dict[str, _Count] = {}
        self._idle: dict[str, _Count] = {}
        """Clients without answers, the longest idle first."""

    async def acquire(self, client: str, most: int | None) -> Release:
        return self.acquire_now(client, most)

    def acquire_now(self, client: str, most: int | None) -> Release:
        """Count one more without waiting, as `acquire` does."""
        count = self._active.get(client) or self._idle.pop(client, None) or _Count()
        if most is not None and count.num >= most:
            raise LimitReached(count.turnover.room_in_s(1, count.num))
        self._active[client] = count
        count.turnover.begun(count.num)
        count.num += 1
        return lambda: self._release(client, count)

    def _release(self, client: str, count: "_Count") -> None:
        count.num -= 1
        count.turnover.ended(count.num)
        if not count.num:
            self._idle[client] = self._active.pop(client)
            if len(self._idle) > MOST_IDLE:
                del self._idle[next(iter(self._idle))]


@dataclass(slots=True)
class _Count:
    num: int = 0
    turnover: Turnover = field(default_factory=Turnover)
