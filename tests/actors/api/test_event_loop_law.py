"""Law: no piece of the event loop works more than 50 ms without yielding, in bytes that a client chose.

The work between two schedule points is counted as CPU time of the event loop's thread, so that a busy machine
changes nothing. The worst bodies of 16 MiB go to every route that takes one.
"""

import gc
import http.client
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trio

import sundog.runtime
from sundog.actors.config.vector_sizes import VectorSizes
from tests.actors.api.conftest import MODEL
from tests.patience import HANGS_S

MOST_PIECE_S = 0.05
"""CPU seconds of one piece, on the slowest machine that runs the tests."""
SIZE = 2**24 - 2**12
HELLO = b'{"role":"user","content":"hi"}'


class Pieces(trio.abc.Instrument):
    """Keeps the longest piece of work between two schedule points, in CPU seconds of the loop's thread."""

    def __init__(self) -> None:
        self.longest_s, self.where, self._begun_s = 0.0, "", time.thread_time()

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self._begun_s = time.thread_time()

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        took_s = time.thread_time() - self._begun_s
        if took_s > self.longest_s:
            self.longest_s, self.where = took_s, task.name


def filled(head: bytes, piece: bytes, last: bytes, most: int = 10**9) -> bytes:
    """Return `head`, then as many pieces as fit, then `last`; at most `most` pieces."""
    number = min(most, (SIZE - len(head) - len(last)) // (len(piece) + 1))
    return head + b",".join([piece] * number) + last


def fields(route: str) -> bytes:
    """The fields of a body that its route needs, without the closing brace."""
    chat = b'"messages":[' + HELLO + b"]"
    return {
        "/v1/completions": b'{"prompt":"hi","max_tokens":1',
        "/v1/chat/completions": b"{" + chat + b',"max_tokens":1',
        "/v1/messages": b'{"model":"tiny/story","max_tokens":1,' + chat,
        "/v1/messages/count_tokens": b'{"model":"tiny/story",' + chat,
        "/v1/responses": b'{"input":"hi","max_output_tokens":1',
        "/v1/responses/input_tokens": b'{"input":"hi"',
        "/v1/embeddings": b'{"input":"hi"',
        "/tokenize": b'{"prompt":"hi"',
        "/detokenize": b'{"tokens":[1]',
    }.get(route, b'{"a":1')


SCHEMA = b'{"type":"object","properties":{%b}}'
PROPERTIES = b",".join(b'"p%d":{"type":"integer"}' % index for index in range(20_000))
BIAS = b",".join(b'"%d":1' % index for index in range(16_000))
KEYS = b",".join(b'"k%d":1' % index for index in range(65_000))
TOOL = b'{"type":"function","function":{"name":"f","parameters":{"type":"object","properties":{}}}}'
OWN_TOOL = b'{"type":"function","name":"f","parameters":{"type":"object","properties":{}}}'
THEIR_TOOL = b'{"name":"f","input_schema":{"type":"object","properties":{}}}'
PART = b'{"type":"text","text":"a"}'
EXTRAS: dict[str, Callable[[bytes], bytes]] = {
    "deep": lambda head: head + b',"x":' + b"[" * 190 + b"]" * 190 + b"}",
    "wide": lambda head: head + b',"metadata":{' + KEYS + b"}}",
    "numbers": lambda head: filled(head + b',"x":[', b"1", b"]}", 2**20),
    "large numbers": lambda head: head + b',"x":' + b"9" * (SIZE - 1000) + b"}",
    "nested": lambda head: filled(head + b',"x":[', b"[" * 100 + b"]" * 100, b"]}", 1300),
    "objects": lambda head: filled(head + b',"metadata":{"x":[', b'{"a":{}}', b"]}}", 40_000),
    "texts": lambda head: filled(head + b',"stop":[', b'"abcd"', b"]}", 120_000),
    "escapes": lambda head: head + b',"user":"' + rb"\u00e9\n" * (SIZE // 9) + b'"}',
    "a text": lambda head: head + b',"x":"' + b" " * (SIZE - 1000) + b'"}',
    "a name": lambda head: head + b',"model":"' + b"m" * (SIZE - 1000) + b'"}',
    "an id": lambda head: head + b',"request_id":"' + b"m" * (SIZE - 1000) + b'"}',
    "base64": lambda head: head + b',"prompt_embeds":"' + b"QUJD" * (SIZE // 4 - 1000) + b'"}',
    "bias": lambda head: head + b',"logit_bias":{' + BIAS + b"}}",
    "schema": lambda head: head + b',"structured_outputs":{"json":' + SCHEMA % PROPERTIES + b"}}",
    "format": lambda head: (
        head
        + b',"response_format":{"type":"json_schema","json_schema":{"name":"x","schema":'
        + SCHEMA % PROPERTIES
        + b"}}}"
    ),
    "text format": lambda head: (
        head + b',"text":{"format":{"type":"json_schema","name":"x","schema":' + SCHEMA % PROPERTIES + b"}}}"
    ),
    "tools": lambda head: filled(head + b',"tools":[', TOOL, b"]}", 15_000),
    "own tools": lambda head: filled(head + b',"tools":[', OWN_TOOL, b"]}", 18_000),
    "their tools": lambda head: filled(head + b',"tools":[', THEIR_TOOL, b"]}", 20_000),
    "big tool": lambda head: (
        head + b',"tools":[{"type":"function","name":"f","parameters":' + SCHEMA % PROPERTIES + b"}]}"
    ),
    "most tools": lambda head: filled(head + b',"tools":[', TOOL, b"]}", 1024),
    "most stops": lambda head: filled(head + b',"stop":[', b'"%b"' % (b"s" * 1024), b"]}", 64),
    "broken": lambda head: head + b',"x":' + b'"a' * 100_000,
    "unknown fields": lambda head: head + b"," + b",".join(b'"k%d":1' % i for i in range(990)) + b"}",
}
LONG = b"Once upon a time " * 900_000
WHOLE: dict[str, dict[str, bytes]] = {
    "/v1/completions": {
        "long": b'{"max_tokens":1,"prompt":"' + LONG + b'"}',
        "ids": filled(b'{"max_tokens":1,"prompt":[', b"5", b"]}", 2**20),
        "prompts": filled(b'{"max_tokens":1,"prompt":[', b'"a"', b"]}", 1024),
        "long prompts": filled(b'{"max_tokens":1,"prompt":[', b'"%b"' % (b"a " * 7_000), b"]}", 1024),
    },
    "/v1/chat/completions": {
        "messages": filled(b'{"max_tokens":1,"messages":[', HELLO, b"]}", 2**14),
        "long": b'{"max_tokens":1,"messages":[{"role":"user","content":"' + LONG + b'"}]}',
        "parts": filled(b'{"max_tokens":1,"messages":[{"role":"user","content":[', PART, b"]}]}", 2**14),
    },
    "/v1/messages": {
        "messages": filled(b'{"model":"tiny/story","max_tokens":1,"messages":[', HELLO, b"]}", 2**14),
        "parts": filled(
            b'{"model":"tiny/story","max_tokens":1,"messages":[{"role":"user","content":[',
            PART,
            b"]}]}",
            2**14,
        ),
    },
    "/v1/messages/count_tokens": {
        "messages": filled(b'{"model":"tiny/story","messages":[', HELLO, b"]}", 2**14),
        "long": b'{"model":"tiny/story","messages":[{"role":"user","content":"' + LONG + b'"}]}',
    },
    "/v1/responses": {
        "messages": filled(b'{"max_output_tokens":1,"input":[', HELLO, b"]}", 2**14),
        "long": b'{"max_output_tokens":1,"input":"' + LONG + b'"}',
        "metadata": b'{"max_output_tokens":1,"input":"a","metadata":{"a":"' + b"z" * 15_000_000 + b'"}}',
    },
    "/v1/responses/input_tokens": {
        "messages": filled(b'{"input":[', HELLO, b"]}", 2**14),
        "long": b'{"input":"' + LONG + b'"}',
    },
    "/tokenize": {
        "messages": filled(b'{"messages":[', HELLO, b"]}", 2**14),
        "long": b'{"prompt":"' + LONG + b'"}',
        "strings": b'{"return_token_strs":true,"prompt":"' + LONG[:3_000_000] + b'"}',
    },
    "/detokenize": {
        "ids": filled(b'{"tokens":[', b"5", b"]}", 2**19 - 2),
        "more ids": filled(b'{"tokens":[', b"5", b"]}", 2**20 - 2),
    },
    "/v1/embeddings": {
        "texts": filled(b'{"input":[', b'"a"', b"]}", 2**16),
        "ids": filled(b'{"input":[', b"5", b"]}", 2**20),
    },
}
OPERATORS = {"/reset_prefix_cache", "/abort_requests", "/pause", "/resume", "/drain", "/undrain"}
"""Routes of operators, who are no clients."""
ALL_KINDS = {"/v1/completions", "/v1/chat/completions", "/v1/responses"}
"""Routes that get bodies of every kind; the others, which are parsed by the same function, get their own."""
VECTORS = {"/v1/embeddings", "/pooling", "/score", "/v1/score", "/rerank", "/v1/rerank", "/v2/rerank"}
ROUTES = sorted(
    {
        *WHOLE,
        *VECTORS,
        "/ping",
        "/v1/load_lora_adapter",
        "/v1/unload_lora_adapter",
        "/v1/responses/<name>/cancel",
    }
)


@pytest.fixture
def collected_as_in_a_server() -> Iterator[None]:
    """Keep what other tests made from the garbage collector, as a server does with its own start."""
    from sundog.builds.server import OFTEN

    thresholds = gc.get_threshold()
    gc.collect()
    gc.freeze()
    gc.set_threshold(*OFTEN)
    yield
    gc.set_threshold(*thresholds)
    gc.unfreeze()


def posted(port: int, route: str, body: bytes) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=HANGS_S)
    connection.request("POST", route, body, {"Content-Type": "application/json"})
    answer = connection.getresponse()
    answer.read()
    connection.close()
    return answer.status


@pytest.mark.long(keep=1, reason="more cases of the law whose first `make test` runs", moderate=True)
@pytest.mark.wall_clock
@pytest.mark.usefixtures("collected_as_in_a_server")
@pytest.mark.parametrize("route", ROUTES)
async def test_no_body_keeps_the_event_loop_for_50_ms(serving: Any, route: str) -> None:
    """Of any kind, on any route; the server answers each."""
    pytest.importorskip("tokenizers", reason="the serve extra is not installed")
    from sundog.runtime.text.tokenizer import Tokenizer

    codec = Tokenizer(Path(sundog.runtime.__file__).parent / "assets" / "sundog-tiny")
    kinds = EXTRAS if route in ALL_KINDS else {name: EXTRAS[name] for name in ("numbers", "a text")}
    bodies = {name: make(fields(route)) for name, make in kinds.items()} | WHOLE.get(route, {})
    model = replace(MODEL, vectors=VectorSizes(64)) if route in VECTORS else MODEL
    late = []
    async with serving(codec=codec, model=model, max_body_bytes=2**24) as site:
        for name, body in bodies.items():
            assert len(body) <= 2**24, name
            pieces = Pieces()
            trio.lowlevel.add_instrument(pieces)
            status = await trio.to_thread.run_sync(posted, site.port, route.replace("<name>", "resp_x"), body)
            trio.lowlevel.remove_instrument(pieces)
            assert 200 <= status < 500 or status == 501, (name, status)
            if pieces.longest_s > MOST_PIECE_S:
                late.append(f"{name}: {pieces.longest_s:.3f} s in {pieces.where} ({status})")
    assert not late, late


@pytest.mark.wall_clock
async def test_the_law_of_the_event_loop_is_checked_on_every_route(serving: Any) -> None:
    async with serving() as site:
        posts = {rule.rule for rule in site.app.url_map.iter_rules() if "POST" in rule.methods}
    assert posts - OPERATORS <= set(ROUTES), posts - OPERATORS - set(ROUTES)
