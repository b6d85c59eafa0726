"""Server of one data-parallel rank among several, which are started separately."""

import re

import httpx

from tests.live import EMULATED, START_S, live


def test_a_rank_is_called_by_its_number_and_says_when_it_is_ready() -> None:
    """In the metrics of its engine, and at both paths."""
    with live(*EMULATED, "--data-parallel-rank", "1") as server:
        body = {"prompt": "Hello", "max_tokens": 2}
        assert httpx.post(f"{server.url}/v1/completions", json=body, timeout=START_S).status_code == 200
        assert set(re.findall(r'engine="(\d+)"', httpx.get(f"{server.url}/metrics").text)) == {"1"}
        for path in ("ready", "readyz"):
            assert httpx.get(f"{server.url}/{path}").json() == {"status": "ready"}
        assert server.stop() == 0
