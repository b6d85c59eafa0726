"""The fields `tools` and `tool_choice`: what the template is given, and what the answer is held to.

A grammar sees to it that `required` and a named function are called; `auto` leaves the model free, and needs
a parser that knows how the model writes calls (`--tool-call-parser`).
"""

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated, Literal

import jiter
from pydantic import Field, PlainValidator

from actors.api.bodies.bounds import Name
from actors.api.bodies.parsing import JsonObject
from actors.api.errors import invalid, shown
from actors.core.params.constraint import Constraint, ConstraintKind

MAX_TOOLS = 1024
NO_PARAMETERS: Mapping[str, object] = {"type": "object", "properties": {}}
CHOICES = '"none", "auto", "required" or {"type": "function", "function": {"name": "…"}}'


class FunctionBody(JsonObject):
    """A function that the model may call."""

    name: Name
    description: str | None = None
    parameters: dict[str, object] | None = None
    strict: bool | None = None

    def for_template(self) -> dict[str, object]:
        """As vLLM gives it to templates: these keys in this order, null where nothing was sent."""
        shown: dict[str, object] = {
            "name": self.name,
            "description": self.description,
            "parameters": self.parameters,
        }
        return shown if self.strict is None else shown | {"strict": self.strict}


class ToolBody(JsonObject):
    """A tool; all are functions."""

    type: Literal["function"]
    function: FunctionBody


class CalledFunction(JsonObject):
    """The function that an earlier answer called; `arguments` is JSON."""

    name: Name
    arguments: str = ""


class CalledBody(JsonObject):
    """A call in an earlier answer of the assistant's."""

    id: Name | None = None
    type: Literal["function"] = "function"
    function: CalledFunction

    def for_template(self) -> dict[str, object]:
        """As templates expect it: the arguments as an object.

        Those that are none are shown as an empty one, as in vLLM: a model may have written them, and refusing
        its call would end the conversation.
        """
        arguments: object = None
        with suppress(ValueError):
            arguments = jiter.from_json((self.function.arguments or "{}").encode(), allow_inf_nan=False)
        function = {"name": self.function.name, "arguments": arguments if isinstance(arguments, dict) else {}}
        return {"id": self.id, "type": self.type, "function": function}


@dataclass(frozen=True, slots=True)
class ToolChoice:
    """`kind` is none, auto, required or named; a named function has a `name`."""

    kind: Literal["none", "auto", "required", "named"]
    name: str | None = None


def as_tool_choice(value: object) -> ToolChoice:
    """`tool_choice`; raises ValueError."""
    if value in ("none", "auto", "required"):
        return ToolChoice(value)
    function = value.get("function") if isinstance(value, Mapping) else None
    name = function.get("name") if isinstance(function, Mapping) else None
    if not isinstance(value, Mapping) or value.get("type") != "function" or not isinstance(name, str):
        raise ValueError(f"is unknown: send {CHOICES}")
    return ToolChoice("named", name)


Tools = Annotated[list[ToolBody], Field(max_length=MAX_TOOLS)]
ToolChoiceField = Annotated[
    ToolChoice, PlainValidator(as_tool_choice, json_schema_input_type=str | dict[str, object])
]


def choice_of(choice: ToolChoice | None, tools: Sequence[ToolBody]) -> ToolChoice:
    """What a request chose, auto if it only gives tools; raises 400 for what its tools do not allow."""
    if choice is None:
        return ToolChoice("auto" if tools else "none")
    if not tools and choice.kind != "none":
        raise invalid("tool_choice is about tools, and there are none: give tools.", "tool_choice")
    if choice.kind == "named" and choice.name not in {tool.function.name for tool in tools}:
        message = f"tool_choice names {shown(choice.name)}, which is not among the tools."
        raise invalid(message, "tool_choice")
    return choice


def constraint_of(choice: ToolChoice, tools: Sequence[ToolBody], parallel: bool) -> Constraint | None:
    """What an answer that must call is held to; raises 400 for definitions that contradict each other."""
    if choice.kind == "named":
        (tool,) = [tool for tool in tools if tool.function.name == choice.name][:1]
        return _json(dict(tool.function.parameters or NO_PARAMETERS))
    if choice.kind != "required":
        return None
    definitions: dict[str, object] = {}
    calls = [_call(tool.function, definitions) for tool in tools]
    schema = {"type": "array", "minItems": 1, "items": {"anyOf": calls}}
    return _json(schema | ({} if parallel else {"maxItems": 1}) | ({"$defs": definitions} if calls else {}))


def _call(function: FunctionBody, definitions: dict[str, object]) -> dict[str, object]:
    """The schema of one call; its definitions go to the top, where references look for them."""
    parameters = dict(function.parameters or NO_PARAMETERS)
    own = parameters.pop("$defs", {})
    for name, definition in own.items() if isinstance(own, Mapping) else ():
        if definitions.setdefault(name, definition) != definition:
            raise invalid(f"two tools define $defs.{name} differently: give them different names.", "tools")
    return {
        "type": "object",
        "properties": {"name": {"const": function.name}, "parameters": parameters},
        "required": ["name", "parameters"],
        "additionalProperties": False,
    }


def _json(schema: Mapping[str, object]) -> Constraint:
    return Constraint(ConstraintKind.JSON, json.dumps(schema, ensure_ascii=False), param="tools")


def for_template(tools: Sequence[ToolBody]) -> list[dict[str, object]]:
    """The tools as templates expect them."""
    return [{"type": tool.type, "function": tool.function.for_template()} for tool in tools]
