"""Body of POST /v1/responses, and its conversion to a chat."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from sundog.actors.api.bodies.chat import Effort, with_one_system
from sundog.actors.api.bodies.parsing import (
    MAX_MESSAGES,
    MAX_PARTS,
    Json,
    JsonObject,
    ModelName,
    Name,
    NumTokens,
    NumTokensFrom1,
    Probability,
    Temperature,
)
from sundog.actors.api.bodies.sampling import SAMPLED, NumLogprobs
from sundog.actors.api.bodies.structured import MAX_TOOLS
from sundog.actors.api.errors import invalid, shown

LOGPROBS = "message.output_text.logprobs"
Included = Literal[
    "code_interpreter_call.outputs",
    "computer_call_output.output.image_url",
    "file_search_call.results",
    "message.input_image.image_url",
    "message.output_text.logprobs",
    "reasoning.encrypted_content",
]
"""Further parts that answers may show; the other kinds do not occur in text answers."""

TOOLS_ELSEWHERE = (
    "apply_patch",
    "code_interpreter",
    "computer",
    "computer_use_preview",
    "custom",
    "file_search",
    "image_generation",
    "local_shell",
    "mcp",
    "namespace",
    "shell",
    "tool_search",
    "web_search",
    "web_search_2025_08_26",
    "web_search_preview",
    "web_search_preview_2025_03_11",
)
"""Tools that another server runs or its models were trained on; they are left out of the prompt."""
ITEMS_ELSEWHERE = (
    "code_interpreter_call",
    "file_search_call",
    "image_generation_call",
    "mcp_approval_request",
    "mcp_approval_response",
    "mcp_call",
    "mcp_list_tools",
    "tool_search_call",
    "tool_search_output",
    "web_search_call",
)
"""Items of such tools in a conversation begun on another server; they are left out."""


class Item(JsonObject):
    """Item of the input; its fields depend on its type, a message by default."""

    type: Name = "message"
    role: Literal["user", "assistant", "system", "developer"] | None = None
    content: "str | Annotated[list[Text], Field(max_length=MAX_PARTS)] | None" = None
    call_id: Name | None = None
    name: Name | None = None
    arguments: str | None = None
    input: str | None = None
    """Text input of a custom tool."""
    action: dict[str, object] | None = None
    """Command of a `local_shell` call."""
    output: "str | Annotated[list[Text], Field(max_length=MAX_PARTS)] | None" = None
    summary: "Annotated[list[Text], Field(max_length=MAX_PARTS)]" = Field(default=[])


class Text(JsonObject):
    """Part of a message."""

    type: Name
    text: str | None = None


class Function(JsonObject):
    """Function that the model may call, or a tool of another server, which is left out."""

    type: Name
    name: Name | None = None
    description: str | None = None
    parameters: dict[str, object] | None = None
    strict: bool | None = None


class Format(JsonObject):
    """Format of the answer's text."""

    type: Literal["text", "json_object", "json_schema"] = "text"
    name: Name | None = None
    schema_: dict[str, object] | None = Field(None, alias="schema")
    description: str | None = None
    strict: bool | None = None


class TextOptions(JsonObject):
    """Options of the answer's text."""

    format: Format = Format.model_construct()
    verbosity: Literal["low", "medium", "high"] | None = None
    """Requested length of the answer; ignored, since only OpenAI's models were trained on it."""


class Reasoning(JsonObject):
    """Effort of the model's reasoning; all of it is shown, whatever `summary` is."""

    effort: Effort | None = None
    summary: Literal["auto", "concise", "detailed"] | None = None


Metadata = Annotated[
    dict[Annotated[str, Field(max_length=64)], Annotated[str, Field(max_length=512)]], Field(max_length=16)
]
"""Metadata within OpenAI's bounds; a response repeats it, three times if streamed."""


class ResponseBody(JsonObject):
    """Body of POST /v1/responses."""

    passed: ClassVar[frozenset[str]] = SAMPLED

    harmless: ClassVar[frozenset[str]] = frozenset(
        {"prompt_cache_options", "stream_options", "access_programs", "client_metadata"}
    )

    elsewhere: ClassVar[frozenset[str]] = frozenset({"context_management"})

    unsupported: ClassVar[Mapping[str, tuple[object, ...]]] = {
        "background": (False,),
        "conversation": (),
        "enable_response_messages": (False,),
        "kv_transfer_params": (),
        "moderation": (),
        "previous_input_messages": (),
        "prompt": (),
    }

    input: str | Annotated[list[Item], Field(min_length=1, max_length=MAX_MESSAGES)]
    model: ModelName | None = None
    instructions: str | None = None
    max_output_tokens: NumTokensFrom1 | None = None
    metadata: Metadata | None = None
    parallel_tool_calls: bool = True
    previous_response_id: Name | None = None
    store: bool = True
    stream: bool = False
    include: list[Included] = Field(default=[])
    reasoning: Reasoning | None = None
    top_logprobs: NumLogprobs | None = None
    truncation: Literal["auto", "disabled"] = "disabled"
    max_tool_calls: NumTokens | None = None
    service_tier: Name | None = None
    user: Name | None = None
    temperature: Temperature | None = None
    text: TextOptions | None = None
    tool_choice: str | dict[str, object] = "auto"
    tools: Annotated[list[Function], Field(max_length=MAX_TOOLS)] = Field(default=[])
    top_p: Probability | None = None

    def messages(self) -> list[Json]:
        """Return the input as messages; raises 400 for items without text."""
        if isinstance(self.input, str):
            return [{"role": "user", "content": self.input}]
        messages: list[Json] = []
        for index, item in enumerate(self.input):
            _add(messages, item, f"input[{index}]")
        return messages

    def chat(self, before: Sequence[Json]) -> Json:
        """Return the body of the equivalent chat completion, after the messages `before` it."""
        said = [{"role": "system", "content": self.instructions}] if self.instructions else []
        chat = self.passed_on() | {"messages": with_one_system([*said, *before, *self.messages()])}
        named = {"max_completion_tokens": self.max_output_tokens, "model": self.model}
        for name, value in (named | {"temperature": self.temperature, "top_p": self.top_p}).items():
            if value is not None:
                chat[name] = value
        if tools := list(self._functions()):
            chat["tools"] = tools
            chat["tool_choice"] = _choice(self.tool_choice)
            chat["parallel_tool_calls"] = self.parallel_tool_calls
        elif self.tools and self.tool_choice not in ("auto", "none"):
            raise invalid("tool_choice needs tools that are functions.", "tool_choice")
        if self.text is not None and self.text.format.type != "text":
            chat["response_format"] = _format(self.text.format)
        if self.truncation == "auto":
            chat["truncate_prompt_tokens"] = -1
        if LOGPROBS in self.include:
            chat |= {"logprobs": True, "top_logprobs": self.top_logprobs or 0}
        elif self.top_logprobs:
            raise invalid(f'top_logprobs needs include = ["{LOGPROBS}"].', "top_logprobs")
        if self.stream:
            chat |= {"stream": True, "stream_options": {"include_usage": True}}
        effort = None if self.reasoning is None else self.reasoning.effort
        return chat if effort is None else chat | {"reasoning_effort": effort}

    def _functions(self) -> Iterator[Json]:
        """Yield the tools for the prompt; raises 400 for unknown types."""
        for index, tool in enumerate(self.tools):
            if tool.type in TOOLS_ELSEWHERE:
                continue
            if tool.type != "function" or tool.name is None:
                where = f"tools[{index}]"
                raise invalid(f"{where} must be a function with a name: this server runs no tools.", where)
            yield _tool(tool)

    @property
    def functions(self) -> list[Function]:
        """Tools for the prompt, as sent."""
        return [tool for tool in self.tools if tool.type not in TOOLS_ELSEWHERE]

    def left_out(self) -> Iterator[str]:
        """Yield the names of parts that need another server's tools or models and are ignored."""
        for index, tool in enumerate(self.tools):
            if tool.type in TOOLS_ELSEWHERE:
                yield f"tools[{index}] ({tool.type})"
        for index, item in enumerate(self.input if isinstance(self.input, list) else ()):
            if item.type in ITEMS_ELSEWHERE:
                yield f"input[{index}] ({item.type})"
        if self.text is not None and self.text.verbosity in ("low", "high"):
            yield "text.verbosity"
        yield from super().left_out()


def _add(messages: list[Json], item: Item, where: str) -> None:
    """Append an item: a message, a call, reasoning or a call's result.

    Items of one turn of the assistant form one message.
    """
    before = messages[-1] if messages and messages[-1]["role"] == "assistant" else None
    match item.type:
        case "message":
            if item.role is None:
                raise invalid(f"{where}.role is required.", f"{where}.role")
            said = {"role": item.role, "content": _text(item.content, f"{where}.content")}
            # Reasoning and calls may come before the words of the same turn.
            if item.role == "assistant" and before is not None and before["content"] is None:
                before |= said
            else:
                messages.append(said)
        case "function_call" | "custom_tool_call" | "local_shell_call":
            call = _called(item, where)
            if before is not None:
                before.setdefault("tool_calls", []).append(call)
            else:
                messages.append({"role": "assistant", "content": None, "tool_calls": [call]})
        case "function_call_output" | "custom_tool_call_output" | "local_shell_call_output":
            call_id = item.call_id or (item.model_extra or {}).get("id")
            if not isinstance(call_id, str):
                raise invalid(f"{where}.call_id is required.", f"{where}.call_id")
            output = _text(item.output, f"{where}.output")
            messages.append({"role": "tool", "tool_call_id": call_id, "content": output})
        case "reasoning":
            thought = "".join(part.text or "" for part in _thought(item))
            if before is not None and "reasoning" not in before:
                before["reasoning"] = thought
            elif thought:
                messages.append({"role": "assistant", "content": None, "reasoning": thought})
        case kind if kind in ITEMS_ELSEWHERE:
            pass  # `left_out` names it
        case _:
            raise invalid(f"{where} is of type {shown(item.type)}, which is not supported.", where)


def _called(item: Item, where: str) -> Json:
    """Return a call as a chat's; the input of other kinds of tools becomes its arguments."""
    name = "local_shell" if item.type == "local_shell_call" else item.name
    if item.call_id is None or name is None:
        raise invalid(f"{where} needs a call_id and a name.", where)
    arguments = item.arguments or ""
    if item.type == "custom_tool_call":
        arguments = json.dumps({"input": item.input or ""}, ensure_ascii=False)
    elif item.type == "local_shell_call":
        arguments = json.dumps(item.action or {}, ensure_ascii=False)
    return {"id": item.call_id, "function": {"name": name, "arguments": arguments}}


def _thought(item: Item) -> list[Text]:
    return item.content if isinstance(item.content, list) and item.content else item.summary


def _text(content: str | list[Text] | None, where: str) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    for index, part in enumerate(content):
        if part.type not in ("input_text", "output_text", "text") or part.text is None:
            place = f"{where}[{index}]"
            raise invalid(f"{place} is of type {shown(part.type)}: only text is supported.", place)
    return "\n".join(part.text or "" for part in content)


def _tool(tool: Function) -> Json:
    function: Json = {"name": tool.name, "parameters": tool.parameters or {"type": "object"}}
    if tool.description:
        function["description"] = tool.description
    return {"type": "function", "function": function}


def _choice(choice: str | Mapping[str, object]) -> object:
    if isinstance(choice, Mapping) and choice.get("type") == "function" and "name" in choice:
        return {"type": "function", "function": {"name": choice["name"]}}
    return choice


def _format(form: Format) -> Json:
    if form.type == "json_object":
        return {"type": "json_object"}
    if form.schema_ is None:
        raise invalid("text.format.schema is required.", "text.format.schema")
    return {"type": "json_schema", "json_schema": {"name": form.name or "answer", "schema": form.schema_}}
