"""The open load of `make soak`, for two seconds."""

import pytest
import trio

from tests.live import EMULATED, live
from tests.soak.steady import Seen, offered, told


@pytest.mark.long(reason="starts a server and loads it for two seconds", moderate=True)
@pytest.mark.wall_clock
def test_every_request_of_an_open_load_is_answered_or_counted() -> None:
    """60 requests a second for two: those that found no free connection are counted, all others are 200."""
    seen = Seen()
    with live(*EMULATED, "--debug") as server:
        trio.run(offered, server.port, 60.0, 2.0, seen)
        server.assert_sound()
        assert server.stop() == 0
    assert set(seen.statuses) == {200}
    assert seen.statuses.total() == len(seen.latency_s)
    assert 119 <= seen.statuses.total() + seen.num_unasked <= 121
    assert told(seen, 2.0).startswith(f"{len(seen.latency_s)} answers")
