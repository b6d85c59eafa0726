"""Shutdown of a live server: it reports that it stops, finishes running requests, and ends."""

import signal
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from tests.actors.api.test_live_dashboard import events
from tests.live import EMULATED, START_S, Stream, live

LONG: dict[str, Any] = {"max_tokens": 600, "ignore_eos": True}
KEY = {"Authorization": "Bearer secret"}


@pytest.mark.long(reason="starts a server, and asks it over sockets", moderate=True)
def test_a_server_that_stops_turns_new_requests_away_while_it_finishes_the_others() -> None:
    """/health is 503 and so is what is asked now, with a time to come again; a stream that runs is whole."""
    with live(*EMULATED, "--debug", "--grace", "300") as server:
        stream = Stream(server, **LONG)
        stream.begun.wait()
        server.process.send_signal(signal.SIGTERM)
        server.until_health(503)
        health = server.health()
        assert health.json() == {"status": "stopping"} and health.headers["Retry-After"] == "1"
        refused = server.complete(max_tokens=1)
        assert refused.status_code == 503 and refused.headers["Retry-After"] == "1"
        assert "shutting down" in refused.json()["error"]["message"]
        assert stream.whole()[-1]["choices"][0]["finish_reason"] == "length"
        assert server.ended() == 0


def test_what_a_paused_server_holds_up_is_turned_away_when_it_stops() -> None:
    """Nobody waits for a server that ends."""
    with live(*EMULATED, "--admin-key", "secret") as server:
        assert httpx.post(f"{server.url}/pause", headers=KEY, timeout=START_S).status_code == 200
        with ThreadPoolExecutor(1) as asking:
            held = asking.submit(server.complete, max_tokens=1)
            assert next(gate for gate in events(server.url, "gate") if gate["num_held"])["is_paused"]
            assert not held.done()
            server.process.send_signal(signal.SIGTERM)
            answer = held.result()
        assert answer.status_code == 503 and answer.headers["Retry-After"] == "1"
        assert server.ended() == 0
