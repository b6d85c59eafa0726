"""The body of POST /v1/responses, and the chat that it stands for."""

from collections.abc import Mapping, Sequence
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from actors.api.bodies.chat import Effort
from actors.api.bodies.parsing import (
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
from actors.api.bodies.sampling import SAMPLED, NumLogprobs
from actors.api.bodies.structured import MAX_TOOLS
from actors.api.errors import invalid, shown

LOGPROBS = "message.output_text.logprobs"
Included = Literal[
    "code_interpreter_call.outputs",
    "computer_call_output.output.image_url",
    "file_search_call.results",
    "message.input_image.image_url",
    "message.output_text.logprobs",
    "reasoning.encrypted_content",
]
"""The further parts that answers may show; of the other kinds an answer of text has none."""


class Item(JsonObject):
    """An item of the input; which fields it has depends on its type, a message by default."""

    type: Name = "message"
    role: Literal["user", "assistant", "system", "developer"] | None = None
    content: "str | Annotated[list[Text], Field(max_length=MAX_PARTS)] | None" = None
    call_id: Name | None = None
    name: Name | None = None
    arguments: str | None = None
    output: "str | Annotated[list[Text], Field(max_length=MAX_PARTS)] | None" = None
    summary: "Annotated[list[Text], Field(max_length=MAX_PARTS)]" = Field(default=[])


class Text(JsonObject):
    """A part of a message."""

    type: Name
    text: str | None = None


class Function(JsonObject):
    """A function that the model may call; tools that the server itself would run are refused."""

    type: Name
    name: Name | None = None
    description: str | None = None
    parameters: dict[str, object] | None = None
    strict: bool | None = None


class Format(JsonObject):
    """The format that the text of the answer must have."""

    type: Literal["text", "json_object", "json_schema"] = "text"
    name: Name | None = None
    schema_: dict[str, object] | None = Field(None, alias="schema")
    description: str | None = None
    strict: bool | None = None


class TextOptions(JsonObject):
    """The options of the answer's text."""

    format: Format = Format.model_construct()
    verbosity: Literal["medium"] | None = None


class Reasoning(JsonObject):
    """The effort of the model's reasoning; all of it is shown, whatever `summary` is."""

    effort: Effort | None = None
    summary: Literal["auto", "concise", "detailed"] | None = None


Metadata = Annotated[
    dict[Annotated[str, Field(max_length=64)], Annotated[str, Field(max_length=512)]], Field(max_length=16)
]
"""OpenAI's bounds: a response repeats its metadata, in three events if it is streamed."""


class ResponseBody(JsonObject):
    """The body of POST /v1/responses."""

    passed: ClassVar[frozenset[str]] = SAMPLED

    harmless: ClassVar[frozenset[str]] = frozenset(
        {"prompt_cache_options", "stream_options", "access_programs"}
    )

    unsupported: ClassVar[Mapping[str, tuple[object, ...]]] = {
        "background": (False,),
        "context_management": (),
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
        """The input's messages; raises 400 for items that no text stands for."""
        if isinstance(self.input, str):
            return [{"role": "user", "content": self.input}]
        messages: list[Json] = []
        for index, item in enumerate(self.input):
            _add(messages, item, f"input[{index}]")
        return messages

    def chat(self, before: Sequence[Json]) -> Json:
        """The body of the chat completion that answers it, after the messages `before` it."""
        said = [{"role": "system", "content": self.instructions}] if self.instructions else []
        chat = self.passed_on() | {"messages": [*said, *before, *self.messages()]}
        named = {"max_completion_tokens": self.max_output_tokens, "model": self.model}
        for name, value in (named | {"temperature": self.temperature, "top_p": self.top_p}).items():
            if value is not None:
                chat[name] = value
        if self.tools:
            chat["tools"] = [_tool(index, tool) for index, tool in enumerate(self.tools)]
            chat["tool_choice"] = _choice(self.tool_choice)
            chat["parallel_tool_calls"] = self.parallel_tool_calls
        if self.text is not None and self.text.format.type != "text":
            chat["response_format"] = _format(self.text.format)
        if self.truncation == "auto":
            chat["truncate_prompt_tokens"] = -1
        if LOGPROBS in self.include:
            chat |= {"logprobs": True, "top_logprobs": self.top_logprobs or 0}
        elif self.top_logprobs:
            raise invalid(f'top_logprobs are shown with include = ["{LOGPROBS}"] only.', "top_logprobs")
        if self.stream:
            chat |= {"stream": True, "stream_options": {"include_usage": True}}
        effort = None if self.reasoning is None else self.reasoning.effort
        return chat if effort is None else chat | {"reasoning_effort": effort}


def _add(messages: list[Json], item: Item, where: str) -> None:
    """Add what an item says: a message, a call of the assistant's, what it thought, or what a call gave.

    Items of one turn of the assistant's are one message.
    """
    before = messages[-1] if messages and messages[-1]["role"] == "assistant" else None
    match item.type:
        case "message":
            if item.role is None:
                raise invalid(f"{where}.role is required.", f"{where}.role")
            said = {"role": item.role, "content": _text(item.content, f"{where}.content")}
            if item.role == "assistant" and before is not None and before["content"] is None:
                before |= said
            else:
                messages.append(said)
        case "function_call":
            if item.call_id is None or item.name is None:
                raise invalid(f"{where} needs a call_id and a name.", where)
            function = {"name": item.name, "arguments": item.arguments or ""}
            call = {"id": item.call_id, "function": function}
            if before is not None:
                before.setdefault("tool_calls", []).append(call)
            else:
                messages.append({"role": "assistant", "content": None, "tool_calls": [call]})
        case "function_call_output":
            if item.call_id is None:
                raise invalid(f"{where}.call_id is required.", f"{where}.call_id")
            output = _text(item.output, f"{where}.output")
            messages.append({"role": "tool", "tool_call_id": item.call_id, "content": output})
        case "reasoning":
            thought = "".join(part.text or "" for part in _thought(item))
            if before is not None and "reasoning" not in before:
                before["reasoning"] = thought
            elif thought:
                messages.append({"role": "assistant", "content": None, "reasoning": thought})
        case _:
            raise invalid(f"{where} is of type {shown(item.type)}, which is not supported.", where)


def _thought(item: Item) -> list[Text]:
    """Return what a piece of reasoning says, or else its summary."""
    return item.content if isinstance(item.content, list) and item.content else item.summary


def _text(content: str | list[Text] | None, where: str) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    for index, part in enumerate(content):
        if part.type not in ("input_text", "output_text", "text") or part.text is None:
            place = f"{where}[{index}]"
            raise invalid(f"{place} is of type {shown(part.type)}: only text is supported.", place)
    return "\n".join(part.text or "" for part in content)


def _tool(index: int, tool: Function) -> Json:
    if tool.type != "function" or tool.name is None:
        where = f"tools[{index}]"
        raise invalid(f"{where} must be a function with a name: this server runs no tools.", where)
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
