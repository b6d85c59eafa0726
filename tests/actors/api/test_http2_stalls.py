"""Readers over HTTP/2 that stall: the connection is read, and the window of one answer never opens."""

import json
from typing import Any

import h2.events
import pytest
import trio

from actors.api import HttpSettings
from tests.actors.api.http2_client import Http2
from tests.actors.api.wire import completion
from tests.patience import HANGS_S

pytestmark = pytest.mark.wall_clock

LONG = json.dumps({"prompt": "x", "stream": True, "max_tokens": 40}).encode()
WHOLE = json.dumps({"prompt": "x", "max_tokens": 40}).encode()


@pytest.mark.parametrize("body", [LONG, WHOLE])
async def test_an_answer_that_is_not_read_is_reset_and_the_others_go_on(serving: Any, body: bytes) -> None:
    """It is cancelled, its connection lives, and what is asked there next is answered."""
    async with serving(settings=HttpSettings(stalled_answer_s=0.4)) as site, await site.connect() as stream:
        site.llm.word_size, site.llm.gap_s = 10_000, 0.05
        client = Http2(stream, window=20_000)
        stalled = await client.ask(body)
        with trio.fail_after(HANGS_S):
            await client.until(h2.events.StreamReset, stalled)
            if body is LONG:
                await site.llm.until(lambda llm: len(llm.cancelled) == 1)
            site.llm.word_size, site.llm.gap_s = 1, 0.0
            again = await client.ask(LONG)
            assert (await client.until(h2.events.StreamEnded, again)).endswith(b"data: [DONE]\n\n")
        assert len(site.llm.asked) == 2


async def test_an_answer_that_is_read_slowly_comes_whole(serving: Any) -> None:
    """Its window opens now and then: it takes several times as long as a stall may."""
    async with serving(settings=HttpSettings(stalled_answer_s=1.0)) as site, await site.connect() as stream:
        site.llm.word_size = 1_000
        client = Http2(stream, window=4_000)
        slow, data = await client.ask(LONG), b""
        with trio.fail_after(HANGS_S):
            while not data.endswith(b"data: [DONE]\n\n"):
                await trio.sleep(0.1)
                for event in client.http.receive_data(bytes(await stream.receive_some())):
                    if isinstance(event, h2.events.DataReceived):
                        data += event.data
                        client.http.acknowledge_received_data(event.flow_controlled_length, slow)
                    assert not isinstance(event, h2.events.StreamReset)
                await client.flush()
        assert data.count(b"w39 ") == 1_000 and not site.llm.cancelled


async def test_a_connection_whose_answers_were_reset_is_idle_again(serving: Any) -> None:
    """Its keep-alive timer runs: it is closed after a while, and the server can stop."""
    settings = HttpSettings(stalled_answer_s=0.2, keep_alive_s=0.3)
    async with serving(settings=settings) as site, await site.connect() as stream:
        site.llm.word_size = 10_000
        client = Http2(stream, window=1_000)
        with trio.fail_after(HANGS_S):
            await client.until(h2.events.StreamReset, await client.ask(LONG))
            while await stream.receive_some():
                pass


async def test_an_answer_of_http1_has_the_limit_of_its_socket_alone(serving: Any) -> None:
    """What HTTP/1.1 streams slower than that is not cut."""
    async with serving(settings=HttpSettings(stalled_answer_s=0.1)) as site, await site.connect() as stream:
        site.llm.gap_s, data = 0.15, b""
        await stream.send_all(completion(stream=True, max_tokens=4))
        while not data.endswith(b"0\r\n\r\n"):
            data += await stream.receive_some()
    assert b"[DONE]" in data
