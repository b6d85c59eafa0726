"""Bodies with a conversation: POST /v1/chat/completions, /tokenize and /detokenize."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Annotated, ClassVar, Literal

from pydantic import ConfigDict, Field, JsonValue, PlainValidator, WithJsonSchema

from sundog.actors.api.bodies.extras import not_supported
from sundog.actors.api.bodies.parsing import (
    MANY_MESSAGES,
    MAX_MESSAGES,
    MAX_PARTS,
    Json,
    JsonObject,
    ManyTokenIds,
    ModelName,
    Name,
    NumTokensFrom1,
    off_the_loop,
)
from sundog.actors.api.bodies.sampling import NumLogprobs, SamplingBody
from sundog.actors.api.bodies.structured import (
    MAX_TOOLS,
    CalledBody,
    ToolChoice,
    ToolChoiceField,
    Tools,
    choice_of,
    constraint_of,
    for_template,
)
from sundog.actors.api.context import ApiContext
from sundog.actors.api.errors import invalid, shown
from sundog.actors.core.params.sampling import Constraint
from sundog.actors.messages import ChatMessage, Reading

BILLING = "x-anthropic-billing-header"
"""Beginning of a billing line, which differs in each request and would prevent prefix hits."""


def without_billing(text: str) -> str:
    """Remove billing lines from a system text; gateways keep them when they convert messages to a chat."""
    if BILLING not in text:
        return text
    return "\n".join(line for line in text.split("\n") if not line.startswith(BILLING))


def with_one_system(messages: Sequence[Json]) -> list[Json]:
    """Merge all system messages into one at the beginning.

    Agents send a second one in the middle of a conversation, which many templates refuse.
    """
    said = [message["content"] for message in messages if message["role"] == "system"]
    others = [message for message in messages if message["role"] != "system"]
    text = "\n\n".join(content for content in said if content)
    return [{"role": "system", "content": text}, *others] if text else others


RESERVED = (
    "add_generation_prompt",
    "chat_template",
    "continue_final_message",
    "documents",
    "messages",
    "tokenize",
    "tools",
)
"""Template variables that clients cannot set."""


Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]


class Templated(JsonObject):
    """Common fields of bodies with a conversation; defaults are vLLM's."""

    add_generation_prompt: bool = True
    continue_final_message: bool = False
    chat_template_kwargs: dict[str, object] = Field(default={})
    documents: Annotated[list[dict[str, object]], Field(max_length=MAX_PARTS)] | None = None
    tools: Tools = Field(default=[])
    reasoning_effort: Effort | None = None

    @property
    def may_think(self) -> bool:
        """Whether the model may think: unless the template prevents it, or a message is continued."""
        if self.continue_final_message:
            return False
        return (self._effort() | self.chat_template_kwargs).get("enable_thinking") is not False

    def templated(self, reading: Reading) -> Reading:
        """Return `reading` with the template's arguments; raises 400 for invalid ones."""
        if self.continue_final_message and self.add_generation_prompt:
            raise invalid(
                "continue_final_message cannot be combined with add_generation_prompt: send"
                " add_generation_prompt = false with it.",
                "add_generation_prompt",
            )
        for name in RESERVED:
            if name in self.chat_template_kwargs:
                message = f"chat_template_kwargs.{name} is not allowed: use the request's own fields."
                raise invalid(message, "chat_template_kwargs")
        documents: dict[str, object] = {} if self.documents is None else {"documents": self.documents}
        tools = {"tools": for_template(self.tools)} if self.tools else {}
        return replace(
            reading,
            add_generation_prompt=self.add_generation_prompt,
            continue_final_message=self.continue_final_message,
            template_arguments={**self._effort(), **self.chat_template_kwargs, **documents, **tools},
        )

    def _effort(self) -> dict[str, object]:
        """Return the reasoning effort, also as on or off, which is all that some templates support."""
        effort = self.reasoning_effort
        return {} if effort is None else {"reasoning_effort": effort, "enable_thinking": effort != "none"}


UNSUPPORTED_IN_MESSAGE = ("audio", "function_call")
TEXT_PARTS = {
    "text": "text",
    "input_text": "text",
    "output_text": "text",
    "refusal": "refusal",
    "thinking": "thinking",
}
"""Text parts of a message, and the field that holds the text."""


Part = Annotated[
    dict[str, object],
    WithJsonSchema(
        {
            "type": "object",
            "properties": {
                "type": {"enum": [*TEXT_PARTS]},
                **{field: {"type": "string"} for field in TEXT_PARTS.values()},
            },
            "required": ["type"],
        }
    ),
]
ContentInput = str | Annotated[list[Part], Field(max_length=MAX_PARTS)]


def as_text(value: object) -> str:
    """Return `content`, a string or a list of text parts, as text; raises ValueError.

    Parts are joined by line ends, as vLLM does for templates that expect a string.
    """
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise ValueError("must be a string or a list of text parts")
    if len(value) > MAX_PARTS:
        raise ValueError(f"has {len(value)} parts; at most {MAX_PARTS} are allowed")
    return "\n".join(_text_of_part(index, part) for index, part in enumerate(value))


def _text_of_part(index: int, part: object) -> str:
    if not isinstance(part, dict) or not isinstance(part.get("type"), str):
        raise ValueError(f'[{index}] must be a part like {{"type": "text", "text": "…"}}')
    if (field := TEXT_PARTS.get(part["type"])) is None:
        raise ValueError(f"[{index}] is of type {shown(part['type'])}, which is not supported; only text is")
    text = part.get(field)
    if not isinstance(text, str):
        raise ValueError(f"[{index}].{field} must be a string")
    return text


class MessageBody(JsonObject):
    """Turn of a conversation; an assistant's may be sent back as received, with null and empty fields."""

    role: Name
    """Role of the turn: any that the model's chat template accepts."""
    content: Annotated[str, PlainValidator(as_text, json_schema_input_type=ContentInput)] | None = None
    tool_calls: Annotated[list[CalledBody], Field(max_length=MAX_TOOLS)] | None = None
    tool_call_id: Name | None = None
    name: Name | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    """Reasoning under its former name."""

    def checked(self, where: str) -> ChatMessage:
        """Return the turn for the chat template; raises 400 for unsupported content."""
        for name in UNSUPPORTED_IN_MESSAGE:
            if value := (self.model_extra or {}).get(name):
                raise invalid(not_supported(f"{where}.{name}", value), f"{where}.{name}")
        for name, role in (("tool_calls", "assistant"), ("tool_call_id", "tool")):
            if getattr(self, name) and self.role != role:
                message = f"{where}.{name} is only allowed in a message of the role {role}."
                raise invalid(message, f"{where}.{name}")
        content = self.content or ""
        if self.role == "system":
            content = without_billing(content)
        return ChatMessage(self.role, content, self._more())

    def _more(self) -> dict[str, object]:
        more: dict[str, object] = {}
        if self.tool_calls:
            more["tool_calls"] = [call.for_template() for call in self.tool_calls]
        if self.tool_call_id is not None:
            more["tool_call_id"] = self.tool_call_id
        if self.name is not None:
            more["name"] = self.name
        thought = self.reasoning_content if self.reasoning is None else self.reasoning
        if thought is not None and self.role == "assistant":
            more |= {"reasoning": thought, "reasoning_content": thought}
        return more


Messages = Annotated[list[MessageBody], Field(min_length=1, max_length=MAX_MESSAGES)]


def conversation(messages: list[MessageBody]) -> tuple[ChatMessage, ...]:
    """Return the turns for the chat template; raises 400 for the first with unsupported content."""
    return tuple(message.checked(f"messages[{index}]") for index, message in enumerate(messages))


async def read_conversation(messages: list[MessageBody], context: ApiContext) -> tuple[ChatMessage, ...]:
    """Call `conversation`, in a thread for many turns."""
    work = partial(conversation, messages)
    return await off_the_loop(context, work, is_large=len(messages) > MANY_MESSAGES)


class ChatBody(Templated, SamplingBody):
    """Body of POST /v1/chat/completions."""

    elsewhere: ClassVar[frozenset[str]] = frozenset({"verbosity", "web_search_options"})

    messages: Messages
    max_completion_tokens: NumTokensFrom1 | None = None
    logprobs: bool = False
    top_logprobs: NumLogprobs = 0
    tool_choice: ToolChoiceField | None = None
    parallel_tool_calls: bool = True
    return_prompt_text: bool = False
    include_reasoning: bool = True

    def reading(self) -> Reading:
        """Return how to convert the conversation to a prompt; raises 400 for invalid template arguments."""
        return self.templated(super().reading())

    @property
    def chosen_tools(self) -> ToolChoice:
        """Tool choice; raises 400 if it does not fit the tools."""
        lists_none = not self.tools and "tools" in self.model_fields_set
        if lists_none and self.tool_choice is not None and self.tool_choice.kind == "auto":
            return ToolChoice("none")  # as clients send it that list their tools and have none today
        return choice_of(self.tool_choice, self.tools)

    def _constraint(self) -> Constraint | None:
        own = super()._constraint()
        called = constraint_of(self.chosen_tools, self.tools, self.parallel_tool_calls)
        if own is not None and called is not None:
            raise invalid("tool_choice and another field shape the answer: leave one out.", "tool_choice")
        return own or called

    @property
    def answering_role(self) -> str:
        """Role of the answer: assistant, or that of the last message if it is continued."""
        return "assistant" if self.add_generation_prompt else self.messages[-1].role

    @property
    def echoed(self) -> str:
        """Text before an answer with `echo`: the last message, if it has the answer's role."""
        last = self.messages[-1]
        return last.content or "" if self.echo and last.role == self.answering_role else ""

    @property
    def num_logprobs(self) -> int | None:
        """Number of likeliest tokens to show; raises 400 for `top_logprobs` without `logprobs`."""
        if self.top_logprobs and not self.logprobs:
            raise invalid("top_logprobs is only allowed when logprobs is true.", "top_logprobs")
        return self.top_logprobs if self.logprobs else None

    @property
    def num_echoed(self) -> int | None:
        """Number of likeliest tokens to list for the prompt, which only `echo` requests, as in vLLM."""
        return self.top_logprobs if self.echo else None

    @property
    def token_limit(self) -> int | None:
        """Limit on output tokens; the newer field wins, None means the end of the context."""
        if self.max_completion_tokens is not None:
            return self.max_completion_tokens
        return self.max_tokens


def _given(name: str, kind: str) -> JsonValue:
    return {"properties": {name: {"type": kind}}, "required": [name]}


class TokenizeBody(Templated):
    """Body of /tokenize: a text or a conversation."""

    unsupported: ClassVar[Mapping[str, tuple[object, ...]]] = {"chat_template": ()}

    model_config = ConfigDict(
        json_schema_extra={"oneOf": [_given("prompt", "string"), _given("messages", "array")]}
    )
    model: ModelName | None = None
    prompt: str | None = None
    messages: Messages | None = None
    add_special_tokens: bool | None = None
    return_token_strs: bool = False

    def reading(self) -> Reading:
        """Return how to tokenize it; raises 400 unless it has a prompt or messages."""
        if (self.prompt is None) == (self.messages is None):
            raise invalid("prompt or messages: send one of the two.", "prompt")
        return self.templated(Reading(add_special_tokens=self.add_special_tokens))


class DetokenizeBody(JsonObject):
    """Body of /detokenize."""

    model: ModelName | None = None
    tokens: ManyTokenIds
