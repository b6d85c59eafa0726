"""LangChain's client for OpenAI: chats, streams, batches, tools and structured output."""

from typing import Any, Literal

import pytest

langchain_openai = pytest.importorskip(
    "langchain_openai", reason="langchain-openai has an environment of its own: make test-clients"
)

from langchain_core.messages import HumanMessage, ToolMessage  # noqa: E402
from pydantic import BaseModel  # noqa: E402

from tests.live import Live  # noqa: E402

STORY = "Tell me a story."
LIVELY: Any = {"temperature": 1, "seed": 3}
"""A small model that always takes the likeliest token may write blanks to its end."""


class Visit(BaseModel, extra="forbid"):
    """A visit, and nothing else: a small model would add properties to its end."""

    town: Literal["Rome", "Oslo"]


def chat(server: Live, **more: Any) -> Any:
    asked = {"model": "sundog-tiny", "temperature": 0, "max_retries": 0, "max_tokens": 400} | more
    return langchain_openai.ChatOpenAI(base_url=f"{server.url}/v1", api_key="none", **asked)


def test_a_chat_is_the_same_whole_streamed_and_in_a_batch(server: Live) -> None:
    """With usage and a reason for its end."""
    model = chat(server, max_tokens=16, stream_usage=True)
    whole = model.invoke(STORY)
    streamed = list(model.stream(STORY))
    batch = model.batch([STORY, STORY])
    assert whole.content and "".join(chunk.content for chunk in streamed) == whole.content
    assert [each.content for each in batch] == [whole.content] * 2
    assert whole.usage_metadata["output_tokens"] == 16
    assert whole.response_metadata["finish_reason"] == "length"
    assert sum((chunk.usage_metadata or {}).get("output_tokens", 0) for chunk in streamed) == 16


def test_text_is_completed(server: Live) -> None:
    """By the older route."""
    model = langchain_openai.OpenAI(
        base_url=f"{server.url}/v1", api_key="none", model="sundog-tiny", temperature=0, max_tokens=16
    )
    assert model.invoke("Once") == server.complete("Once", max_tokens=16).json()["choices"][0]["text"]


def test_the_api_of_responses_says_the_same(server: Live) -> None:
    """It is what newer versions prefer."""
    assert (
        chat(server, max_tokens=16, use_responses_api=True).invoke(STORY).text
        == chat(server, max_tokens=16).invoke(STORY).content
    )


@pytest.mark.parametrize("method", ["json_schema", "function_calling"])
def test_structured_output_is_parsed(server: Live, method: str) -> None:
    """By a schema, or by a call."""
    model = chat(server, **LIVELY).with_structured_output(Visit, method=method, include_raw=True)
    found = model.invoke(STORY)
    assert found["parsing_error"] is None and isinstance(found["parsed"], Visit)


def test_a_tool_is_called_and_answered(server: Live) -> None:
    """Whole and streamed; its result goes back as a message."""
    model = chat(server, **LIVELY).bind_tools([Visit], tool_choice="Visit")
    whole = model.invoke(STORY)
    streamed = None
    for chunk in model.stream(STORY):
        streamed = chunk if streamed is None else streamed + chunk
    (call,) = whole.tool_calls
    assert call["name"] == "Visit" and call["args"]["town"] in ("Rome", "Oslo")
    assert streamed is not None and streamed.tool_calls[0]["args"] == call["args"]
    result = ToolMessage("sunny", tool_call_id=call["id"])
    assert chat(server, max_tokens=8).invoke([HumanMessage(STORY), whole, result]).content


def test_a_mistake_is_raised_with_the_servers_words(server: Live) -> None:
    """LangChain lets the errors of openai through."""
    with pytest.raises(Exception, match="does not exist"):
        chat(server, model="other").invoke(STORY)
