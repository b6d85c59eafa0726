"""Fuzzing over real sockets: random and hostile requests never harm the server.

The servers run with `--debug`, which verifies all queues and blocks whenever the engine falls idle.
"""

import json
import socket
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.live import EMULATED, Live, live

POST = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
GET = b"GET /health HTTP/1.1\r\nHost: x\r\n"
ERROR_KEYS = {"message", "type", "param", "code"}
TOKENS = (0, 1, 2, 3, 1535)

EDGES = [0, 1, 2, 5, 256, *(2**bits + more for bits in (31, 32, 63, 64) for more in (-1, 0, 1)), 10**400]
FRACTIONS = [0.5, 1e-320, 1e-6, 1e38, 1e39, 1e308, float("inf"), float("nan")]
NUMBERS: Any = (
    st.integers(0, 4)
    | st.floats(0, 1)
    | st.sampled_from([sign * number for number in [*EDGES, *FRACTIONS] for sign in (1, -1)])
)
TEXTS: Any = (
    st.text(max_size=20)
    | st.text("abc")
    | st.sampled_from(["", "\x00", "\ud800", "\U0001f600", "a" * 5000, "</s>"])
)
TOKEN_IDS: Any = st.lists(st.sampled_from(TOKENS) | NUMBERS, max_size=6) | st.just(list(TOKENS) * 200)
ANYTHING: Any = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=6,
)
FIELDS: dict[str, Any] = {
    "temperature": NUMBERS,
    "top_p": NUMBERS,
    "top_k": NUMBERS,
    "seed": NUMBERS,
    "min_tokens": NUMBERS,
    "max_tokens": NUMBERS,
    "priority": NUMBERS,
    "stop": TEXTS | st.lists(TEXTS, max_size=70),
    "stop_token_ids": TOKEN_IDS | st.just(list(range(256))),
    "ignore_eos": st.booleans(),
    "cache_salt": TEXTS,
    "stream": st.booleans(),
    "stream_options": st.fixed_dictionaries({"include_usage": st.booleans()}),
    "n": NUMBERS,
    "logprobs": NUMBERS,
    "model": TEXTS,
    "user": TEXTS,
    "echo": st.booleans(),
    "top_logprobs": NUMBERS,
    "prompt_logprobs": NUMBERS,
    "return_token_ids": st.booleans(),
    "return_tokens_as_token_ids": st.booleans(),
    "truncate_prompt_tokens": NUMBERS,
    "truncation_side": st.sampled_from(["left", "right", "middle"]),
    "add_special_tokens": st.booleans(),
    "skip_special_tokens": st.booleans(),
    "spaces_between_special_tokens": st.booleans(),
    "include_stop_str_in_output": st.booleans(),
    "add_generation_prompt": st.booleans(),
    "continue_final_message": st.booleans(),
    "chat_template_kwargs": st.dictionaries(
        TEXTS | st.sampled_from(["messages", "bos_token", "range"]), ANYTHING
    ),
    "documents": st.lists(st.dictionaries(TEXTS, TEXTS, max_size=2), max_size=2),
    "request_id": TEXTS,
    "tenant": TEXTS,
    "slo_ttft_s": NUMBERS,
    "slo_e2e_s": NUMBERS,
    "predicted_tokens": NUMBERS,
}
PROMPTS: Any = TEXTS | TOKEN_IDS | st.lists(TEXTS, max_size=4) | st.lists(TOKEN_IDS, max_size=3)
TURNS: Any = st.fixed_dictionaries(
    {"role": st.sampled_from(["user", "assistant", "system", "tool"]) | TEXTS, "content": TEXTS | ANYTHING}
)
SOUND: Any = st.lists(st.sampled_from(sorted(FIELDS)), max_size=3, unique=True).flatmap(
    lambda names: st.fixed_dictionaries({name: FIELDS[name] for name in names})
)
STRANGE: Any = st.just({}) | st.dictionaries(st.sampled_from([*FIELDS, "odd"]) | TEXTS, ANYTHING, max_size=1)


def merged(*parts: dict[str, object]) -> dict[str, object]:
    """One body of several parts, the later ones winning."""
    return {name: value for part in parts for name, value in part.items()}


def bodies(path: str, **required: Any) -> Any:
    return st.tuples(st.just(path), st.builds(merged, st.fixed_dictionaries(required), SOUND, STRANGE))


REQUESTS = bodies("completions", prompt=st.just("Once") | PROMPTS) | bodies(
    "chat/completions", messages=st.just([{"role": "user", "content": "Hi"}]) | st.lists(TURNS, max_size=3)
)


@pytest.fixture(scope="module")
def emulated() -> Iterator[Live]:
    with live(*EMULATED, "--debug", "--max-body-mib", "13") as server:
        yield server


@pytest.fixture(scope="module")
def embedded() -> Iterator[Live]:
    pytest.importorskip("torch", reason="the engine extra is not installed")
    with live("sundog", "serve", "--port", "0", "--num-gpu-blocks", "256", "--debug") as server:
        yield server


def check_answer(client: httpx.Client, path: str, body: dict[str, object]) -> int:
    """Send a body; the status. An error has OpenAI's shape; what takes long is left in the middle."""
    body = {"max_tokens": 2} | body
    content = json.dumps(body).encode()
    headers = {"Content-Type": "application/json"}
    deadline_s = time.monotonic() + 0.1
    with client.stream("POST", f"/v1/{path}", content=content, headers=headers) as response:
        data = response.read() if response.status_code >= 400 else b""
        for piece in () if data else response.iter_bytes():
            data += piece
            if time.monotonic() > deadline_s:
                break
    assert response.status_code < 500, data
    assert b'"error": {' not in data or response.status_code >= 400, data
    if response.status_code >= 400:
        error = json.loads(data)["error"]
        assert set(error) == ERROR_KEYS and 0 < len(error["message"]) < 1000
    return response.status_code


def fuzz(server: Live, num_bodies: int) -> None:
    statuses: dict[int, int] = {}
    with httpx.Client(base_url=server.url, timeout=httpx.Timeout(10, read=0.2)) as client:

        @settings(
            max_examples=num_bodies,
            deadline=None,
            database=None,
            derandomize=True,
            suppress_health_check=list(HealthCheck),
        )
        @given(REQUESTS)
        def each(request: tuple[str, dict[str, object]]) -> None:
            try:
                status = check_answer(client, *request)
            except httpx.ReadTimeout:  # a long answer: its client has left
                status = 200
            statuses[status] = statuses.get(status, 0) + 1

        each()

    assert statuses[200] >= 10 and statuses[400] >= 10, statuses
    assert_serves(server)


def assert_serves(server: Live) -> None:
    """It answers well, falls idle with every block free, and complained of nothing."""
    answer = httpx.post(f"{server.url}/v1/completions", json={"prompt": "Hello", "max_tokens": 3})
    assert answer.status_code == 200 and answer.json()["usage"]["completion_tokens"] > 0
    server.assert_sound()


@pytest.mark.long(
    reason="hundreds of random bodies over HTTP; test_error_shapes.py has the refusals one by one"
)
def test_no_body_hurts_an_emulated_server(emulated: Live) -> None:
    """Sound and strange fields in any mixture: 200 or a 4xx in OpenAI's shape."""
    fuzz(emulated, 150)


@pytest.mark.long(
    reason="hundreds of random bodies over HTTP; test_error_shapes.py has the refusals one by one"
)
def test_no_body_hurts_the_embedded_model(embedded: Live) -> None:
    """The same where numbers reach torch."""
    fuzz(embedded, 100)


@pytest.mark.long(reason="starts a server, and asks it over sockets", moderate=True)
def test_the_numbers_that_once_ended_the_process(embedded: Live) -> None:
    """Each reaches the sampler or is refused; either way the server lives."""
    with httpx.Client(base_url=embedded.url) as client:
        for fields in (
            {"top_k": 2**63},
            {"top_k": 2**31 - 1},
            {"min_tokens": 2, "max_tokens": 4},
            {"min_tokens": 2, "max_tokens": 4, "stop_token_ids": [1535, 2**31 - 1]},
            {"min_tokens": 2, "max_tokens": 4, "stop_token_ids": list(range(256))},
            {"temperature": 1e6},
            {"temperature": 1e-300, "top_p": 1e-300},
            {"seed": -(2**63)},
            {"priority": -(2**63)},
        ):
            assert check_answer(client, "completions", {"prompt": "Once", **fields}) in (200, 400), fields
    assert_serves(embedded)


HOSTILE = [
    b"",
    b"\r\n\r\n\r\n",
    b"\x00" * 100,
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    b"GET http://[ HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET ?a HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET //health HTTP/1.1\r\nHost: x\r\n\r\n",
    b"OPTIONS * HTTP/1.1\r\nHost: x\r\n\r\n",
    b"CONNECT a:1 HTTP/1.1\r\nHost: x\r\n\r\n",
    b"F~ /%00%ff%fe?%ff=% HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET /v1/models/%ff%2f..%2f HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET /health HTTP/1.1\r\nHost: " + b"a" * 300 + b"\r\n\r\n",
    b"GET /health HTTP/1.1\r\nHost: [::\r\n\r\n",
    b"GET /health HTTP/1.1\r\nHost: \xff\xfe\r\n\r\n",
    b"GET /health HTTP/1.1\r\n\r\n",
    b"GET /health HTTP/9.9\r\nHost: x\r\n\r\n",
    b"PRI * HTTP/1.1\r\n\r\n",
    b"PRI * HTTP/2.0\r\n\r\nXX\r\n\r\n",
    GET + b"X-Request-Id: \xff\xfe\r\nCookie: \xff=;;\r\nAuthorization: Bearer \xff\r\n\r\n",
    GET + b"A: b\r\n" * 5000 + b"\r\n",
    GET + b"A: " + b"b" * 70_000 + b"\r\n\r\n",
    b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n",
    GET + b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: !!!!\r\n\r\n",
    GET + b"Connection: Upgrade\r\nUpgrade: websocket\r\n\r\n",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\xff" * 100,
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x05\x01\x05\x00\x00\x00\x01\xff\xff\xff\xff\xff",
    POST + b"Content-Length: -1\r\n\r\n",
    POST + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\n",
    POST + b"Content-Length: " + b"9" * 30 + b"\r\n\r\n",
    POST + b"Content-Length: 100\r\n\r\n{",
    POST + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n",
    POST + b"Transfer-Encoding: chunked\r\n\r\n" + b"f" * 40 + b"\r\n",
    POST + b"Transfer-Encoding: chunked\r\n\r\n5\r\n{",
    POST + b"Transfer-Encoding: chunked\r\n\r\n0\r\n" + b"A: b\r\n" * 20_000,
    POST + b"Transfer-Encoding: chunked\r\n\r\n1;" + b"a" * 200_000,
    POST + b"Expect: nonsense\r\nContent-Length: 2\r\n\r\n{}",
]


@pytest.mark.long(keep=1, reason="more cases of the law whose first `make test` runs", moderate=True)
@pytest.mark.parametrize("number", range(len(HOSTILE)))
def test_no_bytes_hurt_the_server(emulated: Live, number: int) -> None:
    """Half requests, noise and other protocols cost their sender an answer, or the connection."""
    with socket.create_connection(("127.0.0.1", emulated.port), 5) as client:
        client.sendall(HOSTILE[number])
        client.settimeout(0.05)
        try:
            answer = client.recv(100)
        except TimeoutError:
            answer = b""
    assert not answer.startswith(b"HTTP/1.1 5") or answer[9:12] in (b"501", b"505"), answer
    assert httpx.get(f"{emulated.url}/health").status_code == 200
    emulated.assert_sound()


def test_a_body_is_limited_and_the_limit_is_named(emulated: Live) -> None:
    """413 at what `--max-body-mib` says, whether its length is announced or not."""
    for body in (b"x" * (13 * 2**20 + 1), iter([b"x" * 2**20] * 14)):
        answer = httpx.post(
            f"{emulated.url}/v1/completions", content=body, headers={"Content-Type": "application/json"}
        )
        assert answer.status_code == 413 and str(13 * 2**20) in answer.json()["error"]["message"]
    assert_serves(emulated)
