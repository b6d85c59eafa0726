"""/v1/messages and /v1/responses on a real model: tool calls, and streams equal to whole answers."""

import json
from typing import Any

import anthropic
import httpx
import openai
import pytest

from tests.live import Live

HELLO: Any = [{"role": "user", "content": "Tell me a story."}]
TOWN: Any = {
    "type": "object",
    "properties": {"town": {"enum": ["Rome", "Oslo"]}},
    "required": ["town"],
    "additionalProperties": False,
}


@pytest.mark.long(reason="starts a server, and asks it over sockets", moderate=True)
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
    assert (whole.stop_reason, streamed.stop_reason) == ("tool_use", "tool_use")
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


@pytest.mark.parametrize(
    ("more", "reason", "stop"),
    [({"max_tokens": 4}, "max_tokens", None), ({"stop_sequences": ["town"]}, "stop_sequence", "town")],
)
@pytest.mark.parametrize("stream", [False, True])
def test_a_call_that_is_cut_short_is_not_to_be_run(
    torch_server: Live, more: dict[str, Any], reason: str, stop: str | None, stream: bool
) -> None:
    """By its limit, or by a stop string in its arguments."""
    asked: Any = {"model": "", "max_tokens": 100, "messages": HELLO, "stream": stream, "temperature": 0}
    asked |= {"tools": [{"name": "weather", "input_schema": TOWN}]}
    asked |= {"tool_choice": {"type": "tool", "name": "weather"}} | more
    answer = httpx.post(f"{torch_server.url}/v1/messages", json=asked).raise_for_status()
    if stream:
        events = [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: ")]
        (ended,) = [event["delta"] for event in events if event["type"] == "message_delta"]
    else:
        ended = answer.json()
    assert (ended["stop_reason"], ended["stop_sequence"]) == (reason, stop)


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


def complete(server: Live, path: str, **body: Any) -> Any:
    """The answer's object, of a body that is honoured."""
    answer = httpx.post(f"{server.url}{path}", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


@pytest.mark.long(reason="starts a server, and asks it over sockets", moderate=True)
def test_a_response_is_sampled_as_its_chat_is(torch_server: Live) -> None:
    """Every field that changes the answer does so in both shapes, and changes it.

    Penalties are tried where the same few tokens must come again and again, so that they decide on any CPU.
    """
    greedy: Any = {"temperature": 0}
    repetitive: Any = greedy | {"allowed_token_ids": [5, 6, 7]}
    fields: Any
    for plain, fields in (
        (greedy, {"temperature": 1, "seed": 7, "top_k": 50}),
        (greedy, {"stop": ["e"]}),
        (repetitive, {"frequency_penalty": 2.0, "presence_penalty": 1.0}),
        (repetitive, {"repetition_penalty": 1.9}),
        (greedy, {"logit_bias": {"10": 100}}),
        (greedy, {"allowed_token_ids": [5, 6, 7]}),
        (greedy, {"structured_outputs": {"choice": ["yes", "no"]}}),
    ):
        chat = complete(
            torch_server, "/v1/chat/completions", messages=HELLO, max_tokens=30, **(plain | fields)
        )
        text = chat["choices"][0]["message"]["content"]
        response = complete(
            torch_server, "/v1/responses", input=HELLO, max_output_tokens=30, **(plain | fields)
        )
        assert [part["text"] for item in response["output"] for part in item["content"]] == [text], fields
        other = complete(torch_server, "/v1/responses", input=HELLO, max_output_tokens=30, **plain)
        assert other["output"][0]["content"][0]["text"] != text, fields


def test_a_response_shows_log_probabilities(torch_server: Live) -> None:
    """If they are included; each delta has its own, and whole they are the chat's."""
    asked: Any = {"model": "", "input": "Tell me a story.", "max_output_tokens": 8, "temperature": 0}
    asked |= {"include": ["message.output_text.logprobs"], "top_logprobs": 2}
    chat = complete(
        torch_server,
        "/v1/chat/completions",
        messages=HELLO,
        max_tokens=8,
        temperature=0,
        logprobs=True,
        top_logprobs=2,
    )
    with openai.OpenAI(base_url=f"{torch_server.url}/v1", api_key="none", max_retries=0) as client:
        whole = client.responses.create(**asked)
        events = list(client.responses.create(**asked, stream=True))
    wanted = [(each["token"], each["logprob"]) for each in chat["choices"][0]["logprobs"]["content"]]
    part: Any = whole.output[0].content[0]  # type: ignore[union-attr]
    assert [(each.token, each.logprob) for each in part.logprobs] == wanted and len(wanted) == 8
    assert all(len(each.top_logprobs) == 2 for each in part.logprobs)
    deltas: Any = [each for each in events if each.type == "response.output_text.delta"]
    assert [each.token for delta in deltas for each in delta.logprobs] == [token for token, _ in wanted]
    final: Any = events[-1]
    assert [each.token for each in final.response.output[0].content[0].logprobs] == [
        name for name, _ in wanted
    ]


def test_a_response_may_drop_the_beginning_of_its_prompt(torch_server: Live) -> None:
    """With `truncation: auto`; else a prompt that is too long is refused."""
    long = {"input": "Once " * 3000, "max_output_tokens": 4}
    refused = httpx.post(f"{torch_server.url}/v1/responses", json=long)
    assert refused.status_code == 400 and "maximum context length" in refused.json()["error"]["message"]
    response = complete(torch_server, "/v1/responses", **long, truncation="auto")
    assert response["truncation"] == "auto" and response["usage"]["output_tokens"] == 4


def test_a_message_may_have_a_form(torch_server: Live) -> None:
    """`output_config` says which, as Anthropic's clients do; a format without a schema is refused."""
    schema = {"type": "object", "properties": {"town": TOWN["properties"]["town"]}, "required": ["town"]}
    body: Any = {"messages": HELLO, "max_tokens": 100, "temperature": 0}
    form = {"type": "json_schema", "schema": schema | {"additionalProperties": False}}
    said = complete(torch_server, "/v1/messages", **body, output_config={"format": form, "effort": "low"})
    assert json.loads(said["content"][0]["text"])["town"] in ("Rome", "Oslo")
    for config, param in (
        ({"format": {"type": "json_schema"}}, "format.schema"),
        ({"effort": "much"}, "effort"),
    ):
        wrong = {**body, "output_config": config}
        refused = httpx.post(f"{torch_server.url}/v1/messages", json=wrong)
        assert refused.status_code == 400 and f"output_config.{param}" in refused.json()["error"]["message"]
