"""Large bodies do not delay other clients' streams, on a live `sundog emulate`.

A body may have 16 MB. Parsing holds the interpreter's lock, so a thread alone does not keep streams going.
"""

import http.client
import json
import threading
import time
from collections.abc import Iterator

import httpx
import pytest

from tests.actors.api.test_live_memory import resident_kb
from tests.live import EMULATED, Live, live
from tests.patience import START_S

MOST_STALL_S = 0.4
"""At most 0.12 s are measured on an idle machine; without limits of shape the first body took 1.7 s."""
MOST_GROWN_KB = 300_000
"""About 150,000 are measured, most of them the bodies themselves; without limits of shape 540,000 were."""
HELLO = b'{"role": "user", "content": "hi"}'
KEYS = b"{%b}" % b",".join(b'"k%d":1' % index for index in range(1_200_000))
MESSAGES = b'{"messages": [%b]}' % b",".join([HELLO] * 400_000)
ARRAYS = b'{"prompt": "x", "y": [%b]}' % b",".join([b"[]"] * 5_000_000)
NESTED = b'{"prompt": "x", "y": [%b]}' % b",".join([b"[" * 150 + b"]" * 150] * 30_000)
NUMBERS = b'{"prompt": [%b]}' % b",".join([b"1"] * 8_000_000)
WRONG_IDS = b'{"tokens": [%b]}' % b",".join([b"-1"] * 1_000_000)
LONG_TEXT = json.dumps({"prompt": '{"a": ["b", "c\\d"]}, ' * 500_000}).encode()
"""About 15 MB of one text, whose punctuation would be too many values were it the body's own."""


class Health(threading.Thread):
    """Asks for /health again and again, and keeps the longest time that an answer took."""

    def __init__(self, server: Live) -> None:
        super().__init__(daemon=True)
        self._connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=START_S)
        self._ends = threading.Event()
        self.longest_s = 0.0
        self.start()

    def run(self) -> None:
        while not self._ends.wait(0.002):
            start_s = time.monotonic()
            self._connection.request("GET", "/health")
            self._connection.getresponse().read()
            self.longest_s = max(self.longest_s, time.monotonic() - start_s)

    def end(self) -> None:
        self._ends.set()
        self.join(START_S)
        self._connection.close()


@pytest.fixture(scope="module")
def server() -> Iterator[Live]:
    """A server of its own, whose memory other tests leave alone."""
    with live(*EMULATED) as server:
        yield server
        server.assert_sound()


def post(server: Live, path: str, body: bytes, status: int, **headers: str) -> str:
    headers = {"Content-Type": "application/json", **headers}
    answer = httpx.post(f"{server.url}{path}", content=body, headers=headers, timeout=START_S)
    assert answer.status_code == status, answer.text[:300]
    return answer.text


@pytest.mark.long(keep=1, reason="more cases of the law whose first `make test` runs", moderate=True)
@pytest.mark.wall_clock
@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        pytest.param("/v1/chat/completions", KEYS, 413, id="keys"),
        pytest.param("/v1/chat/completions", MESSAGES, 413, id="messages"),
        pytest.param("/v1/completions", ARRAYS, 413, id="arrays"),
        pytest.param("/v1/completions", NESTED, 413, id="nested"),
        pytest.param("/v1/completions", NUMBERS, 413, id="numbers"),
        pytest.param("/v1/completions", LONG_TEXT, 400, id="text-beyond-the-context"),
        pytest.param("/detokenize", WRONG_IDS, 400, id="wrong-ids"),
    ],
)
def test_no_body_stops_the_others(server: Live, path: str, body: bytes, status: int) -> None:
    """/health is answered meanwhile, and memory does not grow with the number of values."""
    before_kb = resident_kb(server)
    health = Health(server)
    post(server, path, body, status)
    health.end()
    assert health.longest_s < MOST_STALL_S
    assert resident_kb(server) - before_kb < MOST_GROWN_KB


@pytest.mark.long(keep=1, reason="more cases of the law whose first `make test` runs", moderate=True)
@pytest.mark.parametrize(
    ("body", "says"),
    [
        (KEYS, "The body has 1200001 texts, keys, arrays and objects; at most 131072 are read"),
        (MESSAGES, "texts, keys, arrays and objects; at most 131072 are read"),
        (NUMBERS, "The body has 8000000 values; at most 1049600 are read"),
    ],
)
def test_a_body_of_too_many_values_is_refused_with_the_limit(server: Live, body: bytes, says: str) -> None:
    """And with what to do, on each route."""
    for path in ("/v1/chat/completions", "/v1/responses", "/tokenize"):
        answer = json.loads(post(server, path, body, 413))
        assert says in answer["error"]["message"] and "send less at once" in answer["error"]["message"]


def test_punctuation_within_a_text_is_no_value(server: Live) -> None:
    """However it is escaped; such a text is only too long for the model."""
    assert "context length" in post(server, "/v1/completions", LONG_TEXT, 400)


@pytest.mark.long(reason="starts a server, and asks it over sockets", moderate=True)
def test_nothing_is_parsed_before_the_key() -> None:
    """What no server could parse is a 401 without a key, and a 400 or 413 with it."""
    with live(*EMULATED, "--api-key", "k") as server:
        for path in ("/v1/completions", "/tokenize"):
            for body, status in ((b"{", 400), (KEYS, 413)):
                post(server, path, body, 401)
                post(server, path, body, status, Authorization="Bearer k")
