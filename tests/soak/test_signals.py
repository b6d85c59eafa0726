"""A loaded server whose processes are killed and stopped one after another, for a minute."""

import pytest

pytest.importorskip("torch", reason="the engine extra is not installed")

from tests.soak.signals import hurt_for


@pytest.mark.long
@pytest.mark.wall_clock
def test_killed_and_stopped_processes_lose_no_request() -> None:
    """A minute of it: engines, doors and their fork servers."""
    assert hurt_for(60, 4).outcomes["whole"] > 100
