"""Requests of a trace, and the ids of those without one."""

from sundog.sim.trace.record import default_id, default_ids


def test_many_ids_are_those_of_one_row_after_another() -> None:
    """They sort in order of arrival, up to ten million rows."""
    for first, stop in ((0, 3), (9_999_998, 10_000_001), (7, 7)):
        assert default_ids(first, stop) == [default_id(row) for row in range(first, stop)]
    assert default_ids(8, 11) == ["r0000008", "r0000009", "r0000010"]
