"""The fast path of streams (templates, written past Quart) sends the same bytes as the plain path."""

import json
import re
from typing import Any

import pytest
import trio
from hypothesis import example, given, settings
from hypothesis import strategies as st

from sundog.actors.api.answers.choices import AnswerChoice, AnswerChoices, AskedPrompt, ChoiceView, Wanted
from sundog.actors.api.answers.shapes import COMPLETION, ChatShape, ResponseShape
from sundog.actors.api.answers.sse import SLOT, ChunkWriter, Events
from sundog.actors.api.context import AnswerFormats
from sundog.actors.api.errors import as_vllm
from sundog.actors.core.params.sampling import Sampling
from sundog.actors.kernel.stream import Delta, DeltaStream
from sundog.actors.messages import Generate
from tests.actors.api.wire import completion, post
from tests.actors.fakes import BytesDecoder

STRANGE = [
    "",
    "\x00",
    "\ud800",
    "\udfff\ud800",
    "\r\n\r\ndata: [DONE]\n\n",
    "\u2028",
    '"\\',
    SLOT,
    "\x7f\x80",
]
HOSTILE = st.text(st.characters(exclude_categories=())) | st.sampled_from(STRANGE)
SHAPES: list[ResponseShape] = [COMPLETION, ChatShape()]


class Unasked:
    """An AsyncLLM that only hears cancels."""

    async def ask(self, message: object) -> Any:
        raise AssertionError(message)

    def tell(self, message: object) -> None: ...


def writer_of(
    shape: ResponseShape, name: str
) -> tuple[ChunkWriter, AnswerChoices, DeltaStream, dict[str, object]]:
    """A writer of one choice, what it reads, and what each chunk of it begins with."""
    stream = DeltaStream()
    asked = AskedPrompt(Unasked(), 0, Generate("x", Sampling(), request_id="r"))
    choices = AnswerChoices([AnswerChoice(0, asked, stream, is_first=True)])
    head: dict[str, object] = {"id": name, "object": shape.chunk_object, "created": 1, "model": name}
    views = [ChoiceView(choice, Wanted(), None) for choice in choices.all]
    return ChunkWriter(shape, head, choices, views, as_vllm), choices, stream, head


@pytest.mark.long(keep=1, reason="more cases of the law whose first `make test` runs", moderate=True)
@pytest.mark.parametrize("shape", SHAPES)
@settings(max_examples=150, deadline=None, database=None, derandomize=True)
@given(texts=st.lists(HOSTILE, min_size=2, max_size=4), name=HOSTILE)
@example(texts=["a", "\U0001f98a\ud83e" * 500_000], name=SLOT)
def test_a_template_is_json_dumps(shape: ResponseShape, texts: list[str], name: str) -> None:
    """For surrogates, NUL, separators of lines and events, a megabyte, and names like the slot itself."""
    writer, choices, _, head = writer_of(shape, name)
    (choice,) = choices.all
    view = ChoiceView(choice, Wanted(), None)
    writer.delta(choice, Delta(texts[0], (1,), 1))
    for text in texts[1:]:
        delta = Delta(text, (1,), 1)
        chunk = head | {"choices": [shape.chunk(view, delta, is_first=False)]}
        assert writer.delta(choice, delta) == f"data: {json.dumps(chunk, separators=(',', ':'))}\n\n".encode()


@settings(max_examples=100, deadline=None, database=None, derandomize=True)
@given(
    text=st.text(min_size=1) | st.just("🦊👩‍👩‍👧é"), takes=st.lists(st.booleans(), min_size=1, max_size=40)
)
def test_characters_split_over_tokens_arrive_whole(text: str, takes: list[bool]) -> None:
    """Every byte a token, read at any time: the events' texts are the text, and the end comes once."""
    writer, choices, stream, _ = writer_of(COMPLETION, "m")
    events, decoder, tokens = Events(choices, writer), BytesDecoder(), text.encode()
    num_told, body = 0, b""

    def tell() -> None:
        nonlocal num_told
        num_told += 1

    events.watch(tell)
    for index, token in enumerate(tokens):
        last = "length" if index == len(tokens) - 1 else None
        stream.put(Delta(decoder.step(token), (token,), 1, last))
        if takes[index % len(takes)] or last:
            assert num_told == 1, "once, however much came"
            num_told, body = 0, body + events.take()
    assert events.is_over and events.take() == b"" and body.count(b"[DONE]") == 1
    chunks = [json.loads(line[6:]) for line in body.decode().split("\n\n")[:-2]]
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == text


async def answered(site: Any, request: bytes) -> bytes:
    """All bytes of an answer, without what differs from one to the next."""
    async with await site.connect() as stream:
        await stream.send_all(request)
        data = b""
        while not data.endswith(b"0\r\n\r\n"):
            received: bytes = await stream.receive_some()
            assert received, data
            data += received
    return re.sub(rb"(?i)x-request-id: \w+|date: [^\r]+|cmpl-\w+|created\":\d+", b"", data)


ASKED = [
    {"max_tokens": 5},
    {"max_tokens": 1, "stream_options": {"include_usage": True}},
    {"max_tokens": 4, "stream_options": {"include_usage": True, "continuous_usage_stats": True}},
    {"max_tokens": 3, "return_token_ids": True, "echo": True},
]


@pytest.mark.wall_clock
async def test_the_bytes_of_a_stream_are_those_of_its_deltas(serving: Any) -> None:
    """For completions and chats: joined as they come, or one by one, the events say the same."""
    chat = b'{"messages": [{"role": "user", "content": "x"}], "stream": true, "max_tokens": 3}'
    requests = [completion(stream=True, **fields) for fields in ASKED] + [post(chat, "/v1/chat/completions")]
    async with serving() as site:
        slow, quick = [], []
        for gap_s, answers in ((0.002, slow), (0.0, quick)):
            site.llm.gap_s = gap_s
            for request in requests:
                answers.append(text_of(await answered(site, request)))
        assert slow == quick and all(slow)


def text_of(answer: bytes) -> bytes:
    """All text of the chunks of an answer, which must end well."""
    assert b"data: [DONE]" in answer and b"transfer-encoding: chunked" in answer.lower()
    return b"".join(re.findall(rb'"(?:text|content)":"([^"]*)"', answer))


@pytest.mark.wall_clock
async def test_a_stream_is_sent_by_its_interval(serving: Any) -> None:
    """Each choice by itself: its first token at once, then at least so many, and the rest with its end."""
    async with serving(answers=AnswerFormats(stream_interval=4)) as site:
        site.llm.gap_s = 0.002
        answer = await answered(site, completion(stream=True, max_tokens=10, n=2))
        for index in (0, 1):
            texts = re.findall(rb'"index":%d,"text":"([^"]*)"' % index, answer)
            assert b"".join(texts) == b"".join(b"w%d " % number for number in range(10))
            sizes = [text.count(b" ") for text in texts]
            assert all(size >= 4 for size in sizes[1:-1]) and len(sizes) <= 4, sizes


@pytest.mark.wall_clock
async def test_an_old_client_gets_a_body_without_chunks(serving: Any) -> None:
    """HTTP/1.0 knows none: its body ends with the connection."""
    async with serving() as site, await site.connect() as stream:
        await stream.send_all(completion(stream=True, max_tokens=3).replace(b"HTTP/1.1", b"HTTP/1.0"))
        data = b"".join([bytes(part) async for part in stream])
    assert data.endswith(b"data: [DONE]\n\n") and b"\r\n\r\ndata: {" in data and b"chunked" not in data


@pytest.mark.long(reason="replays many requests, or many random cases", moderate=True)
@pytest.mark.wall_clock
async def test_a_reader_that_stops_costs_its_own_memory_alone(serving: Any) -> None:
    """Others are served meanwhile, little is kept for it, and when it reads again it misses no byte."""
    async with serving() as site:
        site.llm.word_size, site.llm.may_finish = 1000, trio.Event()
        async with await site.connect() as stopped:
            await stopped.send_all(completion(stream=True, max_tokens=4000))
            await site.llm.until(lambda llm: len(llm.asked) == 1)
            for _ in range(5):
                site.llm.may_finish.set()
                assert b"w7 " in await answered(site, completion(stream=True, max_tokens=8))
                site.llm.may_finish = trio.Event()
            site.llm.may_finish.set()
            data = bytearray()
            while not data.endswith(b"0\r\n\r\n"):
                data += await stopped.receive_some()
    texts = re.findall(rb'"text":"([^"]*)"', data)
    words = b"".join(texts).split()
    assert list(dict.fromkeys(words)) == [b"w%d" % index for index in range(4000)]
    assert len(texts) < 4000, "what was not read has merged"


def test_the_stream_ends_in_an_error_event_when_writing_fails(caplog: pytest.LogCaptureFixture) -> None:
    """Once the body has begun there is no other way to say it."""
    writer, choices, stream, _ = writer_of(COMPLETION, "m")
    events = Events(choices, writer)
    stream.put(Delta("x", (1,), 1))
    choices.all[0].index = 7  # which no view is of
    body = events.take()
    assert b'"error"' in body and body.endswith(b"data: [DONE]\n\n") and events.is_over
    assert "a stream failed" in caplog.text
