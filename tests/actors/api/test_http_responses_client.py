"""OpenAI's client library against /v1/responses."""

from typing import Any

import openai
import pytest
import trio

from sundog.actors.messages import ChatMessage
from tests.actors.api.test_http_openai_client import MODEL, with_client

pytestmark = pytest.mark.wall_clock


async def test_a_response_is_answered_whole(serving: Any) -> None:
    """Its text, its usage, what it repeats of its request; its limit makes it incomplete."""
    async with serving() as site:

        def use(client: openai.OpenAI) -> Any:
            create = client.responses.create
            return (
                create(model=MODEL, input="hello", instructions="be brief", metadata={"a": "b"}),
                create(model=MODEL, input=[{"role": "user", "content": "hello"}], max_output_tokens=3),
            )

        whole, cut = await with_client(site, use)
        asked = site.llm.asked
    assert asked[0].prompt == (ChatMessage("system", "be brief"), ChatMessage("user", "hello"))
    assert whole.id.startswith("resp_") and whole.status == "completed" and whole.error is None
    assert whole.output_text == "w0 w1 w2 w3 w4 w5 w6 w7 " and whole.metadata == {"a": "b"}
    assert (whole.usage.output_tokens, whole.usage.input_tokens_details.cached_tokens) == (8, 2)
    assert cut.status == "incomplete" and cut.incomplete_details.reason == "max_output_tokens"
    assert cut.output_text == "w0 w1 w2 " and cut.max_output_tokens == 3


@pytest.mark.long(reason="starts a server, and asks it over sockets", moderate=True)
async def test_a_response_is_streamed(serving: Any) -> None:
    """Numbered events, which the client's own reader puts together to the whole one."""
    async with serving() as site:

        def use(client: openai.OpenAI) -> Any:
            with client.responses.stream(model=MODEL, input="hello") as stream:
                return list(stream), stream.get_final_response()

        events, final = await with_client(site, use)
    assert events[0].sequence_number == 0
    kinds = list(dict.fromkeys(event.type for event in events))
    assert kinds == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.delta",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]
    assert final.output_text == "w0 w1 w2 w3 w4 w5 w6 w7 " and final.usage.output_tokens == 8


async def test_a_conversation_goes_on_from_a_response(serving: Any) -> None:
    """What was said before comes before the new question; what is not kept is a 404."""
    async with serving() as site:

        def use(client: openai.OpenAI) -> Any:
            first = client.responses.create(model=MODEL, input="one", max_output_tokens=2)
            again = client.responses.retrieve(first.id)
            client.responses.create(model=MODEL, input="two", previous_response_id=first.id)
            unkept = client.responses.create(model=MODEL, input="three", store=False)
            client.responses.delete(first.id)
            errors = []
            for name in (first.id, unkept.id, "resp_none"):
                with pytest.raises(openai.NotFoundError) as caught:
                    client.responses.create(model=MODEL, input="x", previous_response_id=name)
                errors.append(caught.value.param)
            return first, again, errors

        first, again, errors = await with_client(site, use)
        turns = [(turn.role, turn.content) for turn in site.llm.asked[1].prompt]
    assert again == first and errors == ["previous_response_id"] * 3
    assert turns == [("user", "one"), ("assistant", "w0 w1 "), ("user", "two")]


async def test_a_response_can_be_cancelled(serving: Any) -> None:
    """While it comes; what is over cannot."""
    async with serving() as site:
        site.llm.may_finish = trio.Event()

        def use(client: openai.OpenAI) -> Any:
            stream = client.responses.create(model=MODEL, input="hello", stream=True)
            created: Any = next(iter(stream))
            cancelled = client.responses.cancel(created.response.id)
            with pytest.raises(openai.BadRequestError, match="cannot be cancelled"):
                client.responses.cancel(created.response.id)
            return cancelled

        cancelled = await with_client(site, use)
        assert cancelled.status == "cancelled"
        await site.llm.until(lambda llm: len(llm.cancelled) >= 1)
        site.llm.may_finish.set()


async def test_calls_and_their_results_are_items(serving: Any) -> None:
    """As the client sends them back."""
    items: Any = [
        {"role": "user", "content": [{"type": "input_text", "text": "weather?"}]},
        {"type": "reasoning", "id": "rs_1", "summary": []},
        {"type": "function_call", "call_id": "c1", "name": "weather", "arguments": '{"town": "Rome"}'},
        {"type": "function_call_output", "call_id": "c1", "output": "sunny"},
    ]
    tools: Any = [{"type": "function", "name": "weather", "parameters": {"type": "object", "properties": {}}}]
    async with serving() as site:
        await with_client(
            site,
            lambda client: client.responses.create(model=MODEL, input=items, tools=tools, tool_choice="none"),
        )
        turns = site.llm.asked[0].prompt
    assert [(turn.role, turn.content) for turn in turns] == [
        ("user", "weather?"),
        ("assistant", ""),
        ("tool", "sunny"),
    ]
    assert turns[1].more["tool_calls"][0]["function"]["arguments"] == {"town": "Rome"}


@pytest.mark.long(keep=1, reason="more cases of the law whose first `make test` runs", moderate=True)
@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"background": True}, "background"),
        ({"include": ["thoughts"]}, "body.include.0"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"text": {"verbosity": "lower"}}, "body.text.verbosity"),
        ({"extra_body": {"seed": "seven"}}, "body.seed"),
        ({"extra_body": {"kv_transfer_params": {}}}, "kv_transfer_params"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]},
            "input[0].content[0]",
        ),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0]"),
        ({"tools": [{"type": "websearch"}]}, "tools[0]"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"text": {"format": {"type": "json_schema", "name": "x"}}}, "text.format.schema"),
        ({"truncation": "left"}, "body.truncation"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_what_cannot_be_honoured_is_refused_by_name(serving: Any, fields: Any, param: str) -> None:
    """Nothing reaches the engine."""
    async with serving() as site:
        with pytest.raises(openai.BadRequestError) as caught:
            await with_client(
                site, lambda client: client.responses.create(**{"model": MODEL, "input": "x"} | fields)
            )
        assert not site.llm.asked
    assert caught.value.param == param
