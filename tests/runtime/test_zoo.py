"""Tokenizer folders with chat templates of the kinds that models have, used through all three APIs.

The templates are our own words, with the habits of the kinds that they are called after. The graph behind the
app is real and its tokenizer the folder's; a fake backend keeps each prompt and says a scripted answer.
"""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from sundog.actors.api import ServedModel, create_app
from sundog.actors.api.context import AnswerFormats
from sundog.actors.core.batch import Batch
from sundog.actors.front.codec import Vocabulary
from sundog.actors.graph import open_graph
from sundog.runtime.serve import EMBEDDED_MODEL
from sundog.runtime.text.tokenizer import Tokenizer
from tests.actors.fakes import FakeBackend, engine_config

pytestmark = pytest.mark.wall_clock  # what counts works in threads
BOS, END = 1, 2
MODEL = ServedModel("zoo", max_model_len=2048, created=1_700_000_000)
TOLD = "{% for t in tools or [] %}TOOL {{ t | tojson }}\n{% endfor %}"
STRICT = (
    "{% for m in messages %}{% if m.role == 'system' and not loop.first %}"
    "{{ raise_exception('System message must be at the beginning.') }}{% endif %}{% endfor %}"
)
ASSISTANT = "{% if add_generation_prompt %}<|assistant|>{% endif %}"
HERMES = (
    TOLD + "{% for m in messages %}<|user|>{{ m.role }}\n{{ m.content or '' }}"
    "{% for c in m.tool_calls or [] %}"
    '<tool_call>{"name": "{{ c.function.name }}", "arguments": '
    "{{ c.function.arguments | tojson }}}</tool_call>"
    "{% endfor %}<|end|>{% endfor %}" + ASSISTANT
)
MISTRAL = (
    "{{ bos_token }}{% for m in messages %}{% if m.role == 'user' %}[INST] {{ m.content }} [/INST]"
    "{% elif m.role == 'system' %}[SYS]{{ m.content }}{% elif m.role == 'tool' %}"
    "{% if m.tool_call_id | length != 9 %}{{ raise_exception('ids have nine characters') }}{% endif %}"
    "[TOOL_RESULTS]{{ m.tool_call_id }} {{ m.content }}{% else %}{{ m.content or '' }}"
    "{% for c in m.tool_calls or [] %}{% if c.id | length != 9 %}{{ raise_exception('nine') }}{% endif %}"
    "[TOOL_CALLS]{{ c.function.name }}{{ c.function.arguments | tojson }}{% endfor %}<|end|>{% endif %}"
    "{% endfor %}" + TOLD
)
LLAMA = (
    "{{ bos_token }}{% for m in messages %}<|user|>{{ m['role'] }}\n\n{% if m.tool_calls %}"
    "{% if m.tool_calls | length != 1 %}{{ raise_exception('one call at a time') }}{% endif %}"
    '<|python_tag|>{"name": "{{ m.tool_calls[0].function.name }}", '
    '"parameters": {{ m.tool_calls[0].function.arguments | tojson }}}'
    "{% else %}{{ m['content'] | trim }}{% endif %}<|end|>{% endfor %}" + TOLD + ASSISTANT
)
GRANITE = (
    TOLD + "{% for m in messages %}<|user|>{{ m.role }}: {% if m.tool_calls %}"
    "{% for c in m.tool_calls %}<tool_call>"
    "{{ c.function.name }} {% for k, v in c.function.arguments.items() %}{{ k }}={{ v }} "
    "{% endfor %}{% endfor %}"
    "{% endif %}{{ m.content or '' }}<|end|>\n{% endfor %}" + ASSISTANT
)
GPT_OSS = (
    "{% for m in messages %}{% if m.role in ('system', 'developer') %}<|system|>developer\n"
    "{{ m.content }}<|end|>"
    "{% elif m.role == 'tool' %}<|user|>result to assistant {{ m.content | tojson }}<|end|>{% else %}"
    "<|user|>{{ m.role }} channel final {{ m.content or '' }}{% for c in m.tool_calls or [] %} commentary to="
    "functions.{{ c.function.name }} {{ c.function.arguments | tojson }}{% endfor %}<|end|>{% endif %}"
    "{% endfor %}" + TOLD + ASSISTANT
)
PARTS = (
    TOLD + STRICT + "{% for m in messages %}<|user|>{{ m.role }}\n{% if m.content is string %}{{ m.content }}"
    "{% else %}{% for part in m.content or [] %}{{ part.text }}{% endfor %}{% endif %}"
    "{% for c in m.tool_calls or [] %}<tool_call>{{ c.function.name }}"
    "{% for k, v in c.function.arguments | items %}"
    "{{ k }}={{ v }}{% endfor %}</tool_call>{% endfor %}<|end|>{% endfor %}" + ASSISTANT
)
NAMED = [
    {"name": "default", "template": "{{ messages[-1].content }}" + ASSISTANT},
    {"name": "tool_use", "template": HERMES},
]
ZOO: dict[str, Any] = {
    "hermes": HERMES,
    "strict system": STRICT + HERMES,
    "named": NAMED,
    "bos twice": "{{ bos_token }}" + HERMES,
    "mistral": MISTRAL,
    "llama 3": LLAMA,
    "granite": GRANITE,
    "qwen3.5": PARTS,
    "gpt-oss": GPT_OSS,
}
CALL = '<tool_call>{"name": "weather", "arguments": {"town": "Paris"}}</tool_call>'
SCHEMA = {"type": "object", "properties": {"town": {"type": "string"}}}


class Keeper(FakeBackend):
    """Keeps the prompts, and says a call where one is offered in the first turn, else `Fine.`"""

    def __init__(self, tokenizer: Tokenizer) -> None:
        super().__init__({}, num_blocks=2048)
        self.tokenizer, self.prompts = tokenizer, list[tuple[int, ...]]()

    def _fold(self, batch: Batch) -> list[str]:
        for admission in batch.admitted:
            prompt = (admission.token_ids or ())[: admission.num_prompt_tokens]
            self.prompts.append(prompt)
            text = self.tokenizer.decode(prompt, skip_special_tokens=False)
            says = CALL if "weather" in text and "Sunny" not in text else "Fine."
            said = [*self.tokenizer.encode_plain(says), END]
            self.outputs = {**self.outputs, admission.request_id: said}
        return super()._fold(batch)


@pytest.fixture(autouse=True)
def fast_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.actors.fakes.step_s", lambda batch: 0.0001)


@dataclass
class Cage:
    client: httpx.AsyncClient
    backend: Keeper

    async def post(self, path: str, status: int = 200, **body: Any) -> Any:
        answer = await self.client.post(
            path, json={"temperature": 0, **body} if "count" not in path else body
        )
        assert answer.status_code == status, answer.text
        return answer.json()

    @property
    def prompt(self) -> str:
        """The last prompt, with its special tokens, of which BOS is at most one."""
        assert self.backend.prompts[-1].count(BOS) <= 1
        return self.backend.tokenizer.decode(self.backend.prompts[-1], skip_special_tokens=False)


@asynccontextmanager
async def cage(folder: Path, template: object) -> AsyncIterator[Cage]:
    (folder / "tokenizer.json").write_bytes((EMBEDDED_MODEL / "tokenizer.json").read_bytes())
    own = {"bos_token": "<|bos|>", "eos_token": "<|end|>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(own | {"chat_template": template}))
    tokenizer = Tokenizer(folder)
    backend, limits = Keeper(tokenizer), {"max_model_len": 2048, "max_num_batched_tokens": 4096}
    config = engine_config(enable_prefix_caching=False, **limits)
    vocabulary = Vocabulary(eos_token_id=END, size=tokenizer.vocab_size)
    async with open_graph(config, [backend], codec=tokenizer, vocabulary=vocabulary) as llm:
        formats = AnswerFormats("hermes", auto_tools=True)
        app = create_app(llm, MODEL, codec=tokenizer, answers=formats)  # type: ignore[arg-type]
        transport = httpx.ASGITransport(app)  # type: ignore[arg-type]
        async with httpx.AsyncClient(transport=transport, base_url="http://zoo") as client:
            yield Cage(client, backend)


SYSTEM, ASKS, RESULT = "Be brief.", "How is the weather?", "Sunny, 21 degrees"
kinds = pytest.mark.parametrize("kind", ZOO)


@kinds
async def test_chat_goes_through_a_tool_and_is_gone_on_with(kind: str, tmp_path: Path) -> None:
    """The call and the result, as the server gave and was given them, are in the prompt; counts agree."""
    tools = [{"type": "function", "function": {"name": "weather", "parameters": SCHEMA}}]
    turns: list[Any] = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": ASKS}]
    async with cage(tmp_path, ZOO[kind]) as zoo:
        answer = await zoo.post("/v1/chat/completions", messages=turns, tools=tools)
        assert "weather" in zoo.prompt and ASKS in zoo.prompt and SYSTEM in zoo.prompt
        message = answer["choices"][0]["message"]
        (call,) = message["tool_calls"]
        turns += [message, {"role": "tool", "tool_call_id": call["id"], "content": RESULT}]
        answer = await zoo.post("/v1/chat/completions", messages=turns, tools=tools)
        assert answer["choices"][0]["message"]["content"] == "Fine."
        assert "Paris" in zoo.prompt and RESULT in zoo.prompt
        counted = await zoo.post("/tokenize", messages=turns, tools=tools)
        assert counted["count"] == answer["usage"]["prompt_tokens"] == len(zoo.backend.prompts[-1])
        begun = [{"role": "user", "content": "Say so."}, {"role": "assistant", "content": "So it"}]
        own = {"continue_final_message": True, "add_generation_prompt": False}
        await zoo.post("/v1/chat/completions", messages=begun, **own)
        assert zoo.prompt.endswith("So it")


@kinds
async def test_responses_go_through_a_tool(kind: str, tmp_path: Path) -> None:
    """With instructions and a system's turn beside them, which are one where a template wants one."""
    tools = [{"type": "function", "name": "weather", "parameters": SCHEMA}]
    items: list[Any] = [{"role": "system", "content": "In English."}, {"role": "user", "content": ASKS}]
    own = {"instructions": SYSTEM, "tools": tools}
    async with cage(tmp_path, ZOO[kind]) as zoo:
        answer = await zoo.post("/v1/responses", input=items, **own)
        assert "weather" in zoo.prompt and SYSTEM in zoo.prompt and "In English." in zoo.prompt
        (call,) = answer["output"]
        items += [call, {"type": "function_call_output", "call_id": call["call_id"], "output": RESULT}]
        answer = await zoo.post("/v1/responses", input=items, **own)
        assert answer["output"][0]["content"][0]["text"] == "Fine."
        assert "Paris" in zoo.prompt and RESULT in zoo.prompt
        counted = await zoo.post("/v1/responses/input_tokens", input=items, **own)
        assert counted["input_tokens"] == answer["usage"]["input_tokens"]


@kinds
async def test_messages_go_through_a_tool_and_are_gone_on_with(kind: str, tmp_path: Path) -> None:
    """A system's turn comes behind the first, as Claude Code sends one."""
    own = {"model": "zoo", "system": SYSTEM, "tools": [{"name": "weather", "input_schema": SCHEMA}]}
    turns: list[Any] = [{"role": "user", "content": ASKS}]
    async with cage(tmp_path, ZOO[kind]) as zoo:
        answer = await zoo.post("/v1/messages", messages=turns, max_tokens=99, **own)
        assert answer["stop_reason"] == "tool_use" and "weather" in zoo.prompt and SYSTEM in zoo.prompt
        (call,) = answer["content"]
        result = {"type": "tool_result", "tool_use_id": call["id"], "content": RESULT}
        turns += [{"role": "assistant", "content": [call]}, {"role": "user", "content": [result]}]
        turns.append({"role": "system", "content": "Hurry."})
        answer = await zoo.post("/v1/messages", messages=turns, max_tokens=99, **own)
        assert answer["content"] == [{"type": "text", "text": "Fine."}]
        assert "Paris" in zoo.prompt and RESULT in zoo.prompt and "Hurry." in zoo.prompt
        counted = await zoo.post("/v1/messages/count_tokens", messages=turns, **own)
        assert counted["input_tokens"] == answer["usage"]["input_tokens"]
        begun = [{"role": "user", "content": "Say so."}, {"role": "assistant", "content": "So it"}]
        await zoo.post("/v1/messages", messages=begun, max_tokens=9, model="zoo")
        assert zoo.prompt.endswith("So it")


async def test_without_a_template_chats_are_refused_and_prompts_are_not(tmp_path: Path) -> None:
    """By all three, and by what counts, with a 400."""
    hi: Any = [{"role": "user", "content": "hi"}]
    async with cage(tmp_path, None) as zoo:
        for path, body in (
            ("/v1/chat/completions", {"messages": hi}),
            ("/v1/responses", {"input": hi}),
            ("/v1/responses/input_tokens", {"input": hi}),
            ("/v1/messages", {"messages": hi, "model": "zoo", "max_tokens": 9}),
            ("/v1/messages/count_tokens", {"messages": hi, "model": "zoo"}),
            ("/tokenize", {"messages": hi}),
        ):
            refused = await zoo.post(path, 400, **body)
            assert "chat template" in refused["error"]["message"], (path, refused)
        await zoo.post("/v1/completions", prompt="hi", max_tokens=9)
        assert zoo.backend.prompts[-1].count(BOS) == 1
