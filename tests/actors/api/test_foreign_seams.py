"""Exceptions from third-party code on a client's data fail only that request.

Each place is tested with an Exception, a BaseException (a panic in Rust) and a MemoryError.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from sundog.actors.api.answers.sse import Events
from sundog.actors.core.params.sampling import Constraint, ConstraintKind, Sampling
from sundog.actors.front.codec import Vocabulary
from sundog.actors.graph import open_graph
from sundog.actors.kernel.actor import Ref
from sundog.actors.messages import Accepted, ChatMessage, Generate, Reading, Refused
from tests.actors.fakes import EOS, Bytes, FakeBackend, engine_config, read


class Panic(BaseException):
    """Stands for `pyo3_runtime.PanicException`, which no import gives."""


class FailsAt:
    """Passes everything on to `inner`, but raises `error` where `method` is called, if `is_failing`."""

    def __init__(self, inner: object, method: str, error: type[BaseException]) -> None:
        self.inner, self.method, self.error = inner, method, error
        self.is_failing = True

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.inner, name)
        if name != self.method or not self.is_failing:
            return found

        def fail(*args: object, **kwargs: object) -> Any:
            raise self.error("called `Option::unwrap()` on a `None` value")

        return fail


class Grammars:
    """A checker that takes every grammar."""

    def knows(self, constraint: Constraint) -> bool:
        return False

    def check(self, constraint: Constraint) -> None:
        pass


@dataclass(frozen=True)
class Seam:
    """A method of foreign code and a request that gets there; its stream fails if it `is_accepted`."""

    method: str
    generate: Callable[[str], Generate]
    is_accepted: bool = False


TEXT, CHAT = "hello", (ChatMessage("user", "hello"),)
GREEDY = Sampling(max_tokens=3)
CONSTRAINED = Sampling(max_tokens=3, constraint=Constraint(ConstraintKind.REGEX, "a"))
SEAMS = {
    "a prompt": Seam("encode", lambda name: Generate(TEXT, GREEDY, name)),
    "a long prompt": Seam("encode", lambda name: Generate(TEXT * 2000, GREEDY, name)),
    "a very long prompt": Seam("encode", lambda name: Generate(TEXT * 50_000, GREEDY, name)),
    "a conversation": Seam("encode_chat", lambda name: Generate(CHAT, GREEDY, name)),
    "a prompt that is cut": Seam(
        "encode_plain", lambda name: Generate(TEXT, GREEDY, name, reading=Reading(truncate_prompt_tokens=2))
    ),
    "bad words": Seam(
        "encode_plain", lambda name: Generate(TEXT, Sampling(max_tokens=3, bad_words=("no",)), name)
    ),
    "a grammar": Seam("check", lambda name: Generate(TEXT, CONSTRAINED, name)),
    "what decodes": Seam("decoder", lambda name: Generate(TEXT, GREEDY, name)),
    "a token": Seam("step", lambda name: Generate(TEXT, GREEDY, name), is_accepted=True),
    "a token with stops": Seam(
        "step", lambda name: Generate(TEXT, Sampling(max_tokens=3, stop=("x",)), name), is_accepted=True
    ),
}


class Decoding:
    """A codec whose decoders fail if it does."""

    def __init__(self, error: type[BaseException]) -> None:
        self._error, self._codec, self.is_failing = error, Bytes(), True

    def __getattr__(self, name: str) -> Any:
        return getattr(self._codec, name)

    def decoder(self, *args: Any, **kwargs: Any) -> Any:
        inner = self._codec.decoder(*args, **kwargs)
        return FailsAt(inner, "step", self._error) if self.is_failing else inner


@pytest.mark.parametrize("error", [Panic, RuntimeError, MemoryError, RecursionError, OSError])
@pytest.mark.parametrize("name", SEAMS)
async def test_what_foreign_code_raises_is_the_error_of_that_request_alone(
    name: str, error: type[BaseException]
) -> None:
    """The request before, of which half is still to come, and the next one have their whole answers."""
    seam = SEAMS[name]
    codec: Any = Decoding(error) if seam.method == "step" else FailsAt(Bytes(), seam.method, error)
    grammars: Any = FailsAt(Grammars(), seam.method, error) if seam.method == "check" else Grammars()
    codec.is_failing = False
    vocabulary = Vocabulary(eos_token_id=EOS, size=256, grammars=grammars)
    config = engine_config(max_model_len=400_000, max_num_batched_tokens=400_000)
    backend = FakeBackend(num_blocks=100_002)
    async with open_graph(config, [backend], codec=codec, vocabulary=vocabulary) as client:
        asks: Ref[Any] = client
        before = await asks.ask(Generate(TEXT, Sampling(max_tokens=9), "before"))
        codec.is_failing = True
        answer = await asks.ask(seam.generate("bad"))
        if seam.is_accepted:
            assert isinstance(answer, Accepted)
            whole = await read(answer)
            assert whole.finish_reason == "error" and whole.error, whole
        else:
            assert isinstance(answer, Refused) and answer.kind in ("failed", "invalid"), answer
        codec.is_failing = grammars.is_failing = False
        assert (await read(before)).num_tokens == 9
        assert (await read(await asks.ask(Generate(TEXT, GREEDY, "after")))).num_tokens == 3


def test_every_method_of_a_codec_that_takes_a_clients_data_stands_in_the_table() -> None:
    """The others are called by routes; the next test walks those."""
    on_routes = {"decode", "token_name", "token_text", "info"}
    methods = {name for name in vars(Bytes) if not name.startswith("_")}
    assert methods == on_routes | {seam.method for seam in SEAMS.values()} - {"step", "check"}


ROUTES = {
    "/tokenize": ("encode", {"prompt": "hi"}),
    "/tokenize?": ("token_name", {"prompt": "hi", "return_token_strs": True}),
    "/detokenize": ("decode", {"tokens": [1, 2]}),
    "/detokenize?": ("token_name", {"tokens": [1, 2]}),
    "/v1/completions": ("decode", {"prompt": [1, 2], "echo": True, "max_tokens": 2}),
    "/v1/messages/count_tokens": (
        "encode_chat",
        {"model": "tiny/story", "messages": [{"role": "user", "content": "hi"}]},
    ),
    "/v1/responses/input_tokens": ("encode_chat", {"input": "hi"}),
}


@pytest.mark.long(keep=1, reason="more cases of the law whose first `make test` runs", moderate=True)
@pytest.mark.wall_clock
@pytest.mark.parametrize("error", [Panic, RuntimeError, MemoryError])
@pytest.mark.parametrize("path", ROUTES)
async def test_what_foreign_code_raises_on_a_route_ends_no_door(
    serving: Any, path: str, error: type[BaseException]
) -> None:
    """Whole or streamed: the client has an error or its connection cut, and the server goes on."""
    method, body = ROUTES[path]
    async with (
        serving(codec=FailsAt(Bytes(), method, error)) as site,
        httpx.AsyncClient(base_url=site.url, timeout=30) as client,
    ):
        for fields in ({}, {"stream": True}) if "completions" in path else ({},):
            try:
                answer = await client.post(path.rstrip("?"), json=body | fields)
                assert answer.status_code in (400, 500) or "error" in answer.text, answer.text
            except httpx.RemoteProtocolError:
                pass
            assert (await client.get("/health")).status_code == 200


@pytest.mark.wall_clock
async def test_a_panic_while_a_stream_is_written_is_its_last_event(
    serving: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(self: Events, written: list[bytes]) -> None:
        raise Panic

    monkeypatch.setattr(Events, "_take", fail)
    body = {"prompt": "hi", "max_tokens": 2, "stream": True}
    async with serving() as site, httpx.AsyncClient(base_url=site.url, timeout=30) as client:
        assert '"error"' in (await client.post("/v1/completions", json=body)).text
        answer = await client.post("/v1/completions", json=body | {"stream": False})
        assert answer.status_code == 200
