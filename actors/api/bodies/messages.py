"""Body of POST /v1/messages (Anthropic), and its conversion to a chat."""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Annotated, ClassVar, Literal

from pydantic import ConfigDict, Field, JsonValue, model_validator

from sundog.actors.api.bodies.chat import BILLING, with_one_system
from sundog.actors.api.bodies.parsing import (
    MAX_MESSAGES,
    MAX_PARTS,
    MAX_STOPS,
    WHOLE,
    Json,
    JsonObject,
    ModelName,
    Name,
    NumTokensFrom1,
    Probability,
    Stop,
    Temperature,
    TopK,
)
from sundog.actors.api.bodies.sampling import SHARED
from sundog.actors.api.bodies.structured import MAX_TOOLS
from sundog.actors.api.errors import invalid, shown
from sundog.actors.core.params.fields import INT32_MAX

BLOCKS_ELSEWHERE = (
    "server_tool_use",
    "web_search_tool_result",
    "web_fetch_tool_result",
    "code_execution_tool_result",
    "bash_code_execution_tool_result",
    "text_editor_code_execution_tool_result",
    "tool_search_tool_result",
    "mcp_tool_use",
    "mcp_tool_result",
)
"""Blocks of tools that another server ran in the conversation; they are left out."""
TOOL_ELSEWHERE = re.compile(r"[a-z_]+_20\d{6}|mcp_toolset")
"""Types of tools that Anthropic runs or trained its models on; they are left out of the prompt."""
NEEDED: dict[str, tuple[str, ...]] = {
    "text": ("text",),
    "tool_use": ("id", "name"),
    "tool_result": ("tool_use_id",),
    "thinking": (),
    "redacted_thinking": (),
    **dict.fromkeys(BLOCKS_ELSEWHERE, ()),
}
"""Text fields that each type of block must have."""


def _needed() -> list[JsonValue]:
    return [
        {
            "properties": {"type": {"const": kind}, **{name: {"type": "string"} for name in names}},
            "required": ["type", *names],
        }
        for kind, names in NEEDED.items()
    ]


class TextBlock(JsonObject):
    """Block of text; other types are refused by name."""

    model_config = ConfigDict(json_schema_extra={"required": ["type", "text"]})
    type: Annotated[Name, Field(json_schema_extra={"enum": ["text"]})]
    text: str | None = None


class ResultBlock(TextBlock):
    """Block of a tool's result: a text, or the name of a tool that a search found."""

    model_config = ConfigDict(json_schema_extra={"required": ["type"]})
    type: Annotated[Name, Field(json_schema_extra={"enum": ["text", "tool_reference"]})]
    tool_name: Name | None = None


class Block(TextBlock):
    """Block of content; its fields depend on its type."""

    model_config = ConfigDict(json_schema_extra={"required": ["type"], "oneOf": _needed()})
    type: Annotated[Name, Field(json_schema_extra={"enum": [*NEEDED]})]
    thinking: str | None = None
    id: Name | None = None
    name: Name | None = None
    input: dict[str, object] | None = None
    tool_use_id: Name | None = None
    content: str | Annotated[list[ResultBlock], Field(max_length=MAX_PARTS)] | None = None
    """Content of a tool's result."""
    is_error: bool = False


Content = str | Annotated[list[Block], Field(max_length=MAX_PARTS)]


def text(content: str | list[ResultBlock], where: str) -> str:
    """Join a text or blocks with line ends; raises 400 for blocks that are not text."""
    if isinstance(content, str):
        return content
    return "\n".join(text_of(block, f"{where}[{index}]") for index, block in enumerate(content))


def instructions(system: str | list[TextBlock]) -> str:
    """Return the system prompt: its blocks joined as in vLLM.

    A billing block is left out: it differs in each request and would prevent prefix hits.
    """
    if isinstance(system, str):
        return system
    texts = [text_of(block, f"system[{index}]") for index, block in enumerate(system)]
    return "".join(text for text in texts if not text.startswith(BILLING))


def text_of(block: TextBlock, where: str) -> str:
    """Return a block's text; raises 400 for other types."""
    if block.type == "tool_reference" and isinstance(block, ResultBlock) and block.tool_name is not None:
        return block.tool_name
    if block.type != "text":
        raise invalid(f"{where} is of type {shown(block.type)}: only text is supported here.", where)
    if block.text is None:
        raise invalid(f"{where}.text is required.", f"{where}.text")
    return block.text


LEAST_BUDGET = 1024
BUDGET = "thinking.budget_tokens"


class Thinking(JsonObject):
    """Switch of the model's reasoning; `budget_tokens` is allowed only with the type `enabled`."""

    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: Annotated[int, Field(ge=LEAST_BUDGET, le=INT32_MAX), WHOLE] | None = None

    def budget(self, max_tokens: int) -> int | None:
        """Return the largest number of thinking tokens; None without a limit.

        Raises 400 if it leaves no room for the answer, is missing, or is not allowed.
        """
        budget = self.budget_tokens
        if self.type != "enabled":
            if budget is not None:
                raise invalid(f'{BUDGET} is only allowed with the type "enabled": leave it out.', BUDGET)
            return None
        if budget is None:
            raise invalid(f'{BUDGET} is required with the type "enabled".', BUDGET)
        if budget >= max_tokens:
            raise invalid(f"{BUDGET} is {budget}: it must be less than max_tokens ({max_tokens}).", BUDGET)
        return budget


class Turn(JsonObject):
    """Turn of the conversation: text or blocks."""

    role: Literal["user", "assistant", "system", "ctx", "msg"]
    """Role of the turn; `ctx` and `msg` are Claude Code's names for user messages."""
    content: Content


class Tool(JsonObject):
    """Function that the model may call, or one of Anthropic's own tools, which is left out."""

    name: Name
    description: str | None = None
    input_schema: dict[str, object] | None = None
    type: Name = "custom"


class Choice(JsonObject):
    """Tool choice: none, any, one by name, or auto."""

    type: Literal["auto", "any", "tool", "none"]
    name: Name | None = None
    disable_parallel_tool_use: bool = False


class OutputFormat(JsonObject):
    """Format of the answer's text."""

    type: Literal["json_schema"]
    schema_: dict[str, object] = Field(alias="schema")


class OutputConfig(JsonObject):
    """Effort of the model's reasoning, and the format of its answer."""

    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    format: OutputFormat | None = None


CLEARS_THINKING = "clear_thinking_20251015"


class KeptThinking(JsonObject):
    """Number of last turns whose thinking is kept."""

    type: Literal["thinking_turns", "all"]
    value: Annotated[int, Field(ge=0, le=INT32_MAX), WHOLE] | None = None


class ContextEdit(JsonObject):
    """Edit of a conversation that Anthropic's server makes before its model reads it."""

    type: Name
    keep: Literal["all"] | KeptThinking | dict[str, object] | None = None

    @property
    def turns_kept(self) -> int | None:
        """Number of the assistant's last turns whose thinking stays; None if all does."""
        if self.type != CLEARS_THINKING or self.keep == "all":
            return None
        if self.keep is None:
            return 1
        return None if self.keep.type == "all" else self.keep.value or 0  # type: ignore[union-attr]  # checked below


class ContextManagement(JsonObject):
    """Edits of a conversation; clearing of thinking is supported, others are left out."""

    edits: Annotated[list[ContextEdit], Field(max_length=MAX_PARTS)] = Field(default=[])

    @model_validator(mode="after")
    def _known_keep(self) -> "ContextManagement":
        for index, edit in enumerate(self.edits):
            if edit.type == CLEARS_THINKING and isinstance(edit.keep, dict):
                raise ValueError(f'has edits[{index}].keep, which is neither "all" nor thinking_turns')
        return self


class PromptBody(JsonObject):
    """Body of POST /v1/messages/count_tokens: the prompt alone."""

    passed: ClassVar[frozenset[str]] = SHARED

    harmless: ClassVar[frozenset[str]] = frozenset(
        {"cache_control", "inference_geo", "metadata", "service_tier", "speed"}
    )

    unsupported: ClassVar[Mapping[str, tuple[object, ...]]] = {
        "container": (),
        "kv_transfer_params": (),
        "mcp_servers": ([],),
    }

    model: ModelName | None = None
    messages: Annotated[list[Turn], Field(min_length=1, max_length=MAX_MESSAGES)]
    system: str | Annotated[list[TextBlock], Field(max_length=MAX_PARTS)] | None = None
    tools: Annotated[list[Tool], Field(max_length=MAX_TOOLS)] = Field(default=[])
    tool_choice: Choice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    context_management: ContextManagement | None = None

    def prompt(self) -> Json:
        """Return messages and tools as those of a chat; raises 400 for blocks that are not text."""
        messages = with_one_system(list(self._messages()))
        chat = self.passed_on() | {"messages": messages}
        if self.messages[-1].role == "assistant" and _is_open(messages[-1]):  # the answer goes on with it
            chat |= {"add_generation_prompt": False, "continue_final_message": True}
        tools = [_tool(index, tool) for index, tool in enumerate(self.tools) if not _is_elsewhere(tool)]
        if tools:
            chat["tools"] = tools
        if self.tool_choice is not None and (tools or self.tool_choice.type != "auto"):
            chat |= _choice(self.tool_choice)
        if self.thinking is not None and self.thinking.type != "adaptive":
            thinks = {"enable_thinking": self.thinking.type == "enabled"}
            chat["chat_template_kwargs"] = thinks | (chat.get("chat_template_kwargs") or {})
        config = self.output_config or OutputConfig.model_construct()
        if config.format is not None:
            schema = {"name": "answer", "schema": config.format.schema_}
            chat["response_format"] = {"type": "json_schema", "json_schema": schema}
        return chat | ({} if config.effort is None else {"reasoning_effort": config.effort})

    def left_out(self) -> Iterator[str]:
        """Yield the names of parts that need Anthropic's own tools or server and are ignored."""
        for index, tool in enumerate(self.tools):
            if _is_elsewhere(tool):
                yield f"tools[{index}] ({tool.type})"
        for index, turn in enumerate(self.messages):
            for at, block in enumerate(turn.content if isinstance(turn.content, list) else ()):
                if block.type in BLOCKS_ELSEWHERE:
                    yield f"messages[{index}].content[{at}] ({block.type})"
        for index, edit in enumerate(self.context_management.edits if self.context_management else ()):
            if edit.type != CLEARS_THINKING:
                yield f"context_management.edits[{index}] ({edit.type})"

    def _messages(self) -> Iterator[Json]:
        if self.system:
            yield {"role": "system", "content": instructions(self.system)}
        first_thought = self._first_thinking_turn()
        for index, turn in enumerate(self.messages):
            where = f"messages[{index}].content"
            role = "user" if turn.role in ("ctx", "msg") else turn.role
            if isinstance(turn.content, str):
                yield {"role": role, "content": turn.content}
            elif role == "assistant":
                yield _answer(turn.content, where, shows_thoughts=index >= first_thought)
            else:
                yield from _question(role, turn.content, where)

    def _first_thinking_turn(self) -> int:
        edits = self.context_management.edits if self.context_management else ()
        kept = [edit.turns_kept for edit in edits if edit.turns_kept is not None]
        if not kept:
            return 0
        thinks = [
            index
            for index, turn in enumerate(self.messages)
            if isinstance(turn.content, list) and any(block.type == "thinking" for block in turn.content)
        ]
        return ([*thinks, len(self.messages)])[max(0, len(thinks) - min(kept))]


class MessagesBody(PromptBody):
    """Body of POST /v1/messages."""

    max_tokens: NumTokensFrom1
    stop_sequences: Annotated[list[Stop], Field(max_length=MAX_STOPS)] = Field(default=[])
    stream: bool = False
    temperature: Temperature | None = None
    top_k: TopK | None = None
    top_p: Probability | None = None

    def chat(self) -> Json:
        """Return the body of the equivalent chat completion."""
        chat = self.prompt() | {"max_tokens": self.max_tokens, "stop": self.stop_sequences}
        for name in ("model", "temperature", "top_k", "top_p"):
            if (value := getattr(self, name)) is not None:
                chat[name] = value
        if self.thinking is not None:
            chat["thinking_token_budget"] = self.thinking.budget(self.max_tokens)
        if self.stream:
            options = {"include_usage": True, "continuous_usage_stats": True}
            chat |= {"stream": True, "stream_options": options}
        return chat


def _answer(blocks: list[Block], where: str, shows_thoughts: bool) -> Json:
    """Return an assistant's turn with text, calls and reasoning, for templates that repeat it."""
    texts, calls, thoughts = [], [], []
    for index, block in enumerate(blocks):
        if block.type == "tool_use":
            if block.name is None or block.id is None:
                raise invalid(f"{where}[{index}] needs a name and an id.", f"{where}[{index}]")
            arguments = json.dumps(block.input or {})
            calls.append({"id": block.id, "function": {"name": block.name, "arguments": arguments}})
        elif block.type == "thinking":
            thoughts.append(block.thinking or "")
        elif block.type != "redacted_thinking" and block.type not in BLOCKS_ELSEWHERE:
            texts.append(text_of(block, f"{where}[{index}]"))
    message: Json = {"role": "assistant", "content": "\n".join(texts)}
    if shows_thoughts and any(thoughts):
        message["reasoning"] = "".join(thoughts)
    return message | ({"tool_calls": calls} if calls else {})


def _question(role: str, blocks: list[Block], where: str) -> Iterator[Json]:
    texts = []
    for index, block in enumerate(blocks):
        if block.type == "tool_result":
            if block.tool_use_id is None:
                raise invalid(f"{where}[{index}].tool_use_id is required.", f"{where}[{index}].tool_use_id")
            result = text(block.content or "", f"{where}[{index}].content")
            yield {"role": "tool", "tool_call_id": block.tool_use_id, "content": result}
        elif block.type not in BLOCKS_ELSEWHERE:
            texts.append(text_of(block, f"{where}[{index}]"))
    if texts or not blocks:
        yield {"role": role, "content": "\n".join(texts)}


def _is_open(turn: Json) -> bool:
    return "tool_calls" not in turn and bool(turn["content"].strip())


def _is_elsewhere(tool: Tool) -> bool:
    return TOOL_ELSEWHERE.fullmatch(tool.type) is not None


def _tool(index: int, tool: Tool) -> Json:
    if tool.type != "custom" or tool.input_schema is None:
        where = f"tools[{index}]"
        raise invalid(f"{where} must be a function with an input_schema: this server runs no tools.", where)
    function: Json = {"name": tool.name, "parameters": tool.input_schema}
    return {
        "type": "function",
        "function": function | ({"description": tool.description} if tool.description else {}),
    }


def _choice(choice: Choice) -> Json:
    if choice.type == "tool" and choice.name is None:
        raise invalid("tool_choice.name is required.", "tool_choice.name")
    named = {"type": "function", "function": {"name": choice.name}}
    chosen = {"auto": "auto", "any": "required", "none": "none", "tool": named}[choice.type]
    return {"tool_choice": chosen, "parallel_tool_calls": not choice.disable_parallel_tool_use}
