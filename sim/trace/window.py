"""Part of a trace: a window of time, a share of the sessions, shortened idle times.

Law: sessions are kept or left out as a whole.
"""

import hashlib
from collections.abc import Iterable

from sundog.actors.core.config import ConfigError
from sundog.actors.core.records import dataclass
from sundog.sim.trace.record import TraceRequest
from sundog.sim.trace.sessions import whole_sessions


@dataclass(frozen=True, slots=True)
class TracePart:
    """Part of a trace to read; seconds count from the trace's first arrival.

    A session belongs to the window in which its first request arrives. `share` of the sessions (or single
    requests) are chosen by their names: the same each time, and a larger share includes a smaller one. No
    time without arrivals, and no pause in a session, is longer than `max_idle_s`.
    """

    from_s: float = 0.0
    until_s: float | None = None
    share: float = 1.0
    max_idle_s: float | None = None

    @property
    def is_all(self) -> bool:
        """Whether the part is the whole trace, without any change of times."""
        return self == ALL

    def of(self, trace: Iterable[TraceRequest]) -> list[TraceRequest]:
        """Return the rows of the part, in order of arrival from the beginning of the window. O(rows)

        Raises ConfigError if it has none of the trace's rows.
        """
        rows = list(trace)
        if self.is_all or not rows:
            return rows
        begin_s = min(row.arrival_s for row in rows)
        kept: set[str] = set()
        last_s = 0.0
        for group in whole_sessions(rows):
            first_s = group[0].arrival_s - begin_s
            last_s = max(last_s, first_s)
            is_within = first_s >= self.from_s and (self.until_s is None or first_s < self.until_s)
            if is_within and _chance(group[0].session or group[0].request_id) < self.share:
                kept.update(row.request_id for row in group)
        if not kept:
            raise ConfigError(self._why_empty(len(rows), last_s))
        rows = [row for row in rows if row.request_id in kept]
        if self.from_s or self.until_s is not None:
            later_s = begin_s + self.from_s
            rows = [row._replace(arrival_s=round(row.arrival_s - later_s, 9)) for row in rows]
        return rows if self.max_idle_s is None else _without_idle(rows, self.max_idle_s)

    def _why_empty(self, num_rows: int, last_s: float) -> str:
        until = "" if self.until_s is None else f" until {self.until_s:g} s"
        return (
            f"nothing is left of the trace's {num_rows:,} requests, whose sessions begin within {last_s:g} s:"
            f" the window is from {self.from_s:g} s{until}, the share of sessions {self.share:g}; choose a"
            " larger part"
        )


ALL = TracePart()


def _chance(name: str) -> float:
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:7], "big") / 2.0**56


def _without_idle(rows: list[TraceRequest], most_s: float) -> list[TraceRequest]:
    found: list[TraceRequest] = []
    cut_s, previous_s = 0.0, rows[0].arrival_s if rows else 0.0
    for row in rows:
        cut_s += max(0.0, row.arrival_s - previous_s - most_s)
        previous_s = row.arrival_s
        arrival_s = round(row.arrival_s - cut_s, 9) if cut_s else row.arrival_s
        found.append(row._replace(arrival_s=arrival_s, pause_s=min(row.pause_s, most_s)))
    return found
