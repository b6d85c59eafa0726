"""Programs of agents: requests that follow one another, from the first arrival to the last token."""

from collections.abc import Iterable

from sundog.sim.trace.record import TraceRequest


class Programs:
    """Programs of a run. A request joins all that it follows into one program."""

    def __init__(self) -> None:
        self.arrival_s: dict[str, float] = {}
        self.end_s: dict[str, float] = {}
        """Times of arrived requests of sessions, and of those with all their tokens."""
        self._first: dict[str, str] = {}
        """First attempt of each retried request."""
        self._tied_to: dict[str, str] = {}
        """Later request of the same program; itself for the last so far."""

    @classmethod
    def of(
        cls, trace: Iterable[TraceRequest], arrival_s: dict[str, float], end_s: dict[str, float]
    ) -> "Programs":
        """Return the programs of a finished run, from the times of arrivals and ends."""
        programs = cls()
        for row in (row for row in trace if row.session is not None):
            programs.ties(row.request_id, row.after)
        for name in arrival_s:
            first, _, attempt = name.rpartition("~")
            if attempt.isdecimal() and name not in programs._tied_to and first in programs._tied_to:
                programs.asked_again(name, first)
        for name, at_s in arrival_s.items():
            programs.arrives(name, at_s)
        for name, at_s in end_s.items():
            programs.ends(name, at_s)
        return programs

    def asked_again(self, request_id: str, first: str) -> None:
        """Record that a failed request will be sent again under another name."""
        self._first[request_id] = first

    def arrives(self, request_id: str, at_s: float) -> None:
        """Record the arrival of a session's request; a retry has arrived already."""
        if request_id not in self._first:
            self.arrival_s[request_id] = at_s

    def ties(self, request_id: str, after: Iterable[str]) -> None:
        """Record that a request of a session will be sent `after` these."""
        self._tied_to[request_id] = request_id
        for name in after:
            if name in self._tied_to:
                self._tied_to[self._last(name)] = request_id

    def ends(self, request_id: str, at_s: float) -> None:
        """Record that a request has all its tokens."""
        request_id = self._first.get(request_id, request_id)
        if request_id in self.arrival_s:
            self.end_s[request_id] = at_s

    def spans_s(self) -> list[tuple[float, float]]:
        """Return when each program began and how long it took; empty if no request followed another.

        A program with an incomplete request is left out. O(requests of sessions)
        """
        programs = self.parts()
        if len(programs) == len(self._tied_to):
            return []
        whole = [names for names in programs if all(name in self.end_s for name in names)]
        begins = [min(self.arrival_s[name] for name in names) for names in whole]
        ends = [max(self.end_s[name] for name in names) for names in whole]
        return [(begin_s, end_s - begin_s) for begin_s, end_s in zip(begins, ends, strict=True)]

    def parts(self) -> list[list[str]]:
        """Return the requests of each program, in the order in which they were joined."""
        found: dict[str, list[str]] = {}
        for name in self._tied_to:
            found.setdefault(self._last(name), []).append(name)
        return list(found.values())

    def _last(self, name: str) -> str:
        """Return the request that represents a program, and shorten the path to it (union-find)."""
        tied_to = self._tied_to
        while (later := tied_to[name]) != name:
            tied_to[name] = name = tied_to[later]
        return name
