"""Groups of rows that belong together: sessions, and rows that follow one another."""

from collections.abc import Sequence

from sundog.sim.trace.record import TraceRequest


def whole_sessions(rows: Sequence[TraceRequest]) -> list[list[TraceRequest]]:
    """Return the rows in groups that must stay together, each in the order of the trace.

    Rows of one session are together, and rows with those that they follow. A row without either is a group of
    its own. Groups are in the order of their first rows. O(rows)
    """
    first_of: dict[str, int] = {}
    """First row of each session, and of each id that a later row may follow."""
    joined = list(range(len(rows)))

    def first(index: int) -> int:
        while joined[index] != index:
            joined[index] = index = joined[joined[index]]
        return index

    for index, row in enumerate(rows):
        if row.session is None:
            continue
        for name in (f"session {row.session}", *(f"row {name}" for name in row.after)):
            one, other = sorted((first(first_of.setdefault(name, index)), first(index)))
            joined[other] = one
        first_of[f"row {row.request_id}"] = index
    found: dict[int, list[TraceRequest]] = {}
    for index, row in enumerate(rows):
        found.setdefault(first(index), []).append(row)
    return [found[index] for index in sorted(found)]
