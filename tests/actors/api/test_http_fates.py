"""Client-visible effects of an engine crash or a failed request, on a whole server with real sockets."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import httpx
import pytest
import trio

from sundog.actors.api.context import ServedModel
from sundog.actors.api.serve_graph import serve_graph
from sundog.actors.api.server_options import ServerOptions
from sundog.actors.core.batch import Batch
from sundog.actors.front.codec import Vocabulary
from sundog.actors.kernel.actor import Reply
from sundog.actors.messages import Capacity
from tests.actors.fakes import EOS, Bytes, FakeBackend, engine_config
from tests.patience import HANGS_S

pytestmark = pytest.mark.wall_clock

ERROR_KEYS = {"message", "type", "param", "code"}


class Mortal(FakeBackend):
    """Crashes at its next batch when told to, and loads when it may."""

    def __init__(self, world: "World") -> None:
        super().__init__()
        self.world = world

    async def load(self) -> Capacity:
        await self.world.may_load.wait()
        return await super().load()

    def execute(self, batch: Batch) -> Reply:
        if self.world.is_doomed:
            self.world.is_doomed = False
            raise RuntimeError("the device is lost")
        return super().execute(batch)


@dataclass
class World:
    """A server, and what can be broken in it."""

    url: str = ""
    is_doomed: bool = False
    may_load: trio.Event = field(default_factory=trio.Event)
    backends: list[Mortal] = field(default_factory=list)

    def new_backend(self, replica: int) -> Mortal:
        self.backends.append(Mortal(self))
        return self.backends[-1]

    def crash_and_stay_down(self) -> None:
        self.may_load, self.is_doomed = trio.Event(), True


@asynccontextmanager
async def served() -> AsyncIterator[tuple[World, httpx.AsyncClient]]:
    world, ready, stop = World(), trio.Event(), trio.Event()
    world.may_load.set()

    def on_ready(url: str) -> None:
        world.url = url
        ready.set()

    with trio.fail_after(HANGS_S):
        async with trio.open_nursery() as nursery:
            serve = partial(serve_graph, on_ready=on_ready, stop=stop)
            model, vocabulary = ServedModel("m", 128, 0), Vocabulary(eos_token_id=EOS, size=256)
            nursery.start_soon(
                serve, engine_config(), world.new_backend, model, Bytes(), vocabulary, ServerOptions(port=0)
            )
            await ready.wait()
            async with httpx.AsyncClient(base_url=world.url) as client:
                yield world, client
            stop.set()


def completion(**fields: object) -> dict[str, object]:
    return {"prompt": "hello", "max_tokens": 40, **fields}


async def until_it_is(client: httpx.AsyncClient, status: int) -> httpx.Response:
    """Ask for its health until it has this status."""
    while (answer := await client.get("/health")).status_code != status:
        await trio.sleep(0.01)
    return answer


def assert_ends_in_error(lines: list[str], message: str) -> None:
    """An error event in OpenAI's shape, then [DONE], and nothing more."""
    events = [line for line in lines if line]
    assert events[-1] == "data: [DONE]"
    error = json.loads(events[-2].removeprefix("data: "))["error"]
    assert set(error) == ERROR_KEYS and message in error["message"]


async def test_a_crash_ends_streams_with_an_error_event(caplog: pytest.LogCaptureFixture) -> None:
    """Then /health is 503 until the engine is back, new requests are told when to come, and all is well."""
    async with served() as (world, client):
        async with client.stream("POST", "/v1/completions", json=completion(stream=True)) as stream:
            lines = stream.aiter_lines()
            first = await anext(lines)
            world.crash_and_stay_down()
            rest = [line async for line in lines]
        assert '"text"' in first
        assert_ends_in_error(rest, "engine failed")
        down = await until_it_is(client, 503)
        assert down.json()["status"] == "restarting" and "device is lost" in down.json()["reason"]
        assert int(down.headers["Retry-After"]) >= 1
        refused = await client.post("/v1/completions", json=completion())
        assert refused.status_code == 503 and int(refused.headers["Retry-After"]) >= 1
        assert set(refused.json()["error"]) == ERROR_KEYS
        world.may_load.set()
        await until_it_is(client, 200)
        answer = await client.post("/v1/completions", json=completion())
        assert answer.status_code == 200 and answer.json()["usage"]["completion_tokens"] == 40
    assert "device is lost" in caplog.text


async def test_a_whole_answer_lost_in_a_crash_says_when_to_come_back() -> None:
    """503 with Retry-After while the engine starts again."""
    async with served() as (world, client), trio.open_nursery() as nursery:

        async def crash_when_it_runs() -> None:
            while not world.backends[0].num_sampled:
                await trio.sleep(0.005)
            world.crash_and_stay_down()

        nursery.start_soon(crash_when_it_runs)
        answer = await client.post("/v1/completions", json=completion())
        assert answer.status_code == 503 and int(answer.headers["Retry-After"]) >= 1
        assert set(answer.json()["error"]) == ERROR_KEYS
        world.may_load.set()


@pytest.mark.long(keep=1, reason="more cases of the law whose first `make test` runs", moderate=True)
@pytest.mark.parametrize("streamed", [True, False])
async def test_a_request_that_fails_alone_ends_alone(streamed: bool) -> None:
    """An error event, or a 500 in OpenAI's shape; its neighbour and the server's health are untouched."""
    async with served() as (world, client), trio.open_nursery() as nursery:
        neighbour: list[Any] = []

        async def ask_beside_it() -> None:
            neighbour.append(await client.post("/v1/completions", json=completion()))

        async def fail_the_other() -> None:
            (backend,) = world.backends
            while len(backend.num_outputs) < 2:
                await trio.sleep(0.005)
            name = list(backend.num_outputs)[1]
            backend.fail_at = {name: backend.num_outputs[name] + 3}

        nursery.start_soon(ask_beside_it)
        while not world.backends[0].num_outputs:
            await trio.sleep(0.005)
        nursery.start_soon(fail_the_other)
        answer = await client.post("/v1/completions", json=completion(stream=streamed))
        if streamed:
            assert_ends_in_error(answer.text.split("\n"), "has no token")
        else:
            assert answer.status_code == 500 and set(answer.json()["error"]) == ERROR_KEYS
            assert "has no token" in answer.json()["error"]["message"]
        while not neighbour:
            await trio.sleep(0.01)
        assert neighbour[0].status_code == 200
        assert neighbour[0].json()["usage"]["completion_tokens"] == 40
        assert (await client.get("/health")).status_code == 200


async def test_a_real_model_has_no_faults_to_inject(serving: Any) -> None:
    """The header is refused there, too."""
    async with serving() as site, httpx.AsyncClient(base_url=site.url) as client:
        for path, asked in (("completions", "prompt"), ("chat/completions", "messages")):
            body = {asked: "x" if asked == "prompt" else [{"role": "user", "content": "x"}]}
            answer = await client.post(f"/v1/{path}", json=body, headers={"X-Sundog-Inject": "slow=1"})
            assert answer.status_code == 400 and "sundog emulate" in answer.json()["error"]["message"]
        assert not site.llm.asked
