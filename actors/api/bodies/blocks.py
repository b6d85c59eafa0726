"""Blocks of content in Anthropic's shape, and the texts that they stand for."""

from typing import Annotated

from pydantic import ConfigDict, Field, JsonValue

from actors.api.bodies.billing import BILLING
from actors.api.bodies.bounds import MAX_PARTS, Name
from actors.api.bodies.parsing import JsonObject
from actors.api.errors import invalid, shown

NEEDED: dict[str, tuple[str, ...]] = {
    "text": ("text",),
    "tool_use": ("id", "name"),
    "tool_result": ("tool_use_id",),
    "thinking": (),
    "redacted_thinking": (),
}
"""The types of blocks, and the texts that one of them must have."""


def _needed() -> list[JsonValue]:
    """The same as JSON Schema."""
    return [
        {
            "properties": {"type": {"const": kind}, **{name: {"type": "string"} for name in names}},
            "required": ["type", *names],
        }
        for kind, names in NEEDED.items()
    ]


class TextBlock(JsonObject):
    """A block of text; one of another type is refused by name."""

    model_config = ConfigDict(json_schema_extra={"required": ["type", "text"]})
    type: Annotated[Name, Field(json_schema_extra={"enum": ["text"]})]
    text: str | None = None


class Block(TextBlock):
    """A block of content; which fields it has depends on its type."""

    model_config = ConfigDict(json_schema_extra={"required": ["type"], "oneOf": _needed()})
    type: Annotated[Name, Field(json_schema_extra={"enum": [*NEEDED]})]
    thinking: str | None = None
    id: Name | None = None
    name: Name | None = None
    input: dict[str, object] | None = None
    tool_use_id: Name | None = None
    content: str | Annotated[list[TextBlock], Field(max_length=MAX_PARTS)] | None = None
    """Of a tool's result."""
    is_error: bool = False


Content = str | Annotated[list[Block], Field(max_length=MAX_PARTS)]


def text(content: str | list[TextBlock], where: str) -> str:
    """A text, or the blocks of one a line each; raises 400 for blocks that no text stands for."""
    if isinstance(content, str):
        return content
    return "\n".join(text_of(block, f"{where}[{index}]") for index, block in enumerate(content))


def instructions(system: str | list[TextBlock]) -> str:
    """The system prompt: its blocks one after the other, as in vLLM.

    A block that accounts for the request is left out: it differs each time, and no prefix would be cached.
    """
    if isinstance(system, str):
        return system
    texts = [text_of(block, f"system[{index}]") for index, block in enumerate(system)]
    return "".join(text for text in texts if not text.startswith(BILLING))


def text_of(block: TextBlock, where: str) -> str:
    """A block's text; raises 400 if it is of another type."""
    if block.type != "text":
        raise invalid(f"{where} is of type {shown(block.type)}: only text is supported here.", where)
    if block.text is None:
        raise invalid(f"{where}.text is required.", f"{where}.text")
    return block.text
