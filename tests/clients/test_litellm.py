"""LiteLLM treats the server as vLLM: its provider `hosted_vllm`, and the one for OpenAI's API."""

import asyncio
import json
from typing import Any

import pytest

litellm = pytest.importorskip("litellm", reason="litellm has an environment of its own: make test-clients")

from tests.live import Live  # noqa: E402

HELLO: Any = [{"role": "user", "content": "Tell me a story."}]
TOWN: Any = {
    "type": "object",
    "properties": {"town": {"enum": ["Rome", "Oslo"]}},
    "required": ["town"],
    "maxProperties": 1,  # and no "additionalProperties": LiteLLM takes that out of tools before it sends them
}


@pytest.fixture(params=["hosted_vllm", "openai"])
def asked(server: Live, request: pytest.FixtureRequest) -> dict[str, Any]:
    """What every call says, by either provider."""
    return {
        "model": f"{request.param}/sundog-tiny",
        "api_base": f"{server.url}/v1",
        "api_key": "none",
        "temperature": 0,
        "num_retries": 0,
    }


def plain(server: Live) -> str:
    """What the server says without any client."""
    return server.complete("Once", max_tokens=16).json()["choices"][0]["text"]


def test_a_chat_is_the_same_whole_streamed_and_asynchronous(asked: dict[str, Any]) -> None:
    """With usage, and what was cached."""
    asked |= {"messages": HELLO, "max_tokens": 16}
    whole = litellm.completion(**asked)
    streamed = list(litellm.completion(**asked, stream=True, stream_options={"include_usage": True}))
    later = asyncio.run(litellm.acompletion(**asked))
    text = whole.choices[0].message.content
    assert text and later.choices[0].message.content == text
    assert "".join(chunk.choices[0].delta.content or "" for chunk in streamed if chunk.choices) == text
    assert whole.usage.completion_tokens == 16 == streamed[-1].usage.completion_tokens
    assert whole.choices[0].finish_reason == "length"


def test_text_is_completed(server: Live, asked: dict[str, Any]) -> None:
    """With the log probabilities that were asked for."""
    asked["model"] = asked["model"].replace("openai/", "text-completion-openai/")
    answer = litellm.text_completion(**asked, prompt="Once", max_tokens=16, logprobs=2)
    assert answer.choices[0].text == plain(server)
    assert len(answer.choices[0].logprobs.token_logprobs) == 16


def test_a_tool_is_called(asked: dict[str, Any]) -> None:
    """With arguments that its schema allows."""
    tool = {"type": "function", "function": {"name": "weather", "parameters": TOWN}}
    chosen = {"type": "function", "function": {"name": "weather"}}
    asked |= {"temperature": 1, "seed": 3}  # the likeliest tokens of a small model may be blanks to the end
    answer = litellm.completion(**asked, messages=HELLO, tools=[tool], tool_choice=chosen)
    (call,) = answer.choices[0].message.tool_calls
    assert call.function.name == "weather" and json.loads(call.function.arguments)["town"] in ("Rome", "Oslo")


def test_an_answer_keeps_to_a_schema(asked: dict[str, Any]) -> None:
    """As OpenAI's response_format says it."""
    form = {"type": "json_schema", "json_schema": {"name": "town", "strict": True, "schema": TOWN}}
    answer = litellm.completion(**asked, messages=HELLO, response_format=form)
    assert json.loads(answer.choices[0].message.content)["town"] in ("Rome", "Oslo")


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"max_tokens": 0}, "BadRequestError"),
        ({"model": "other"}, "NotFoundError"),
        ({"messages": [{"role": "user", "content": "word " * 4000}]}, "ContextWindowExceededError"),
    ],
    ids=["field", "model", "length"],
)
def test_a_mistake_has_litellms_name_for_it(
    asked: dict[str, Any], fields: dict[str, Any], error: str
) -> None:
    """It reads the status, and the words where that is not enough: its users fall back by its names."""
    if "model" in fields:
        fields = {"model": asked["model"].replace("sundog-tiny", "other")}
    with pytest.raises(getattr(litellm, error)):
        litellm.completion(**(asked | {"messages": HELLO} | fields))
