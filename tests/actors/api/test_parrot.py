"""Streamed and whole answers are equal for any text, through all three APIs.

The parrot is a graph on the virtual clock; its backend's tokens are the bytes of a script that the prompt
names. Scripts are random: text with partial marks, reasoning, valid and malformed tool calls, cut by
`max_tokens`, by stop strings, or not at all.
"""

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
import trio

from sundog.actors.api import ServedModel, create_app
from sundog.actors.api.context import AnswerFormats
from sundog.actors.core.batch import Batch
from sundog.actors.front.codec import Vocabulary
from sundog.actors.graph import open_graph
from sundog.actors.messages import PLAIN_READING, ChatMessage, Reading
from tests.actors.fakes import EOS, Bytes, FakeBackend, engine_config

MODEL = ServedModel("parrot", max_model_len=4096, created=1_700_000_000)
TOOLS = ("look", "run_it")
PIECES = (
    *("a", "so ", "The fox", ".", "\n", "\n\n", " ", "é", "猫", "🦊", '"', "{", "}", "\\", "<", "</", "<t"),
    *("<tool", "<tool_call", "</tool_call>", "<think", "</think", "think>", '{"name": ', "[1]", "null"),
)
ARGUMENTS = ({}, {"a": 1}, {"q": 'x }" y', "n": [1, {"c": None}]}, {"ü": "</tool_call>"}, {"long": "z" * 40})


class Parrot(FakeBackend):
    """Says the script whose number the prompt's last line has."""

    def __init__(self, scripts: Sequence[str]) -> None:
        super().__init__({}, num_blocks=4096)
        self.scripts = scripts

    def _fold(self, batch: Batch) -> list[str]:
        for admission in batch.admitted:
            said = bytes(admission.token_ids or ())[: admission.num_prompt_tokens].decode()
            script = self.scripts[int(said.rpartition("#")[2])].encode()
            self.outputs = {**self.outputs, admission.request_id: [*script, EOS]}
        return super()._fold(batch)


class Turns(Bytes):
    """A tokenizer whose chat template is the last message."""

    def encode_chat(
        self,
        messages: Sequence[ChatMessage],
        most_tokens: int | None = None,
        reading: Reading = PLAIN_READING,
    ) -> list[int]:
        return self.encode(messages[-1].content, most_tokens)


@dataclass(frozen=True)
class Script:
    """A text to say, and how it is asked for."""

    text: str
    max_tokens: int
    stop: tuple[str, ...] = ()
    parallel: bool = True


def text_of(rng: random.Random) -> str:
    return "".join(rng.choices(PIECES, k=rng.randint(0, 8)))


def call_of(rng: random.Random) -> str:
    """A call as Hermes' models write it; one of four is not what it should be."""
    arguments: Any = rng.choice(ARGUMENTS)
    if rng.random() < 0.2:
        arguments = json.dumps(arguments)
    call = json.dumps({"name": rng.choice(TOOLS), "arguments": arguments}, ensure_ascii=False)
    if rng.random() < 0.25:
        at = rng.randint(0, len(call))
        call = call[:at] if rng.random() < 0.5 else call[:at] + rng.choice(PIECES) + call[at:]
    gap = rng.choice(("\n", "", " "))
    end = "" if rng.random() < 0.1 else "</tool_call>"
    return f"<tool_call>{gap}{call}{gap}{end}"


def script_of(seed: int) -> Script:
    rng = random.Random(seed)
    parts = []
    if rng.random() < 0.4:
        begin, end = rng.choice(("<think>", "<think>\n", "")), rng.choice(("</think>", "\n</think>\n\n", ""))
        parts.append(begin + text_of(rng) + end)
    for _ in range(rng.randint(1, 4)):
        parts.append(text_of(rng) if rng.random() < 0.5 else call_of(rng))
    text = "".join(parts) or "."
    num_tokens = len(text.encode())
    most = rng.randint(1, num_tokens + 1) if rng.random() < 0.3 else num_tokens + 8
    stop: list[str] = []
    if rng.random() < 0.3:
        at = rng.randrange(len(text))
        stop.append(text[at : at + rng.randint(1, 6)])
    return Script(text, most, tuple(stop), parallel=rng.random() < 0.8)


def events(body: str) -> list[Any]:
    lines = [line[6:] for line in body.split("\n") if line.startswith("data: ")]
    return [json.loads(line) for line in lines if line != "[DONE]"]


def chat_body(script: Script, prompt: str) -> dict[str, Any]:
    tools = [{"type": "function", "function": {"name": name, "parameters": {}}} for name in TOOLS]
    messages = [{"role": "user", "content": prompt}]
    return {
        "messages": messages,
        "tools": tools,
        "max_tokens": script.max_tokens,
        "stop": list(script.stop),
    } | {"parallel_tool_calls": script.parallel}


def told(usage: dict[str, Any]) -> dict[str, Any]:
    """What a usage says; a stream leaves out fields that are null, as vLLM's does."""
    return {key: value for key, value in usage.items() if value is not None}


def chat_whole(answer: Any) -> Any:
    (choice,) = answer["choices"]
    message = choice["message"]
    calls = [
        (each["function"]["name"], each["function"]["arguments"]) for each in message.get("tool_calls") or ()
    ]
    said = message.get("reasoning_content") or message.get("reasoning") or "", message["content"] or "", calls
    return said, choice["finish_reason"], choice.get("stop_reason"), told(answer["usage"])


def chat_streamed(chunks: list[Any]) -> Any:
    reasoning, content, finish, stop_reason, usage = "", "", None, None, {}
    calls: list[list[str]] = []
    for chunk in chunks:
        assert "error" not in chunk, chunk
        usage = chunk.get("usage") or usage
        for choice in chunk["choices"]:
            assert finish is None, "an event behind the last"
            delta = choice["delta"]
            reasoning += delta.get("reasoning_content") or delta.get("reasoning") or ""
            content += delta.get("content") or ""
            for part in delta.get("tool_calls") or ():
                function = part["function"]
                if part["index"] == len(calls):
                    assert part["id"] and function["name"]
                    calls.append([function["name"], ""])
                assert part["index"] == len(calls) - 1
                calls[-1][1] += function.get("arguments") or ""
            finish, stop_reason = choice["finish_reason"], choice.get("stop_reason")
    return (reasoning, content, [tuple(each) for each in calls]), finish, stop_reason, told(usage)


def response_body(script: Script, prompt: str) -> dict[str, Any]:
    tools = [{"type": "function", "name": name, "parameters": {}} for name in TOOLS]
    own = {"max_output_tokens": script.max_tokens, "parallel_tool_calls": script.parallel}
    return {"input": prompt, "tools": tools, **own}


def items_of(response: Any) -> Any:
    """The items without their ids, with how the response ended."""
    items = []
    for item in response["output"]:
        kept = {key: value for key, value in item.items() if key not in ("id", "call_id")}
        items.append(kept)
    return items, response["status"], response["incomplete_details"], response["usage"]


def response_streamed(sent: list[Any]) -> Any:
    """The last event's response, whose texts are those of the deltas before it."""
    assert [each["sequence_number"] for each in sent] == list(range(len(sent)))
    deltas: dict[int, str] = {}
    for event in sent:
        if event["type"].endswith(".delta"):
            deltas[event["output_index"]] = deltas.get(event["output_index"], "") + event["delta"]
    last = sent[-1]["response"]
    for index, item in enumerate(last["output"]):
        parts = item.get("content") or item.get("summary") or ()
        told = item["arguments"] if item["type"] == "function_call" else "".join(p["text"] for p in parts)
        assert deltas.pop(index, "") == told, item
    assert not deltas
    return items_of(last)


def message_body(script: Script, prompt: str) -> dict[str, Any]:
    tools = [{"name": name, "input_schema": {"type": "object"}} for name in TOOLS]
    messages = [{"role": "user", "content": prompt}]
    own: dict[str, Any] = {"max_tokens": script.max_tokens, "stop_sequences": list(script.stop)}
    if not script.parallel:
        own["tool_choice"] = {"type": "auto", "disable_parallel_tool_use": True}
    return {"model": "parrot", "messages": messages, "tools": tools, **own}


def object_of(arguments: str) -> Any:
    """The input of a call: what has no end is no object, and a message that is whole has an empty one."""
    try:
        value = json.loads(arguments or "{}")
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def message_whole(message: Any) -> Any:
    blocks = [
        {key: value for key, value in block.items() if key not in ("id", "signature")}
        for block in message["content"]
    ]
    return blocks, message["stop_reason"], message["stop_sequence"], message["usage"]["output_tokens"]


def message_streamed(sent: list[Any]) -> Any:
    blocks: list[dict[str, Any]] = []
    texts: list[str] = []
    ended: Any = None
    for event in sent:
        match event["type"]:
            case "content_block_start":
                assert event["index"] == len(blocks)
                blocks.append(dict(event["content_block"]))
                texts.append("")
            case "content_block_delta":
                assert event["index"] == len(blocks) - 1
                delta = event["delta"]
                texts[-1] += delta.get("text") or delta.get("thinking") or delta.get("partial_json") or ""
            case "message_delta":
                ended = event
            case "error":
                raise AssertionError(event)
    kept = []
    for block, text in zip(blocks, texts, strict=True):
        block = {key: value for key, value in block.items() if key not in ("id", "signature")}
        match block["type"]:
            case "tool_use":
                block["input"] = object_of(text)
            case kind:
                block[kind] = text
        kept.append(block)
    return (
        kept,
        ended["delta"]["stop_reason"],
        ended["delta"]["stop_sequence"],
        ended["usage"]["output_tokens"],
    )


APIS = {
    "/v1/chat/completions": (chat_body, chat_whole, chat_streamed),
    "/v1/responses": (response_body, items_of, response_streamed),
    "/v1/messages": (message_body, message_whole, message_streamed),
}


Answers = dict[tuple[int, str], Any]
"""By number of the script and path: its answer, whole and streamed, or the error in the place of both."""


async def say(scripts: Sequence[Script], formats: AnswerFormats) -> Answers:
    """Ask for every script six times."""
    answers: Answers = {}
    limits = {"max_model_len": 4096, "max_num_batched_tokens": 4096, "max_num_seqs": 256}
    config = engine_config(enable_prefix_caching=False, **limits)
    graph = open_graph(
        config,
        [Parrot([script.text for script in scripts])],
        codec=Turns(),
        vocabulary=Vocabulary(eos_token_id=EOS, size=256),
    )
    async with graph as llm:
        app = create_app(llm, MODEL, codec=Turns(), answers=formats)  # type: ignore[arg-type]
        transport = httpx.ASGITransport(app)  # type: ignore[arg-type]
        async with httpx.AsyncClient(transport=transport, base_url="http://parrot") as client:
            limit = trio.CapacityLimiter(16)

            async def ask(number: int, path: str) -> None:
                script, (body_of, whole_of, streamed_of) = scripts[number], APIS[path]
                body = body_of(script, f"say #{number}") | {"temperature": 0}
                options = {"stream_options": {"include_usage": True}} if "chat" in path else {}
                async with limit:
                    whole = await client.post(path, json=body)
                    streamed = await client.post(path, json=body | {"stream": True} | options)
                try:
                    assert whole.status_code == streamed.status_code == 200, whole.text
                    pair = whole_of(whole.json()), streamed_of(events(streamed.text))
                    answers[number, path] = pair
                except (AssertionError, LookupError, ValueError, TypeError) as error:
                    answers[number, path] = error

            async with trio.open_nursery() as nursery:
                for number in range(len(scripts)):
                    for path in APIS:
                        nursery.start_soon(ask, number, path)
    return answers


FORMATS = (
    AnswerFormats("hermes", auto_tools=True),
    AnswerFormats("hermes", auto_tools=True, reasoning_parser="qwen3"),
    AnswerFormats("hermes", auto_tools=True, reasoning_parser="deepseek_r1"),
)


async def say_all(first: int, count: int) -> None:
    """Each third of the scripts is said by a model that writes its reasoning in another way, or none."""
    wrong: list[str] = []
    for number, formats in enumerate(FORMATS):
        scripts = [script_of(seed) for seed in range(first + number, first + count, 3)]
        for (at, path), told in (await say(scripts, formats)).items():
            if isinstance(told, Exception) or told[0] != told[1]:
                wrong.append(f"{path} {scripts[at]}\n{told}")
    assert not wrong, f"{len(wrong)} differ, the first:\n" + "\n".join(wrong[:5])


async def test_any_answer_is_the_same_whole_and_streamed() -> None:
    """A hundred scripts through chat, responses and messages."""
    await say_all(0, 100)


LOOK = '<tool_call>{"name": "look", "arguments": {"a": "Paris"}}</tool_call>'
RUN = '<tool_call>{"name": "run_it", "arguments": {"b": "Rome"}}</tool_call>'


@pytest.mark.parametrize(
    ("stop", "parallel", "calls", "finish"),
    [
        ((), True, [("look", '{"a": "Paris"}'), ("run_it", '{"b": "Rome"}')], "tool_calls"),
        ((), False, [("look", '{"a": "Paris"}')], "tool_calls"),
        (("Rome",), True, [("look", '{"a": "Paris"}'), ("run_it", '{"b": "')], "stop"),
        (("Rome",), False, [("look", '{"a": "Paris"}')], "tool_calls"),
        (("Paris",), False, [("look", '{"a": "')], "stop"),
        (("</tool_call>",), True, [("look", '{"a": "Paris"}')], "tool_calls"),
        (("look",), True, [], "stop"),
    ],
)
async def test_an_answer_ends_as_a_call_if_the_last_that_is_shown_is_whole(
    stop: tuple[str, ...], parallel: bool, calls: list[tuple[str, str]], finish: str
) -> None:
    """What a stop string cuts off a second call is no matter where one call is asked for."""
    script = Script(f"So. {LOOK}\n{RUN}", 400, stop, parallel)
    answers = await say([script], FORMATS[0])
    for said, finish_reason, *_ in answers[0, "/v1/chat/completions"]:
        assert (said[2], finish_reason) == (calls, finish)
    for _, stop_reason, *_ in answers[0, "/v1/messages"]:
        assert stop_reason == ("stop_sequence" if stop else "tool_use")


@pytest.mark.long(reason="more scripts of the law whose first hundred `make test` says")
@pytest.mark.parametrize("first", range(100, 2100, 200))
async def test_many_answers_are_the_same_whole_and_streamed(first: int) -> None:
    """Two thousand in all."""
    await say_all(first, 200)
