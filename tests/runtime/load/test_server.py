"""Detection of a server's features by requests; unsupported servers are refused in one line."""

from typing import Any

import pytest
import trio

from sundog.actors.config import ConfigError
from sundog.runtime.load.server import TargetServer, find_server
from sundog.runtime.load.server_client import ServerClient, base_url
from tests.runtime.load.servers import Asked, Script, scripted

MODELS = {"data": [{"id": "first"}, {"id": "second"}]}


def openai(takes: set[str], *, text_only: bool = False, tokenizes: bool = False) -> Script:
    """A server that takes these routes and fields, and counts two tokens a word and five more."""

    async def answer(asked: Asked) -> None:
        if asked.path == "/v1/models":
            await asked.answer(200, MODELS)
        elif asked.path == "/tokenize" and tokenizes:
            await asked.answer(200, {"tokens": [7, 8, 7, 9]})
        elif asked.path not in takes:
            await asked.answer(404, {"detail": "Not Found"})
        elif unknown := asked.body.keys() & ({"ignore_eos", "stream_options"} - takes):
            await asked.answer(400, {"error": {"message": f"unknown field {min(unknown)}"}})
        elif text_only and isinstance(asked.body.get("prompt"), list):
            await asked.answer(422, {"error": "prompt must be text"})
        else:
            await _streamed(asked)

    return answer


async def _streamed(asked: Asked) -> None:
    prompt = asked.body.get("prompt") or asked.body["messages"][0]["content"]
    await asked.begin()
    for _ in range(asked.body["max_tokens"]):
        await asked.token("length")
    num_tokens = 2 * len(prompt.split()) + 5 if isinstance(prompt, str) else len(prompt)
    if "stream_options" in asked.body:
        await asked.event({"choices": [], "usage": {"prompt_tokens": num_tokens, "completion_tokens": 2}})
    await asked.event("[DONE]")
    await asked.write(b"0\r\n\r\n")


async def found(script: Script, model: str | None = None, endpoint: Any = None) -> TargetServer:
    async with scripted(script) as server:
        return await find_server(server.client, model, endpoint, 10.0)


ALL = {"/v1/completions", "/v1/chat/completions", "ignore_eos", "stream_options"}


async def test_token_ids_are_preferred() -> None:
    """Prompts of them have the length of the trace; they are real ones where the server tokenizes."""
    server = await found(openai(ALL, tokenizes=True))
    assert (server.model, server.endpoint) == ("first", "completions")
    assert list(server.units.ids) == [7, 8, 9]
    assert server.remarks == ()
    assert list((await found(openai(ALL), "second")).units.ids)[:2] == [300, 301]


async def test_text_is_measured_by_the_servers_own_count() -> None:
    """Two tokens a word, and five in each prompt."""
    server = await found(openai(ALL, text_only=True))
    assert server.units.words
    assert (server.units.tokens_each, server.units.fixed_tokens) == (2.0, 5)
    assert server.units.count(105) == 50


@pytest.mark.parametrize(
    ("takes", "endpoint", "extras"),
    [
        (ALL - {"/v1/completions"}, "chat", {"ignore_eos", "stream_options"}),
        (ALL - {"ignore_eos"}, "completions", {"stream_options"}),
        (ALL - {"stream_options"}, "completions", {"ignore_eos"}),
        (ALL - {"ignore_eos", "stream_options"}, "completions", set()),
    ],
    ids=["chat alone", "no ignore_eos", "no usage", "neither"],
)
async def test_what_a_server_does_not_take_is_left_out(
    takes: set[str], endpoint: str, extras: set[str]
) -> None:
    """And people are told what follows for lengths."""
    server = await found(openai(takes))
    assert (server.endpoint, set(server.extras)) == (endpoint, extras)
    said = " ".join(server.remarks)
    assert ("may end sooner" in said) == ("ignore_eos" not in extras)
    assert ("counts no tokens" in said) == ("stream_options" not in extras)


async def _a_web_page(asked: Asked) -> None:
    await asked.answer(200, "<html>hello</html>")


async def _no_route(asked: Asked) -> None:
    await asked.answer(404, "not found")


async def _key(asked: Asked) -> None:
    await asked.answer(401, {"error": {"message": "no key"}})


async def _key_for_answers(asked: Asked) -> None:
    await asked.answer(*((200, MODELS) if asked.path == "/v1/models" else (403, "forbidden")))


async def _full(asked: Asked) -> None:
    await asked.answer(*((200, MODELS) if asked.path == "/v1/models" else (429, "full")))


async def _broken(asked: Asked) -> None:
    await asked.answer(*((200, MODELS) if asked.path == "/v1/models" else (500, "boom")))


async def _hangs(asked: Asked) -> None:
    await trio.sleep(1000)


@pytest.mark.parametrize(
    ("script", "words"),
    [
        (_a_web_page, "not JSON: <html>hello</html>"),
        (_no_route, "give --model"),
        (_key, "SUNDOG_API_KEY"),
        (_key_for_answers, "OPENAI_API_KEY"),
        (_full, "HTTP 429: full"),
        (_broken, "HTTP 500: boom: its log may say why"),
        (_hangs, "does not answer within 10 s"),
        (openai(set()), "it takes no request: HTTP 404: Not Found"),
    ],
    ids=["web page", "no route", "401", "403", "429", "500", "slow", "no endpoint"],
)
async def test_what_nothing_can_be_asked_of_is_refused_in_a_line(script: Script, words: str) -> None:
    """That names the server, what it said, and the way out."""
    with pytest.RaisesGroup(pytest.RaisesExc(ConfigError, match="server:8000")) as refusal:
        await found(script)
    assert words in str(refusal.value.exceptions[0])


@pytest.mark.parametrize(
    "url",
    [
        "127.0.0.1:8000",
        "ftp://host",
        "http://",
        "http://host:port",
        "http://[::1",
        "http://h:99999",
        "http://\x01",
    ],
)
def test_what_is_no_url_is_refused(url: str) -> None:
    """With one to write like."""
    with pytest.raises(ConfigError, match="is no URL"):
        ServerClient.of(url)


@pytest.mark.parametrize(
    ("url", "base", "authority"),
    [
        ("http://h", "http://h/", "h"),
        ("http://h:8000/v1/", "http://h:8000/", "h:8000"),
        ("https://h/proxy/v1", "https://h/proxy", "h"),
        ("http://[::1]:9", "http://[::1]:9/", "[::1]:9"),
        ("http://h:8000/v1?x=1#y", "http://h:8000/", "h:8000"),
    ],
)
def test_a_url_may_have_v1_or_not(url: str, base: str, authority: str) -> None:
    """As clients of OpenAI write it, and as people do."""
    assert base_url(url) == base
    assert ServerClient.of(url).authority == authority


def test_a_key_that_no_header_can_carry_is_refused() -> None:
    """As one that was copied with the line after it."""
    with pytest.raises(ConfigError, match="--api-key"):
        ServerClient.of("http://h", "key\nX-Other: 1")
