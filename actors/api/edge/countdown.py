"""Timers of many connections in one task: what costs a task and two switches each elsewhere is two
dictionary operations here, for each request and connection.
"""

from collections.abc import Callable
from typing import Generic, TypeVar

import trio

K = TypeVar("K")


class Countdown(Generic[K]):
    """Calls `ring` with each key `after_s` seconds after it was last started, unless it was stopped.

    `ring` must not raise.
    """

    def __init__(self, after_s: float, ring: Callable[[K], None]) -> None:
        self.after_s = after_s
        self._ring = ring
        self._due_s: dict[K, float] = {}  # in the order of the instants: all wait equally long
        self._is_due = trio.Event()
        """Set when there is a first one."""

    def __contains__(self, key: K) -> bool:
        return key in self._due_s

    def start(self, key: K) -> None:
        """Count from now."""
        self._due_s.pop(key, None)
        self._due_s[key] = trio.current_time() + self.after_s
        self._is_due.set()

    def stop(self, key: K) -> None:
        """Do not ring; harmless where nothing counts."""
        self._due_s.pop(key, None)

    def ring_all(self) -> None:
        """Ring now for all that count."""
        keys = tuple(self._due_s)
        self._due_s.clear()
        for key in keys:
            self._ring(key)

    async def run(self) -> None:
        """For ever."""
        while True:
            await self._is_due.wait()
            if not self._due_s:
                self._is_due = trio.Event()
                continue
            key, due_s = next(iter(self._due_s.items()))
            if due_s > trio.current_time():
                await trio.sleep_until(due_s)
            else:
                del self._due_s[key]
                self._ring(key)
