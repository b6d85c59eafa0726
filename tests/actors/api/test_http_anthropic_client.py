"""Anthropic's client library against /v1/messages."""

from collections.abc import Callable
from typing import Any, TypeVar

import pytest
import trio

from sundog.actors.messages import ChatMessage

anthropic = pytest.importorskip("anthropic")
pytestmark = pytest.mark.wall_clock

T = TypeVar("T")
MODEL = "tiny/story"
HELLO: Any = [{"role": "user", "content": "hello"}]
WEATHER: Any = {
    "name": "weather",
    "description": "of a town",
    "input_schema": {"type": "object", "properties": {}},
}


async def with_client(site: Any, use: Callable[[Any], T], key: str = "none") -> T:
    """Use the synchronous client in a thread; it retries nothing."""

    def run() -> T:
        with anthropic.Anthropic(base_url=site.url, api_key=key, max_retries=0) as client:
            return use(client)

    return await trio.to_thread.run_sync(run)


async def test_a_message_is_answered_whole(serving: Any) -> None:
    """With its usage, and why it ended."""
    async with serving() as site:
        answer = await with_client(
            site,
            lambda client: client.messages.create(
                model=MODEL, max_tokens=4, messages=HELLO, system="be brief"
            ),
        )
        asked = site.llm.asked[0]
    assert asked.prompt == (ChatMessage("system", "be brief"), ChatMessage("user", "hello"))
    assert answer.id.startswith("msg_") and answer.role == "assistant" and answer.model == MODEL
    assert [block.text for block in answer.content] == ["w0 w1 w2 w3 "]
    assert answer.stop_reason == "max_tokens" and answer.stop_sequence is None
    usage = answer.usage
    assert (usage.input_tokens, usage.cache_read_input_tokens, usage.output_tokens) == (0, 2, 4)


async def test_a_message_is_streamed(serving: Any) -> None:
    """The client's own reader puts it together to the whole one."""
    async with serving() as site:

        def use(client: Any) -> tuple[list[str], Any]:
            with client.messages.stream(model=MODEL, max_tokens=5, messages=HELLO) as stream:
                return list(stream.text_stream), stream.get_final_message()

        texts, final = await with_client(site, use)
    assert "".join(texts) == "w0 w1 w2 w3 w4 " == final.content[0].text
    assert final.stop_reason == "max_tokens" and final.usage.output_tokens == 5


async def test_a_conversation_with_calls_becomes_a_chat(serving: Any) -> None:
    """Calls are the assistant's, their results messages of their own, before what the user adds."""
    turns: Any = [
        {"role": "user", "content": [{"type": "text", "text": "weather?"}]},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "hm", "signature": ""},
                {"type": "text", "text": "I look."},
                {"type": "tool_use", "id": "t1", "name": "weather", "input": {"town": "Rome"}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "sunny"}]},
                {"type": "text", "text": "and now?"},
            ],
        },
    ]
    async with serving() as site:
        none: Any = {"type": "none"}
        await with_client(
            site,
            lambda client: client.messages.create(
                model=MODEL,
                max_tokens=4,
                messages=turns,
                tools=[WEATHER],
                tool_choice=none,
                stop_sequences=["w2"],
            ),
        )
        asked = site.llm.asked[0]
    assert [(turn.role, turn.content) for turn in asked.prompt] == [
        ("user", "weather?"),
        ("assistant", "I look."),
        ("tool", "sunny"),
        ("user", "and now?"),
    ]
    (call,) = asked.prompt[1].more["tool_calls"]
    assert call["function"] == {"name": "weather", "arguments": {"town": "Rome"}}
    assert asked.prompt[2].more == {"tool_call_id": "t1"} and asked.sampling.stop == ("w2",)


@pytest.mark.long(keep=1, reason="more cases of the law whose first `make test` runs", moderate=True)
@pytest.mark.parametrize(
    ("fields", "error", "words"),
    [
        ({"model": "other"}, "NotFoundError", "does not exist"),
        ({"max_tokens": 0}, "BadRequestError", "max_tokens"),
        ({"extra_body": {"temperature": -1}}, "BadRequestError", "temperature"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]},
            "BadRequestError",
            "image",
        ),
        ({"tools": [{"type": "websearch", "name": "web_search"}]}, "BadRequestError", "tools[0]"),
        ({"extra_body": {"mcp_servers": [{"url": "x"}]}}, "BadRequestError", "mcp_servers"),
    ],
    ids=["model", "max_tokens", "temperature", "image", "server tool", "mcp"],
)
async def test_what_cannot_be_is_refused_in_anthropics_shape(
    serving: Any, fields: dict[str, Any], error: str, words: str
) -> None:
    """The client raises its own exception, with the words that name the field."""
    asked: dict[str, Any] = {"model": MODEL, "max_tokens": 4, "messages": HELLO} | fields
    async with serving() as site:
        with pytest.raises(getattr(anthropic, error)) as caught:
            await with_client(site, lambda client: client.messages.create(**asked))
        assert not site.llm.asked
    assert words in str(caught.value) and caught.value.body["type"] == "error"


async def test_the_key_is_the_one_that_anthropics_clients_send(serving: Any) -> None:
    """X-Api-Key; a wrong one is refused."""

    def use(client: Any) -> Any:
        return client.messages.create(model=MODEL, max_tokens=1, messages=HELLO)

    async with serving(api_key="right") as site:
        assert (await with_client(site, use, "right")).content
        with pytest.raises(anthropic.AuthenticationError):
            await with_client(site, use, "wrong")


async def test_a_stream_that_fails_says_so(serving: Any) -> None:
    """As an event that the client raises."""
    async with serving() as site:
        site.llm.fail_at = 2

        def use(client: Any) -> None:
            with client.messages.stream(model=MODEL, max_tokens=5, messages=HELLO) as stream:
                stream.get_final_message()

        with pytest.raises(anthropic.APIError, match="the engine died"):
            await with_client(site, use)
