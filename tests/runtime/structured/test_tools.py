"""Tools of chat completions on a live server, with OpenAI's client."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import jsonschema
import openai
import pytest

from sundog.runtime.serve import EMBEDDED_MODEL
from tests.live import Live, live

pytest.importorskip("torch", reason="the engine extra is not installed")
pytest.importorskip("llguidance", reason="the extra for structured output is not installed")

WEATHER: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 8}, "unit": {"$ref": "#/$defs/unit"}},
    "required": ["city", "unit"],
    "additionalProperties": False,
    "$defs": {"unit": {"enum": ["C", "F"]}},
}
EMPTY: dict[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}
TOOLS: list[Any] = [
    {"type": "function", "function": {"name": "weather", "description": "How it is", "parameters": WEATHER}},
    {"type": "function", "function": {"name": "now", "parameters": EMPTY}},
]
ASK: list[Any] = [{"role": "user", "content": "How is the weather?"}]
TEMPLATE = "{% if tools %}{{ tools | tojson }}{% endif %}{% for m in messages %}{{ m.role }}:{{ m.content }}{% for c in m.tool_calls or [] %}{{ c.function.name }}{{ c.function.arguments.city }}{% endfor %}{{ m.tool_call_id or '' }}{% endfor %}"  # noqa: E501


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """The embedded model with a template that shows tools."""
    folder = tmp_path_factory.mktemp("model") / "tooled"
    shutil.copytree(EMBEDDED_MODEL, folder)
    (Path(folder) / "chat_template.jinja").write_text(TEMPLATE)
    flags = ("--enable-auto-tool-choice", "--tool-call-parser", "hermes", "--reasoning-parser", "qwen3")
    with live("sundog", "serve", "--port", "0", str(folder), *flags) as running:
        yield running


def client(server: Live) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)


def complete(server: Live, **fields: Any) -> Any:
    fields = {"messages": ASK, "tools": TOOLS, "max_tokens": 1200, "seed": 1, **fields}
    fields = {name: value for name, value in fields.items() if value != []}
    return client(server).chat.completions.create(model="tooled", **fields)


def refusal(server: Live, **fields: Any) -> dict[str, Any]:
    body = {"messages": ASK, "tools": TOOLS, "max_tokens": 5, **fields}
    response = httpx.post(f"{server.url}/v1/chat/completions", json=body)
    assert response.status_code == 400, response.text
    error: dict[str, Any] = response.json()["error"]
    return error


def streamed(server: Live, **fields: Any) -> tuple[str, dict[int, list[str]], str]:
    """Content, calls by index, finish reason of a streamed answer."""
    content, calls, finish = "", dict[int, list[str]](), ""
    for chunk in complete(server, stream=True, **fields):
        (choice,) = chunk.choices
        content += choice.delta.content or ""
        for part in choice.delta.tool_calls or ():
            if part.function.name is not None:
                assert part.index not in calls and part.id
                calls[part.index] = [part.function.name, ""]
            calls[part.index][1] += part.function.arguments
        finish = choice.finish_reason or finish
    return content, calls, finish


@pytest.mark.long(keep=1, reason="more cases of the law whose first `make test` runs", moderate=True)
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_required_call_is_one_of_the_tools_with_valid_arguments(server: Live, seed: int) -> None:
    """Whole and streamed alike."""
    fields = {"tool_choice": "required", "seed": seed, "parallel_tool_calls": False}
    choice = complete(server, **fields).choices[0]
    assert choice.finish_reason == "tool_calls" and choice.message.content is None
    (call,) = choice.message.tool_calls
    assert call.type == "function" and call.id
    schema = {tool["function"]["name"]: tool["function"]["parameters"] for tool in TOOLS}[call.function.name]
    jsonschema.validate(json.loads(call.function.arguments), schema)
    assert streamed(server, **fields) == (
        "",
        {0: [call.function.name, call.function.arguments]},
        "tool_calls",
    )


def test_a_named_function_is_called(server: Live) -> None:
    choice = {"type": "function", "function": {"name": "weather"}}
    answer = complete(server, tool_choice=choice).choices[0]
    (call,) = answer.message.tool_calls
    assert call.function.name == "weather" and answer.finish_reason == "stop"
    jsonschema.validate(json.loads(call.function.arguments), WEATHER)
    assert streamed(server, tool_choice=choice)[1] == {0: ["weather", call.function.arguments]}


def test_a_call_that_the_model_chooses_is_told_from_its_text(server: Live) -> None:
    """The grammar stands in for a model that has learnt to call."""
    said = 'Well.<tool_call>{"name": "now", "arguments": {"a": [1]}}</tool_call>'
    fields = {"extra_body": {"structured_outputs": {"choice": [said]}}}
    choice = complete(server, **fields).choices[0]
    assert (choice.message.content, choice.finish_reason) == ("Well.", "tool_calls")
    assert choice.message.tool_calls[0].function.arguments == '{"a": [1]}'
    assert streamed(server, **fields) == ("Well.", {0: ["now", '{"a": [1]}']}, "tool_calls")
    silent = {"ignore_eos": True, "chat_template_kwargs": {"enable_thinking": False}}
    plain = complete(server, tool_choice="none", max_tokens=8, extra_body=silent).choices[0]
    assert plain.message.content and not plain.message.tool_calls and plain.finish_reason == "length"
    shown = plain.message.model_dump(exclude_unset=True)
    assert "tool_calls" not in shown and "reasoning_content" not in shown and shown["reasoning"] is None


def test_an_answer_is_reasoning_until_it_says_that_it_is_over(server: Live) -> None:
    """As with vLLM's parser of that name: templates of Qwen's write the first mark themselves."""
    message = complete(server, tools=[], max_tokens=8, extra_body={"ignore_eos": True}).choices[0].message
    assert message.content is None and message.reasoning


def test_reasoning_stands_beside_the_content(server: Live) -> None:
    said = {"extra_body": {"structured_outputs": {"choice": ["<think>hm</think>yes"]}}}
    message = complete(server, tools=[], **said).choices[0].message
    assert (message.content, message.reasoning_content) == ("yes", "hm")
    chunks = complete(server, tools=[], stream=True, **said)
    deltas = [chunk.choices[0].delta for chunk in chunks]
    assert "".join(getattr(delta, "reasoning_content", None) or "" for delta in deltas) == "hm"
    assert "".join(delta.content or "" for delta in deltas) == "yes"


def test_what_developers_say_is_the_system_s(server: Live) -> None:
    """The template knows no such role: a model was never shown it."""
    said = [{"role": "developer", "content": "Be short."}, *ASK, {"role": "system", "content": "Be kind."}]
    body = {"messages": said, "max_tokens": 1, "return_prompt_text": True}
    answer = httpx.post(f"{server.url}/v1/chat/completions", json=body).json()
    assert answer["prompt_text"] == "system:Be short.\n\nBe kind.user:How is the weather?"


def test_the_template_is_given_tools_calls_and_results(server: Live) -> None:
    """A conversation with a call and its result goes on."""
    without = complete(server, tools=[], max_tokens=2).usage.prompt_tokens
    assert complete(server, tool_choice="none", max_tokens=2).usage.prompt_tokens > without + 50
    call = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Ulm"}'}}
    turns: list[Any] = [
        *ASK,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "sunny"},
    ]
    assert complete(server, tools=[], messages=turns, max_tokens=2).usage.prompt_tokens > without + 8
    for arguments in ("", "no JSON", "[" * 20_000, '{"city": NaN}'):  # the template is shown none
        call["function"] = {"name": "weather", "arguments": arguments}
        assert complete(server, tools=[], messages=turns, max_tokens=2).choices


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tool_choice": "perhaps"}, "tool_choice"),
        ({"tool_choice": {"type": "function", "function": {"name": "none"}}}, "tool_choice"),
        ({"tool_choice": "required", "tools": None}, "tool_choice"),
        ({"tool_choice": "required", "response_format": {"type": "json_object"}}, "tool_choice"),
        ({"tools": [{"type": "web"}]}, "body.tools.0.type"),
        ({"tools": [{"type": "function", "function": {}}]}, "body.tools.0.function.name"),
        ({"messages": [{"role": "user", "content": "a", "tool_call_id": "x"}]}, "messages[0].tool_call_id"),
        (
            {
                "tool_choice": "required",
                "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "x"}}}],
            },
            "tools",
        ),
    ],
)
def test_what_cannot_be_called_is_a_bad_request(server: Live, fields: dict[str, Any], param: str) -> None:
    assert refusal(server, **fields)["param"] == param


def test_a_server_without_a_parser_says_what_it_needs() -> None:
    with live("sundog", "serve", "--port", "0") as plain:
        error = refusal(plain)
        assert error["param"] == "tool_choice" and "--tool-call-parser" in error["message"]
