"""Messages and responses of a real model: calls, and streams that say what whole answers say."""

import json
from typing import Any

import anthropic
import openai

from tests.live import Live

HELLO: Any = [{"role": "user", "content": "Tell me a story."}]
TOWN: Any = {
    "type": "object",
    "properties": {"town": {"enum": ["Rome", "Oslo"]}},
    "required": ["town"],
    "additionalProperties": False,
}


def test_a_tool_that_must_be_called_is_called(torch_server: Live) -> None:
    """In both shapes, whole and streamed, with the arguments that its schema allows."""
    town: Any = {"name": "weather", "input_schema": TOWN}
    asked: Any = {
        "model": "",
        "max_tokens": 100,
        "messages": HELLO,
        "tools": [town],
        "tool_choice": {"type": "tool", "name": "weather"},
    }
    with anthropic.Anthropic(base_url=torch_server.url, api_key="none", max_retries=0) as client:
        whole = client.messages.create(**asked, extra_body={"temperature": 0})
        with client.messages.stream(**asked, extra_body={"temperature": 0}) as stream:
            streamed = stream.get_final_message()
    (call,) = whole.content
    assert call.type == "tool_use" and call.name == "weather" and call.input["town"] in ("Rome", "Oslo")
    assert [block.model_dump(exclude={"id"}) for block in streamed.content] == [
        call.model_dump(exclude={"id"})
    ]

    tool: Any = {"type": "function", "name": "weather", "parameters": TOWN}
    with openai.OpenAI(base_url=f"{torch_server.url}/v1", api_key="none", max_retries=0) as client:
        more: Any = {
            "tools": [tool],
            "tool_choice": {"type": "function", "name": "weather"},
            "temperature": 0,
        }
        response = client.responses.create(model="", input="Tell me a story.", **more)
        with client.responses.stream(model="", input="Tell me a story.", **more) as stream:
            final = stream.get_final_response()
    (item,) = response.output
    assert item.type == "function_call" and json.loads(item.arguments) == call.input
    assert [each.arguments for each in final.output] == [item.arguments]


def test_text_is_the_chats_text(torch_server: Live) -> None:
    """The same tokens in three shapes."""
    with openai.OpenAI(base_url=f"{torch_server.url}/v1", api_key="none", max_retries=0) as client:
        chat = client.chat.completions.create(model="", messages=HELLO, max_tokens=20, temperature=0)
        response = client.responses.create(model="", input=HELLO, max_output_tokens=20, temperature=0)
    with anthropic.Anthropic(base_url=torch_server.url, api_key="none", max_retries=0) as client:
        message = client.messages.create(
            model="", messages=HELLO, max_tokens=20, extra_body={"temperature": 0}
        )
        counted = client.messages.count_tokens(model="", messages=HELLO)
    text = chat.choices[0].message.content
    assert response.output_text == text == message.content[0].text
    assert chat.usage is not None and response.usage is not None
    assert counted.input_tokens == chat.usage.prompt_tokens == response.usage.input_tokens
