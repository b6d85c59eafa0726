"""OpenAI's own client and a real model: asynchronous, streamed, parsed, with tools, many at once."""

import asyncio
import json
from typing import Any, Literal

import openai
import pytest
from pydantic import BaseModel

from tests.live import Live
from tests.runtime.variants import RUNNABLE

HELLO: Any = [{"role": "user", "content": "Tell me a story."}]


class Visit(BaseModel):
    """What an answer must be."""

    town: Literal["Rome", "Oslo"]
    days: Literal[1, 2, 3]


class weather(BaseModel):  # the client takes a tool's name from it
    """The weather of a town."""

    town: Literal["Rome", "Oslo"]


@pytest.fixture
def client(torch_server: Live) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{torch_server.url}/v1", api_key="none", max_retries=0)


@pytest.mark.long(reason="starts a server, and asks it over sockets", moderate=True)
def test_an_answer_is_parsed_into_the_class_that_was_asked_for(client: openai.OpenAI) -> None:
    """Whole and streamed, and by the API of responses."""
    asked: Any = {"model": "", "messages": HELLO, "temperature": 0, "response_format": Visit}
    with client:
        whole = client.chat.completions.parse(**asked).choices[0].message
        with client.chat.completions.stream(**asked) as stream:
            kinds = [event.type for event in stream]
            streamed = stream.get_final_completion().choices[0].message
        response = client.responses.parse(model="", input=HELLO, temperature=0, text_format=Visit)
    assert isinstance(whole.parsed, Visit) and streamed.parsed == whole.parsed == response.output_parsed
    assert kinds.count("content.delta") > 1 and kinds[-1] == "content.done"


def test_a_tool_that_is_asked_for_is_called_with_parsed_arguments(client: openai.OpenAI) -> None:
    """Streamed deltas put together are the whole call, and its result can be sent back."""
    tool: Any = openai.pydantic_function_tool(weather)
    asked: Any = {"model": "", "messages": HELLO, "tools": [tool], "temperature": 1, "seed": 3}
    asked |= {"tool_choice": {"type": "function", "function": {"name": "weather"}}}
    with client:
        whole = client.chat.completions.parse(**asked).choices[0]
        with client.chat.completions.stream(**asked) as stream:
            deltas = [event for event in stream if event.type == "tool_calls.function.arguments.delta"]
            final = stream.get_final_completion().choices[0]
        assert whole.message.tool_calls and final.message.tool_calls
        call = whole.message.tool_calls[0]
        turns = [
            *HELLO,
            whole.message.model_dump(exclude={"parsed"}),
            {"role": "tool", "tool_call_id": call.id, "content": "sunny"},
        ]
        again = client.chat.completions.create(model="", messages=turns, max_tokens=4)
    assert isinstance(call.function.parsed_arguments, weather)
    assert final.message.tool_calls[0].function.arguments == call.function.arguments
    assert "".join(delta.arguments_delta for delta in deltas) == call.function.arguments
    assert json.loads(call.function.arguments) == call.function.parsed_arguments.model_dump()
    assert whole.finish_reason == final.finish_reason and again.choices[0].message.content


@pytest.mark.skipif(not RUNNABLE, reason="torch's kernels compute, whose sums depend on the batch")
def test_many_asynchronous_streams_get_their_own_answers(torch_server: Live) -> None:
    """Each the text that it gets alone; one that is left in the middle disturbs nobody."""
    prompts = [f"Once upon a time there was a {animal}" for animal in ("dog", "cat", "bird", "fish")]

    async def told(client: openai.AsyncOpenAI, prompt: str, most: int | None = None) -> str:
        stream = await client.completions.create(
            model="", prompt=prompt, max_tokens=24, temperature=0, stream=True
        )
        texts: list[str] = []
        async with stream:
            async for chunk in stream:
                texts.append(chunk.choices[0].text)
                if most is not None and len(texts) == most:
                    break
        return "".join(texts)

    async def all_of_them() -> list[str]:
        async with openai.AsyncOpenAI(
            base_url=f"{torch_server.url}/v1", api_key="none", max_retries=0
        ) as client:
            left = asyncio.create_task(told(client, "Once", most=2))
            return [*await asyncio.gather(*(told(client, prompt) for prompt in prompts)), await left]

    *together, left = asyncio.run(all_of_them())
    alone = [torch_server.complete(prompt, max_tokens=24).json()["choices"][0]["text"] for prompt in prompts]
    assert together == alone and left
