"""Requests as coding agents send them: optional unsupported fields are left out by name, all others take
effect.
"""

from typing import Any

import httpx
import pytest

from sundog.actors.api.context import AnswerFormats
from sundog.actors.api.left_out import HEADER
from tests.actors.api.conftest import Serving, Site

ANSWERS = AnswerFormats("hermes", auto_tools=True)
RUN = {"type": "function", "name": "run", "parameters": {"type": "object", "properties": {}}}
TOOL = {"name": "run", "input_schema": {"type": "object"}}


async def post(site: Site, path: str, **body: Any) -> httpx.Response:
    async with httpx.AsyncClient() as client:
        return await client.post(site.url + path, json=body, timeout=60)


def turns(site: Site) -> list[tuple[str, str]]:
    """The conversation that the engine was last asked about."""
    return [(turn.role, turn.content) for turn in site.llm.asked[-1].prompt]  # type: ignore[union-attr]


def tools(site: Site) -> list[str]:
    """The names of the tools that the model was last told of."""
    given: Any = site.llm.asked[-1].reading.template_arguments.get("tools", ())
    return [tool["function"]["name"] for tool in given]


@pytest.mark.long(keep=1, reason="more cases of the law whose first `make test` runs", moderate=True)
@pytest.mark.parametrize(
    "other",
    [
        {"type": "namespace", "name": "agents", "tools": [RUN | {"name": "spawn"}]},
        {"type": "web_search", "external_web_access": False},
        {"type": "custom", "name": "apply_patch", "format": {"type": "grammar", "syntax": "lark"}},
        {"type": "local_shell"},
        {"type": "image_generation"},
        {"type": "mcp", "server_label": "x", "server_url": "http://x"},
    ],
    ids=lambda other: other["type"],
)
async def test_a_response_goes_without_the_tools_of_other_servers(serving: Serving, other: Any) -> None:
    async with serving(answers=ANSWERS) as site:
        answer = await post(site, "/v1/responses", input="x", tools=[RUN, other], tool_choice="auto")
        assert answer.status_code == 200, answer.text
        assert tools(site) == ["run"] and [tool["name"] for tool in answer.json()["tools"]] == ["run"]
        assert answer.headers[HEADER] == f"tools[1] ({other['type']})"
        alone = await post(site, "/v1/responses", input="x", tools=[other])
        assert alone.status_code == 200 and tools(site) == []
        forced = await post(site, "/v1/responses", input="x", tools=[other], tool_choice="required")
        assert forced.status_code == 400 and forced.json()["error"]["param"] == "tool_choice"


async def test_what_was_left_out_is_named_whole_and_streamed(serving: Serving) -> None:
    async with serving(answers=ANSWERS) as site:
        for stream in (False, True):
            asked = {
                "input": "x",
                "text": {"verbosity": "low"},
                "context_management": [{"type": "compaction"}],
            }
            answer = await post(site, "/v1/responses", stream=stream, **asked)
            assert answer.headers[HEADER] == "text.verbosity, context_management"
            chat = {"messages": [{"role": "user", "content": "x"}], "verbosity": "high"}
            answer = await post(site, "/v1/chat/completions", stream=stream, **chat)
            assert answer.headers[HEADER] == "verbosity"
        plain = await post(site, "/v1/responses", input="x", text={"verbosity": "medium"})
        assert HEADER not in plain.headers


async def test_calls_of_other_kinds_stay_in_the_conversation(serving: Serving) -> None:
    """A custom tool's text and a shell's command are arguments; what another server searched is left out."""
    items = [
        {"role": "user", "content": "go"},
        {"type": "web_search_call", "id": "w", "status": "completed"},
        {"type": "custom_tool_call", "call_id": "c1", "name": "apply_patch", "input": "*** é"},
        {"type": "custom_tool_call_output", "call_id": "c1", "output": "done"},
        {"type": "local_shell_call", "call_id": "c2", "action": {"type": "exec", "command": ["ls"]}},
        {"type": "local_shell_call_output", "id": "c2", "output": "a.py"},
    ]
    async with serving(answers=ANSWERS) as site:
        answer = await post(site, "/v1/responses", input=items)
        assert answer.headers[HEADER] == "input[1] (web_search_call)"
        calls = [
            call["function"]
            for turn in site.llm.asked[0].prompt
            for call in turn.more.get("tool_calls", ())  # type: ignore[union-attr, attr-defined]
        ]
        assert turns(site) == [
            ("user", "go"),
            ("assistant", ""),
            ("tool", "done"),
            ("assistant", ""),
            ("tool", "a.py"),
        ]
    assert calls == [
        {"name": "apply_patch", "arguments": {"input": "*** é"}},
        {"name": "local_shell", "arguments": {"type": "exec", "command": ["ls"]}},
    ]


async def test_all_that_the_system_says_is_one_message_at_the_beginning(serving: Serving) -> None:
    note = {"role": "system", "content": [{"type": "text", "text": "No agents."}]}
    hi = {"role": "user", "content": "hi"}
    async with serving(answers=ANSWERS) as site:
        body = {"max_tokens": 3, "system": "You help.", "messages": [hi, note, hi]}
        assert (await post(site, "/v1/messages", **body)).status_code == 200
        assert turns(site) == [("system", "You help.\n\nNo agents."), ("user", "hi"), ("user", "hi")]
        note["content"] = "No agents."  # type: ignore[assignment]
        answer = await post(site, "/v1/responses", instructions="You help.", input=[hi, note])
        assert answer.status_code == 200
        assert turns(site) == [("system", "You help.\n\nNo agents."), ("user", "hi")]


async def test_claude_codes_own_roles_and_blocks_are_read(serving: Serving) -> None:
    messages = [
        {"role": "ctx", "content": "note"},
        {"role": "msg", "content": "hi"},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "t1", "name": "find", "input": {}}]},
        {
            "role": "user",
            "content": [
                {
                    "type": "tool_result",
                    "tool_use_id": "t1",
                    "content": [{"type": "tool_reference", "tool_name": "run"}],
                }
            ],
        },
    ]
    search = {"type": "web_search_20250305", "name": "web_search", "max_uses": 5}
    async with serving(answers=ANSWERS) as site:
        answer = await post(site, "/v1/messages", max_tokens=3, messages=messages, tools=[TOOL, search])
        assert answer.status_code == 200, answer.text
        assert answer.headers[HEADER] == "tools[1] (web_search_20250305)" and tools(site) == ["run"]
        assert turns(site) == [("user", "note"), ("user", "hi"), ("assistant", ""), ("tool", "run")]


@pytest.mark.long(keep=1, reason="more cases of the law whose first `make test` runs", moderate=True)
@pytest.mark.parametrize(
    ("edit", "kept"),
    [
        ({"keep": "all"}, ["a", "b", "c"]),
        ({}, ["c"]),
        ({"keep": {"type": "thinking_turns", "value": 2}}, ["b", "c"]),
        ({"keep": {"type": "thinking_turns", "value": 9}}, ["a", "b", "c"]),
    ],
)
async def test_thinking_is_cleared_as_anthropic_clears_it(
    serving: Serving, edit: dict[str, Any], kept: list[str]
) -> None:
    """The last turns that think keep it; edits that count tokens are left out by name."""
    messages: list[Any] = []
    for thought in "abc":
        messages.append({"role": "user", "content": "go"})
        blocks = [{"type": "thinking", "thinking": thought, "signature": ""}, {"type": "text", "text": "ok"}]
        messages.append({"role": "assistant", "content": blocks})
    messages.append({"role": "user", "content": "go"})
    edits = [{"type": "clear_thinking_20251015", **edit}, {"type": "clear_tool_uses_20250919"}]
    async with serving(answers=ANSWERS) as site:
        answer = await post(
            site, "/v1/messages", max_tokens=3, messages=messages, context_management={"edits": edits}
        )
        assert answer.status_code == 200, answer.text
        assert answer.headers[HEADER] == "context_management.edits[1] (clear_tool_uses_20250919)"
        prompt: Any = site.llm.asked[0].prompt
    assert [turn.more["reasoning"] for turn in prompt if "reasoning" in turn.more] == kept


async def test_a_keep_that_is_neither_is_refused_by_name(serving: Serving) -> None:
    edits = [{"type": "clear_thinking_20251015", "keep": {"type": "turns"}}]
    async with serving() as site:
        asked = {"max_tokens": 3, "messages": [{"role": "user", "content": "x"}]}
        answer = await post(site, "/v1/messages", context_management={"edits": edits}, **asked)
    assert answer.status_code == 400 and "context_management" in answer.text


async def test_a_last_message_of_the_assistants_is_gone_on_with(serving: Serving) -> None:
    """But not behind its calls, and not behind nothing."""
    asks = [{"role": "user", "content": "Count"}]
    call = [{"type": "tool_use", "id": "t1", "name": "run", "input": {}}]
    async with serving(answers=ANSWERS) as site:
        for content, goes_on in (("One, two,", True), (call, False), (" ", False)):
            messages = [*asks, {"role": "assistant", "content": content}]
            assert (await post(site, "/v1/messages", max_tokens=3, messages=messages)).status_code == 200
            reading = site.llm.asked[-1].reading
            assert (reading.continue_final_message, reading.add_generation_prompt) == (goes_on, not goes_on)


async def test_a_note_of_the_system_behind_an_answer_does_not_make_it_be_gone_on_with(
    serving: Serving,
) -> None:
    """The note joins the first message, and the answer before it is a turn that has ended."""
    turns = [{"role": "user", "content": "Count"}, {"role": "assistant", "content": "One."}]
    async with serving(answers=ANSWERS) as site:
        body = {"max_tokens": 3, "messages": [*turns, {"role": "system", "content": "Be brief."}]}
        assert (await post(site, "/v1/messages", **body)).status_code == 200
        assert not site.llm.asked[-1].reading.continue_final_message


async def test_a_form_beside_tools_binds_the_answer_that_calls_nothing(serving: Serving) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object"}}}
    function = {"type": "function", "function": {"name": "run"}}
    async with serving(answers=ANSWERS) as site:
        asked = {"messages": [{"role": "user", "content": "x"}], "response_format": form}
        assert (await post(site, "/v1/chat/completions", tools=[function], **asked)).status_code == 200
        assert (await post(site, "/v1/chat/completions", **asked)).status_code == 200
        kinds = [each.sampling.constraint.kind.value for each in site.llm.asked]  # type: ignore[union-attr]
    assert kinds == ["calls_or_json", "json"]
