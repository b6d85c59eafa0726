"""A live server on loopback in front of an AsyncLLM without an engine.

These tests use real sockets, so they run on the real clock; none measures time.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Any, overload

import pytest
import trio

from sundog.actors.api import ServedModel, create_app, serve_http
from sundog.actors.api.address import listen
from sundog.actors.api.crowding import BodiesUnderWay
from sundog.actors.api.keys import ApiKeys
from sundog.actors.config.http import HttpSettings
from sundog.actors.kernel.stream import Delta, DeltaStream
from sundog.actors.messages import Accepted, Cancel, CheckHealth, Generate, Health, Refused
from tests.live import EMULATED, Live, live
from tests.patience import HANGS_S

MODEL = ServedModel("tiny/story", max_model_len=256, created=1_700_000_000)


class FakeLLM:
    """AsyncLLM's manners: accepts, streams the words w0 w1 …, and remembers what it was told."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self._nursery = nursery
        self.asked: list[Generate] = []
        self.cancelled: list[str] = []
        self.refuse: Callable[[Generate], Refused | None] = lambda generate: None
        self.fail_at: int | None = None
        self.health = Health("healthy", ("healthy",))
        self.gap_s = 0.0
        self.word_size = 1
        self.may_answer = trio.Event()
        self.may_answer.set()
        self.may_finish = trio.Event()
        self.may_finish.set()

    @overload
    async def ask(self, message: Generate) -> Accepted | Refused: ...

    @overload
    async def ask(self, message: CheckHealth) -> Health: ...

    async def ask(self, message: Generate | CheckHealth) -> Accepted | Refused | Health:
        if isinstance(message, CheckHealth):
            return self.health
        self.asked.append(message)
        await self.may_answer.wait()
        if message.prompt == "crash":
            raise RuntimeError("a bug in the engine")
        if (refused := self.refuse(message)) is not None:
            return refused
        assert message.request_id is not None
        streams = tuple(DeltaStream() for _ in range(message.n))
        for stream in streams:
            self._nursery.start_soon(self._write, message, stream)
        num_prompt_tokens = len(message.prompt) if not isinstance(message.prompt, int) else 0
        return Accepted(message.request_id, num_prompt_tokens, streams)

    def tell(self, message: Cancel) -> None:
        self.cancelled.append(message.request_id)

    async def _write(self, generate: Generate, stream: DeltaStream) -> None:
        limit = generate.sampling.max_tokens
        num_tokens = 8 if limit is None else limit
        last = "stop" if limit is None else "length"
        for index in range(num_tokens):
            await trio.sleep(self.gap_s)
            if index == num_tokens - 1:
                await self.may_finish.wait()
            if index == self.fail_at:
                stream.put(Delta(finish_reason="error", error="the engine died"))
                return
            finish_reason = last if index == num_tokens - 1 else None
            word = f"w{index} " * self.word_size
            stream.put(Delta(word, (index,), 1, finish_reason, None, 2))

    async def until(self, holds: Callable[["FakeLLM"], bool]) -> None:
        """Wait for something that the server does on its own."""
        while not holds(self):
            await trio.sleep(0.002)


@dataclass
class Site:
    """A server that is running; `stop` begins its shutdown and `stopped` is set at its end."""

    llm: FakeLLM
    port: int
    stop: trio.Event
    stopped: trio.Event
    app: Any
    bodies: BodiesUnderWay

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def connect(self) -> trio.SocketStream:
        return await trio.open_tcp_stream("127.0.0.1", self.port)


Serving = Callable[..., AbstractAsyncContextManager[Site]]


@pytest.fixture(scope="session")
def torch_server() -> Iterator[Live]:
    """The embedded model behind `sundog serve`, for all tests; it must end well."""
    pytest.importorskip("torch", reason="the engine extra is not installed")
    yield from _served("sundog", "serve", "--port", "0", "--debug")


@pytest.fixture(scope="session")
def emulated_server() -> Iterator[Live]:
    """An emulated GPU behind `sundog serve`, for all tests; it must end well."""
    yield from _served(*EMULATED, "--debug")


@pytest.fixture(params=["torch_server", "emulated_server"])
def any_server(request: pytest.FixtureRequest) -> Live:
    """Each of the two in turn."""
    server: Live = request.getfixturevalue(request.param)
    return server


def _served(*command: str) -> Iterator[Live]:
    with live(*command) as server:
        yield server
        server.assert_sound()
        assert server.stop() == 0


@pytest.fixture
def serving() -> Serving:
    """`async with serving(api_key=…, settings=…, grace_s=…) as site`."""
    return _serving


@asynccontextmanager
async def _serving(
    *,
    settings: HttpSettings | None = None,
    grace_s: float = 20.0,
    api_key: str | None = None,
    model: ServedModel = MODEL,
    **app_options: Any,
) -> AsyncIterator[Site]:
    with trio.fail_after(HANGS_S):  # only a hanging test meets this limit
        async with trio.open_nursery() as engine, trio.open_nursery() as server:
            stop, stopped = trio.Event(), trio.Event()
            llm = FakeLLM(engine)
            keys = None if api_key is None else ApiKeys.one(api_key)
            bodies, settings = BodiesUnderWay(), settings or HttpSettings()
            app = create_app(llm, model, keys=keys, http=settings, bodies=bodies, **app_options)
            listening = listen("127.0.0.1", 0, backlog=settings.backlog)

            async def serve() -> None:
                with listening:
                    await serve_http(app, listening, shutdown=stop.wait, grace_s=grace_s, settings=settings)
                stopped.set()

            server.start_soon(serve)
            yield Site(llm, listening.getsockname()[1], stop, stopped, app, bodies)
            stop.set()
            await stopped.wait()
            engine.cancel_scope.cancel()


async def _exchange(stream: trio.abc.Stream, *parts: bytes) -> tuple[int, dict[str, str], bytes]:
    """Send a request in parts and read one answer that has a Content-Length."""
    for part in parts:
        await stream.send_all(part)
        await trio.lowlevel.checkpoint()
    data = b""
    while b"\r\n\r\n" not in data:
        received = await stream.receive_some()
        assert received, f"the server hung up after {data!r}"
        data += received
    head, _, body = data.partition(b"\r\n\r\n")
    status_line, *lines = head.decode().split("\r\n")
    headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}
    whole = bytearray(body)
    while len(whole) < int(headers["content-length"]):
        received = await stream.receive_some()
        assert received, "the server hung up within a body"
        whole += received
    return int(status_line.split()[1]), headers, bytes(whole)


Exchange = Callable[..., Awaitable[tuple[int, dict[str, str], bytes]]]


@pytest.fixture
def exchange() -> Exchange:
    """`status, headers, body = await exchange(stream, request, …)` over a raw connection."""
    return _exchange
