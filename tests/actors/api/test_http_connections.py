"""Connections under unusual client behaviour; each test covers one trap of the HTTP stack."""

import json
import resource
import socket
from http import HTTPStatus
from typing import Any

import pytest
import trio

from sundog.actors.config.http import HttpSettings
from sundog.actors.kernel.actor import ActorDied
from sundog.actors.messages import Refused
from tests.actors.api.wire import CLOSE, GET, completion

pytestmark = pytest.mark.wall_clock


async def read_to_end(stream: trio.abc.Stream) -> bytes:
    data = b""
    while received := await stream.receive_some():
        data += received
    return data


async def test_connection_close_closes(serving: Any) -> None:
    """After `Connection: close` the server hangs up, for whole answers and streams."""
    stream_request = completion(stream=True).replace(b"Host: x", b"Host: x\r\nConnection: close")
    async with serving() as site:
        for request, ending in ((CLOSE, b'{"status":"ok"}'), (stream_request, b"0\r\n\r\n")):
            async with await site.connect() as stream:
                await stream.send_all(request)
                assert (await read_to_end(stream)).endswith(ending)


async def test_the_keep_alive_timer_starts_again_after_an_answer(serving: Any, exchange: Any) -> None:
    """A connection is kept for the next request, and one that stays idle is closed."""
    async with serving(settings=HttpSettings(keep_alive_s=0.3)) as site, await site.connect() as stream:
        for _ in range(3):
            assert (await exchange(stream, GET))[0] == 200
        assert await stream.receive_some() == b""


@pytest.mark.long(keep=1, reason="more cases of the law whose first `make test` runs", moderate=True)
@pytest.mark.parametrize(
    ("head", "status"),
    [
        (b"POST /nowhere HTTP/1.1\r\nAuthorization: Bearer k\r\n", 404),
        (b"PUT /v1/completions HTTP/1.1\r\nAuthorization: Bearer k\r\n", 405),
        (b"POST /v1/completions HTTP/1.1\r\n", 401),
        (b"POST /v1/completions HTTP/1.1\r\nAuthorization: Bearer k\r\n", 413),
    ],
)
@pytest.mark.parametrize("chunked", [False, True])
async def test_an_early_answer_leaves_the_connection_usable(
    serving: Any, exchange: Any, head: bytes, status: int, chunked: bool
) -> None:
    """An answer that does not need the body waits for it, so the next request is understood."""
    size = 40_000 if status == 413 else 400
    parts = [b"x" * (size // 40)] * 40
    if chunked:
        framing = b"Transfer-Encoding: chunked\r\n"
        parts = [b"%x\r\n%s\r\n" % (len(part), part) for part in parts] + [b"0\r\n\r\n"]
    else:
        framing = b"Content-Length: %d\r\n" % size
    async with serving(max_body_bytes=10_000, api_key="k") as site, await site.connect() as stream:
        for _ in range(2):
            request = head + b"Host: x\r\n" + framing + b"\r\n"
            answered, _, body = await exchange(stream, request, *parts)
            assert answered == status
            told = json.loads(body)
            if status in (404, 405):
                assert told == {"detail": HTTPStatus(status).phrase}
            else:
                error = told["error"]
                assert error == "Unauthorized" or set(error) == {"message", "type", "param", "code"}
            assert (await exchange(stream, GET))[0] == 200


@pytest.mark.parametrize("length", [400, 40_000])
async def test_a_wrong_key_is_refused_before_the_body_is_read(serving: Any, length: int) -> None:
    """A body that is too slow or too large makes it no other refusal."""
    limits = {"max_body_bytes": 10_000, "body_timeout_s": 0.2}
    async with serving(api_key="k", **limits) as site, await site.connect() as stream:
        head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % length
        await stream.send_all(head + b"some of it")
        assert (await stream.receive_some()).startswith(b"HTTP/1.1 401 ")


async def test_generated_events_end_with_their_client(serving: Any) -> None:
    """The live page's: they come while it reads, and no task of them is left when it leaves."""

    class Idle:
        draining = trio.Event()

        async def event(self) -> bytes:
            return b"data: {}\n\n"

    async with serving(live=Idle()) as site:
        async with await site.connect() as stream:
            await stream.send_all(b"GET /dashboard/events HTTP/1.1\r\nHost: x\r\n\r\n")
            data = b""
            while data.count(b"data: {}") < 2:
                data += await stream.receive_some()
        assert data.startswith(b"HTTP/1.1 200 ")


async def test_no_timer_cuts_a_stream(serving: Any) -> None:
    """A stream outlives Quart's RESPONSE_TIMEOUT, whatever it is set to."""
    async with serving() as site:
        site.app.config["RESPONSE_TIMEOUT"] = 0.05
        site.llm.gap_s = 0.02
        async with await site.connect() as stream:
            await stream.send_all(completion(stream=True, max_tokens=20))
            data = b""
            while not data.endswith(b"0\r\n\r\n"):
                data += await stream.receive_some()
    assert b"w19 " in data and b"data: [DONE]" in data


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_client_that_leaves_is_cancelled(serving: Any, streamed: bool) -> None:
    """Every choice of the answer is cancelled at once, and only once."""
    async with serving() as site:
        site.llm.may_finish = trio.Event()
        async with await site.connect() as stream:
            await stream.send_all(completion(prompt=["a", "b"], stream=streamed))
            await site.llm.until(lambda llm: len(llm.asked) == 2)
            if streamed:
                await stream.receive_some()
        await site.llm.until(lambda llm: len(llm.cancelled) == 2)
        assert sorted(site.llm.cancelled) == [each.request_id for each in site.llm.asked]
        site.llm.may_finish.set()


async def test_a_client_that_leaves_before_the_reply_is_cancelled(serving: Any) -> None:
    """AsyncLLM may be about to accept: the id is known beforehand, so Cancel still names it."""
    async with serving() as site:
        site.llm.may_answer = trio.Event()
        async with await site.connect() as stream:
            await stream.send_all(completion())
            await site.llm.until(lambda llm: len(llm.asked) == 1)
        await site.llm.until(lambda llm: llm.cancelled == [llm.asked[0].request_id])


async def test_a_refused_prompt_cancels_its_fellows(serving: Any, exchange: Any) -> None:
    """If one of several prompts is refused, those accepted before it are not left running."""
    async with serving() as site:
        site.llm.refuse = lambda generate: Refused("no") if generate.prompt == "bad" else None
        site.llm.may_finish = trio.Event()
        async with await site.connect() as stream:
            status, _, _ = await exchange(stream, completion(prompt=["a", "b", "bad", "c"]))
            assert status == 400
        asked = [generate.request_id for generate in site.llm.asked]
        await site.llm.until(lambda llm: len(llm.cancelled) == 2)
        assert sorted(site.llm.cancelled) == asked[:2] and len(asked) == 3
        site.llm.may_finish.set()


async def test_a_finished_answer_is_not_cancelled(serving: Any, exchange: Any) -> None:
    """Cancel is for the unfinished only."""
    async with serving() as site:
        async with await site.connect() as stream:
            assert (await exchange(stream, completion()))[0] == 200
            await stream.send_all(completion(stream=True))
            while not (await stream.receive_some()).endswith(b"0\r\n\r\n"):
                pass
            assert (await exchange(stream, GET))[0] == 200
        assert site.llm.cancelled == []


@pytest.mark.long(reason="starts a server, and asks it over sockets", moderate=True)
async def test_a_crowd_may_knock_at_once(serving: Any, exchange: Any) -> None:
    """512 connections wait to be accepted by a server that runs, and all are answered."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < 2000:
        if hard != resource.RLIM_INFINITY and hard < 2000:
            pytest.skip("too few file descriptors are allowed")
        resource.setrlimit(resource.RLIMIT_NOFILE, (2000, hard))
    async with serving() as site:
        async with await site.connect() as stream:
            assert (await exchange(stream, GET))[0] == 200
        # Connecting without a checkpoint keeps the server from accepting meanwhile.
        crowd = [socket.create_connection(("127.0.0.1", site.port), 2) for _ in range(512)]
        answers = []

        async def ask(client: socket.socket) -> None:
            client.setblocking(False)
            async with trio.SocketStream(trio.socket.from_stdlib_socket(client)) as stream:
                await stream.send_all(CLOSE)
                answers.append(await read_to_end(stream))

        async with trio.open_nursery() as nursery:
            for client in crowd:
                nursery.start_soon(ask, client)
    assert len(answers) == 512
    assert all(answer.startswith(b"HTTP/1.1 200") for answer in answers)


async def test_request_ids_are_echoed_or_made(serving: Any, exchange: Any) -> None:
    """x-request-id comes back, on errors too; without one the server makes one."""
    named = b"GET /nowhere HTTP/1.1\r\nHost: x\r\nX-Request-Id: abc\r\n\r\n"
    async with serving() as site, await site.connect() as stream:
        assert (await exchange(stream, named))[1]["x-request-id"] == "abc"
        assert len((await exchange(stream, GET))[1]["x-request-id"]) == 32


async def test_a_bug_is_a_500_that_tells_nothing(
    serving: Any, exchange: Any, caplog: pytest.LogCaptureFixture, capfd: Any
) -> None:
    """The traceback goes to the log, the shape is OpenAI's, and stdout stays clean."""
    async with serving() as site, await site.connect() as stream:
        status, _, body = await exchange(stream, completion(prompt="crash"))
        assert (await exchange(stream, GET))[0] == 200
    assert status == 500 and b"bug" not in body
    assert json.loads(body)["error"]["type"] == "InternalServerError"
    assert "a bug in the engine" in caplog.text
    assert capfd.readouterr().out == ""


async def test_a_dead_engine_is_unavailable(serving: Any, exchange: Any) -> None:
    """An ask that nobody will answer is a 503, and a Cancel that nobody will read is no error."""
    async with serving() as site, await site.connect() as stream:

        def died(generate: object) -> None:
            raise ActorDied("AsyncLLM has ended")

        site.llm.refuse = site.llm.tell = died
        assert (await exchange(stream, completion()))[0] == 503
        assert (await exchange(stream, GET))[0] == 200


async def test_noise_is_answered_with_400(serving: Any) -> None:
    """What is not HTTP ends its own connection and nothing else."""
    async with serving() as site:
        async with await site.connect() as stream:
            await stream.send_all(b"\x16\x03\x01 this is not HTTP\r\n\r\n")
            assert (await read_to_end(stream)).startswith(b"HTTP/1.1 400")
        async with await site.connect() as stream:
            await stream.send_all(CLOSE)
            assert (await read_to_end(stream)).startswith(b"HTTP/1.1 200")


async def test_a_websocket_is_turned_down(serving: Any) -> None:
    """Nothing here speaks it."""
    async with serving() as site, await site.connect() as stream:
        await stream.send_all(
            b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
            b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
        )
        assert (await stream.receive_some()).startswith(b"HTTP/1.1 403")
