"""vLLM's response format on a live server: keys, nulls and names, in answers and errors."""

import json
from typing import Any

import httpx
import pytest

from sundog.actors.api.answers.reasoning import ThoughtCount, starts_thinking
from sundog.actors.api.bodies.chat import ChatBody
from sundog.actors.api.bodies.messages import MessagesBody
from sundog.actors.api.bodies.parsing import parse, validate
from sundog.actors.api.bodies.responses import ResponseBody
from sundog.actors.api.errors import ApiError
from sundog.actors.front.codec import ThoughtMarks
from sundog.actors.kernel.stream import Delta
from tests.actors.api.test_live_fields import CHAT, chat, chunks, complete, post, refused
from tests.live import Live

RESPONSE = set(
    "id created_at incomplete_details instructions metadata model object output parallel_tool_calls"
    " temperature tool_choice tools top_p background max_output_tokens max_tool_calls previous_response_id"
    " prompt reasoning service_tier status text top_logprobs truncation usage user presence_penalty"
    " frequency_penalty kv_transfer_params ec_transfer_params input_messages output_messages".split()
)


def test_the_last_chunk_says_who_answered(torch_server: Live) -> None:
    """As a whole answer does; the one with the usage, if there is one."""
    name = chat(torch_server)["system_fingerprint"]
    assert name.startswith("sundog-") and name == complete(torch_server)["system_fingerprint"]
    *before, last = chunks(torch_server, "chat/completions", messages=CHAT)
    assert last["system_fingerprint"] == name and last["choices"][0]["finish_reason"] == "length"
    assert before[0]["prompt_text"] is None
    assert not any("system_fingerprint" in chunk for chunk in before)
    options = {"include_usage": True, "continuous_usage_stats": True}
    *before, last = chunks(torch_server, "chat/completions", messages=CHAT, stream_options=options)
    assert last["system_fingerprint"] == name and "completion_tokens_details" not in last["usage"]
    assert all(chunk["usage"]["completion_tokens_details"] is None for chunk in before)
    *before, _ = chunks(torch_server, "completions", prompt="Once", stream_options=options)
    assert not any("completion_tokens_details" in chunk["usage"] for chunk in before)


@pytest.mark.long(keep=1, reason="more cases of the law whose first `make test` runs", moderate=True)
@pytest.mark.parametrize(
    ("fields", "kind", "param"),
    [
        ({"temperature": "warm"}, "Bad Request", "body.temperature"),
        ({"messages": [{"content": "x"}]}, "Bad Request", "body.messages.0.role"),
        ({"messages": "x"}, "Bad Request", "body.messages"),
        ({"stop": {}}, "Bad Request", "body.stop"),
        ({"reasoning_effort": "much"}, "Bad Request", "body.reasoning_effort"),
        ({"messages": [{"role": "user", "content": ["x"]}]}, "Bad Request", "body.messages.0.content"),
        ({"temperature": 3}, "BadRequestError", "temperature"),
        ({"max_tokens": 0}, "BadRequestError", "max_tokens"),
        ({"stop": [""]}, "BadRequestError", "stop"),
        ({"tool_choice": "auto"}, "BadRequestError", "tool_choice"),
        ({"tools": [], "tool_choice": "required"}, "BadRequestError", "tool_choice"),
    ],
)
def test_a_body_of_another_shape_is_a_bad_request(
    torch_server: Live, fields: Any, kind: str, param: str
) -> None:
    """Its `param` is a place in the body; a value that is out of bounds is named by its field."""
    error = refused(torch_server, "chat/completions", **fields)
    assert (error["type"], error["param"], error["code"]) == (kind, param, 400)


@pytest.mark.parametrize(
    "fields",
    [
        {"tools": []},
        {"tools": [], "tool_choice": "auto"},
        {"stream_options": {"include_usage": True}},
        {"stream_options": {"include_usage": True, "continuous_usage_stats": True}, "stream": False},
    ],
)
def test_fields_that_clients_always_send_change_nothing(torch_server: Live, fields: Any) -> None:
    """An empty list of tools, and what a stream would show where none is asked for."""
    plain, answer = chat(torch_server), chat(torch_server, **fields)
    assert answer["choices"] == plain["choices"] and answer["usage"] == plain["usage"]


def test_a_path_may_end_with_a_slash(torch_server: Live) -> None:
    """The client is sent to the path without; nowhere, where there is none."""
    answer = httpx.get(f"{torch_server.url}/v1/models/?a=1")
    assert (answer.status_code, answer.headers["Location"]) == (307, "/v1/models?a=1")
    body = {"prompt": "Once", "max_tokens": 1}
    posted = httpx.post(f"{torch_server.url}/v1/completions/", json=body, follow_redirects=True)
    assert posted.json()["object"] == "text_completion"
    for path in ("/nowhere/", "//elsewhere.example/"):
        assert httpx.get(torch_server.url + path).status_code == 404


def test_a_body_may_begin_with_the_mark_of_utf8(torch_server: Live) -> None:
    """Some shells write one; one is enough."""
    url, kind = f"{torch_server.url}/v1/completions", {"Content-Type": "application/json"}
    body = json.dumps({"prompt": "Once", "max_tokens": 1}).encode()
    assert httpx.post(url, content=b"\xef\xbb\xbf" + body, headers=kind).status_code == 200
    assert httpx.post(url, content=2 * b"\xef\xbb\xbf" + body, headers=kind).status_code == 400


def test_a_response_has_the_keys_of_vllms(torch_server: Live) -> None:
    """With the values that it left out as they were resolved, null where nothing was sent."""
    asked = {"input": "Tell me a story.", "temperature": 0}
    whole = post(torch_server, "responses", **asked, max_output_tokens=3).json()
    assert set(whole) == RESPONSE | {"store", "error"}
    assert [name for name in ("metadata", "text", "reasoning", "top_logprobs") if whole[name]] == []
    assert (whole["tool_choice"], whole["service_tier"], whole["top_p"]) == ("none", "auto", 1.0)
    (message,) = whole["output"]
    assert message["phase"] is None and message["content"][0]["logprobs"] is None
    assert set(whole["usage"]["output_tokens_details"]) == {
        *("reasoning_tokens", "tool_output_tokens", "output_tokens_per_turn", "tool_output_tokens_per_turn")
    }
    asked |= {"user": "me", "reasoning": {"effort": "low"}, "stop": " "}
    free = post(torch_server, "responses", **asked).json()
    used, card = free["usage"], httpx.get(f"{torch_server.url}/v1/models").json()["data"][0]
    assert free["max_output_tokens"] == card["max_model_len"] - used["input_tokens"]
    assert free["user"] == "me" and free["reasoning"]["effort"] == "low"


@pytest.mark.parametrize(
    ("fields", "param"),
    [({"input": "a b c " * 3000}, "input"), ({"max_output_tokens": 10**6}, "max_output_tokens")],
)
def test_an_error_of_a_response_names_its_own_field(torch_server: Live, fields: Any, param: str) -> None:
    """Not the chat completion's that answers it, in its message neither."""
    error = post(torch_server, "responses", **{"input": "x", **fields}).json()["error"]
    assert error["param"] == param and "messages" not in error["message"]
    assert " max_tokens" not in error["message"]


def test_the_count_of_a_messages_tokens_is_given_twice(torch_server: Live) -> None:
    """As vLLM gives it: nothing manages the context."""
    count = post(torch_server, "messages/count_tokens", messages=CHAT).json()
    assert count["context_management"] == {"original_input_tokens": count["input_tokens"]}


@pytest.mark.long(keep=1, reason="more cases of the law whose first `make test` runs", moderate=True)
@pytest.mark.parametrize("route", ["completions", "chat/completions", "responses"])
def test_a_bound_of_thinking_needs_a_reasoning_parser(torch_server: Live, route: str) -> None:
    """Nobody knows otherwise where thinking ends. -1 and null ask for none."""
    prompt: dict[str, Any] = {"completions": {"prompt": "x"}, "responses": {"input": "x"}}.get(
        route, {"messages": CHAT}
    )
    error = refused(torch_server, route, **prompt, thinking_token_budget=5)
    assert error["param"] == "thinking_token_budget" and "--reasoning-parser" in error["message"]
    for none in (-1, None):
        assert post(torch_server, route, **prompt, thinking_token_budget=none).status_code == 200


@pytest.mark.parametrize("wrong", [-2, 1.5, "5", True, 2**31])
def test_a_bound_of_thinking_is_a_number_of_tokens(torch_server: Live, wrong: object) -> None:
    """By the field's name."""
    body = post(torch_server, "completions", prompt="x", thinking_token_budget=wrong)
    assert body.status_code == 400 and "thinking_token_budget" in body.json()["error"]["param"]


@pytest.mark.parametrize(
    ("thinking", "says"),
    [
        ({"type": "enabled", "budget_tokens": 2048}, "--reasoning-parser"),
        ({"type": "enabled", "budget_tokens": 5}, "1024"),
        ({"type": "enabled", "budget_tokens": 4096}, "less than max_tokens (4096)"),
        ({"type": "enabled"}, "required"),
        ({"type": "adaptive", "budget_tokens": 2048}, 'only allowed with the type "enabled"'),
    ],
)
def test_a_messages_bound_of_thinking_is_refused_by_name(
    torch_server: Live, thinking: Any, says: str
) -> None:
    """Where nothing keeps to it, and where no answer has room behind it."""
    answer = post(torch_server, "messages", messages=CHAT, max_tokens=4096, thinking=thinking)
    assert answer.status_code == 400 and says in answer.json()["error"]["message"]
    assert "budget_tokens" in answer.json()["error"]["message"]


@pytest.mark.parametrize("kind", ["adaptive", "disabled"])
def test_thinking_as_such_is_no_bound(torch_server: Live, kind: str) -> None:
    """It is for the chat template."""
    body = {"messages": CHAT, "max_tokens": 4, "thinking": {"type": kind}}
    assert post(torch_server, "messages", **body).status_code == 200


def read(body_type: Any, **body: Any) -> Any:
    return validate(body_type, parse(json.dumps(body).encode()))


def test_templates_get_tools_as_vllm_gives_them() -> None:
    """Known keys in their order, null where nothing was sent: else the model reads another prompt."""
    tools = [{"type": "function", "extra": 1, "function": {"strict": True, "name": "f", "more": 2}}]
    given = read(ChatBody, messages=CHAT, tools=tools).reading().template_arguments["tools"]
    function = {"name": "f", "description": None, "parameters": None, "strict": True}
    assert json.dumps(given) == json.dumps([{"type": "function", "function": function}])


@pytest.mark.parametrize("written", ["{", "[1]", "3", "null", ""])
def test_arguments_that_are_no_object_are_shown_as_an_empty_one(written: str) -> None:
    """A model wrote them: to refuse them would end the conversation."""
    called = {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": written}}]}
    (turn,) = read(ChatBody, messages=[called]).messages
    assert turn.checked("x").more["tool_calls"][0]["function"]["arguments"] == {}


def test_what_was_thought_reaches_templates() -> None:
    """Of all three shapes, under both of its names; items of one turn are one message."""
    more = {"reasoning": "hm", "reasoning_content": "hm"}
    for name in more:
        (turn,) = read(ChatBody, messages=[{"role": "assistant", "content": "a", name: "hm"}]).messages
        assert turn.checked("x").more == more
    blocks = [{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": "a"}]
    said = read(MessagesBody, max_tokens=1, messages=[{"role": "assistant", "content": blocks}]).chat()
    assert said["messages"] == [{"role": "assistant", "content": "a", "reasoning": "hm"}]
    items = [
        {
            "type": "reasoning",
            "id": "r",
            "summary": [],
            "content": [{"type": "reasoning_text", "text": "hm"}],
        },
        {"role": "assistant", "content": "a"},
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
    ]
    (message,) = read(ResponseBody, input=items).messages()
    assert (message["reasoning"], message["content"], len(message["tool_calls"])) == ("hm", "a", 1)


@pytest.mark.parametrize(("effort", "thinks"), [(None, True), ("low", True), ("none", False)])
def test_no_effort_is_no_thinking(effort: str | None, thinks: bool) -> None:
    """The template is told, unless the request says it itself."""
    body = read(ChatBody, messages=CHAT, reasoning_effort=effort)
    assert body.may_think == thinks and starts_thinking("qwen3", body.may_think) == thinks
    assert starts_thinking("deepseek_r1", body.may_think)
    told = {"enable_thinking": not thinks}
    assert (
        read(ChatBody, messages=CHAT, reasoning_effort=effort, chat_template_kwargs=told).may_think != thinks
    )


def test_what_accounts_for_a_request_is_no_instruction() -> None:
    """It differs each time, so that nothing behind it would be found in the prefix cache."""
    blocks = [{"type": "text", "text": text} for text in ("x-anthropic-billing-header: 1", "Be ", "kind.")]
    chat_body = read(MessagesBody, max_tokens=1, messages=CHAT, system=blocks).chat()
    assert chat_body["messages"][0] == {"role": "system", "content": "Be kind."}
    for content in (blocks, "x-anthropic-billing-header: 1\nBe \nkind."):
        for role, left in (("system", "Be \nkind."), ("user", "x-anthropic-billing-header: 1\nBe \nkind.")):
            (turn,) = read(ChatBody, messages=[{"role": role, "content": content}]).messages
            assert turn.checked("x").content == left


@pytest.mark.parametrize(
    ("deltas", "starts", "count"),
    [
        ([Delta(token_ids=(5, 6)), Delta(token_ids=(2, 7), finish_reason="length")], True, 2),
        ([Delta(token_ids=(5, 6, 9), finish_reason="stop")], True, 2),
        ([Delta(token_ids=(5, 6), finish_reason="stop", stop_reason="e")], True, 2),
        ([Delta(token_ids=(5, 1)), Delta(token_ids=(6, 2, 5), finish_reason="length")], False, 1),
        ([Delta(token_ids=(2, 2), finish_reason="length")], True, 0),
    ],
)
def test_tokens_of_reasoning_are_counted(deltas: list[Delta], starts: bool, count: int) -> None:
    """Neither its marks nor the token that ends the answer."""
    counted = ThoughtCount(ThoughtMarks(begin=1, end=2), starts)
    for delta in deltas:
        counted.feed(delta)
    assert counted.num_tokens == count


def test_parts_of_text_go_under_several_names() -> None:
    """A refusal and what was thought are text; bare strings are no parts."""
    parts = [{"type": "input_text", "text": "a"}, {"type": "refusal", "refusal": "b"}]
    (turn,) = read(ChatBody, messages=[{"role": "user", "content": parts}]).messages
    assert turn.content == "a\nb"
    with pytest.raises(ApiError, match="must be a part"):
        read(ChatBody, messages=[{"role": "user", "content": ["a"]}])
