"""Processes of a loaded server are killed and stopped one after another, for half a minute."""

import pytest

pytest.importorskip("torch", reason="the engine extra is not installed")

from tests.soak.signals import NUM_CLIENTS, RANKS, REPLICAS, hurt_for


@pytest.mark.long(rare=True, reason="stops and kills processes under load for minutes")
@pytest.mark.wall_clock
@pytest.mark.parametrize("engines", [REPLICAS, RANKS], ids=["replicas", "ranks"])
def test_killed_and_stopped_processes_lose_no_request(engines: tuple[str, ...]) -> None:
    """Half a minute of it: engines, ranks, doors and their fork servers; each client has an answer."""
    report = hurt_for(30, 3, engines)
    assert report.recovery_s and report.outcomes["whole"] >= NUM_CLIENTS
