"""All connections of one server: which may be closed to make room, and which have been given time enough."""

from typing import Protocol

import trio

from actors.api.edge.countdown import Countdown

FIRST_REQUEST_S = 5.0
"""What a new connection gets for its first request before it may be closed to make room."""
STALL_CHECKS = 4
"""How often HTTP/2's answers are looked at in the time that a client may take nothing of one."""


class Connection(Protocol):
    """One of them."""

    def abort(self) -> None:
        """End it at once."""
        ...

    def hang_up(self) -> None:
        """End it as HTTP does, soon."""
        ...

    def check_stalled(self) -> None:
        """End its answers that are not read."""
        ...


class OpenConnections:
    """The connections, and their timers, which ring once they have begun.

    One that has no request is closed after `keep_alive_s`, one whose head takes longer than `head_s`, too. Of
    an answer over HTTP/2 something must be read in `stalled_s`.
    """

    def __init__(self, keep_alive_s: float, head_s: float, stalled_s: float) -> None:
        self._all: set[Connection] = set()
        self._may_close_from_s: dict[Connection, float] = {}  # idle connections, the longest first
        self.keep_alive: Countdown[Connection] = Countdown(keep_alive_s, lambda each: each.hang_up())
        self.heads: Countdown[Connection] = Countdown(head_s, lambda each: each.hang_up())
        self.stalls: Countdown[Connection] = Countdown(
            stalled_s / STALL_CHECKS, lambda each: each.check_stalled()
        )
        self.stalled_s = stalled_s

    def __len__(self) -> int:
        return len(self._all)

    def begin(self, nursery: trio.Nursery) -> None:
        """Have the timers rung by tasks of this nursery, for ever."""
        for countdown in (self.keep_alive, self.heads, self.stalls):
            nursery.start_soon(countdown.run)

    def add(self, connection: Connection) -> None:
        self._all.add(connection)
        self._may_close_from_s[connection] = trio.current_time() + FIRST_REQUEST_S

    def discard(self, connection: Connection) -> None:
        self._all.discard(connection)
        self._may_close_from_s.pop(connection, None)
        for countdown in (self.keep_alive, self.heads, self.stalls):
            countdown.stop(connection)

    def update(self, connection: Connection, idle: bool) -> None:
        """The connection serves a request from now on, or no longer."""
        self._may_close_from_s.pop(connection, None)
        if idle:
            self._may_close_from_s[connection] = trio.current_time()

    def abort_all(self) -> None:
        for connection in tuple(self._all):
            connection.abort()

    def abort_longest_idle(self) -> bool:
        """Close the connection that has been idle for longest; False if none may be closed."""
        now_s = trio.current_time()
        for connection, from_s in self._may_close_from_s.items():
            if from_s <= now_s:
                self._may_close_from_s.pop(connection)
                connection.abort()
                return True
        return False
