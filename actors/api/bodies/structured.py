"""Fields that restrict an answer's form: formats, structured outputs, tools.

Exactly one kind at a time; names and meanings are vLLM's. A grammar enforces the call for `required` and a
named function; `auto` leaves the choice to the model, and needs a parser for the model's calls
(`--tool-call-parser`).
"""

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Annotated, Literal

import jiter
from pydantic import Field, PlainValidator

from sundog.actors.api.bodies.parsing import JsonObject, Name
from sundog.actors.api.errors import invalid, shown
from sundog.actors.core.params.sampling import Constraint, ConstraintKind

ANY_OBJECT = '{"type":"object"}'
FORMATS = "text, json_object, json_schema or structural_tag"
KINDS = ("json", "regex", "choice", "grammar", "json_object", "structural_tag")
SWITCHES = ("disable_any_whitespace", "disable_additional_properties", "disable_fallback")
RENAMED = {
    "guided_choice": "choice",
    "guided_grammar": "grammar",
    "guided_json": "json",
    "guided_regex": "regex",
    "guided_whitespace_pattern": "whitespace_pattern",
    "structural_tag": "structural_tag",
}
"""Former fields of vLLM, and their names in `structured_outputs`."""


def as_response_format(value: object) -> Constraint | None:
    """Return `response_format` as a constraint, None for plain text; raises ValueError."""
    kind = value.get("type") if isinstance(value, Mapping) else None
    if not isinstance(value, Mapping) or not isinstance(kind, str):
        raise ValueError(f"must be an object with the type {FORMATS}")
    match kind:
        case "text":
            return None
        case "json_object":
            return Constraint(ConstraintKind.JSON, ANY_OBJECT, param="response_format")
        case "json_schema":
            return _json_schema(value.get("json_schema"))
        case "structural_tag":
            return Constraint(ConstraintKind.STRUCTURAL_TAG, _as_json(value), param="response_format")
        case _:
            raise ValueError(f"has the type {shown(kind)}, which is unknown: use {FORMATS}")


def _json_schema(value: object) -> Constraint:
    if not isinstance(value, Mapping) or not isinstance(value.get("name"), str):
        raise ValueError('must have a json_schema like {"name": "…", "schema": {…}}')
    schema = value.get("schema")
    if not isinstance(schema, Mapping):
        raise ValueError("must have an object as json_schema.schema")
    return Constraint(ConstraintKind.JSON, _as_json(schema), param="response_format.json_schema.schema")


def as_structured_outputs(value: object) -> Constraint:
    """Return `structured_outputs` as a constraint; raises ValueError."""
    if not isinstance(value, Mapping):
        raise ValueError(f"must be an object with one of {', '.join(KINDS)}")
    given = {name: each for name, each in value.items() if each is not None and each is not False}
    unknown = [name for name in given if name not in (*KINDS, *SWITCHES, "whitespace_pattern")]
    if unknown:
        raise ValueError(f"has the unknown field {shown(unknown[0])}")
    kinds = [name for name in KINDS if name in given]
    if len(kinds) != 1:
        has = f"has {' and '.join(kinds)}" if kinds else "says nothing"
        raise ValueError(f"{has}: give exactly one of {', '.join(KINDS)}")
    for name in SWITCHES:
        if given.get(name, True) is not True:
            raise ValueError(f"has something other than true or false as {name}")
    pattern = given.get("whitespace_pattern")
    if pattern is not None and not isinstance(pattern, str):
        raise ValueError("has a whitespace_pattern that is no string")
    (name,) = kinds
    kind, text = _constraint(name, given[name])
    return Constraint(
        kind,
        text,
        any_whitespace="disable_any_whitespace" not in given,
        whitespace_pattern=pattern,
        closed_objects="disable_additional_properties" in given,
        param=f"structured_outputs.{name}",
    )


def _constraint(name: str, value: object) -> tuple[ConstraintKind, str]:
    match name:
        case "json" if isinstance(value, str):
            return ConstraintKind.JSON, value
        case "json" if isinstance(value, Mapping) or value is True:
            return ConstraintKind.JSON, _as_json(value)
        case "json_object" if value is True:
            return ConstraintKind.JSON, ANY_OBJECT
        case "choice":
            if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
                raise ValueError("must have a list of strings as choice")
            if not value:
                raise ValueError("must have at least one string as choice")
            return ConstraintKind.CHOICE, _as_json(value)
        case "structural_tag" if isinstance(value, Mapping):
            return ConstraintKind.STRUCTURAL_TAG, _as_json(value)
        case "regex" if value == "":
            return ConstraintKind.CHOICE, '[""]'
        case "regex" | "grammar" | "structural_tag" if isinstance(value, str) and value:
            return ConstraintKind(name), value
        case _:
            wanted = "a schema, as an object or as text" if name == "json" else "a text that is not empty"
            raise ValueError(f"must have {'true' if name == 'json_object' else wanted} as {name}")


def _as_json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


ResponseFormat = Annotated[
    Constraint | None, PlainValidator(as_response_format, json_schema_input_type=dict[str, object])
]
StructuredOutputs = Annotated[
    Constraint, PlainValidator(as_structured_outputs, json_schema_input_type=dict[str, object])
]


MAX_TOOLS = 1024
NO_PARAMETERS: Mapping[str, object] = {"type": "object", "properties": {}}
CHOICES = '"none", "auto", "required" or {"type": "function", "function": {"name": "…"}}'


class FunctionBody(JsonObject):
    """Function that the model may call."""

    name: Name
    description: str | None = None
    parameters: dict[str, object] | None = None
    strict: bool | None = None

    def for_template(self) -> dict[str, object]:
        """Return the function as vLLM passes it to templates: these keys in this order, null if absent."""
        shown: dict[str, object] = {
            "name": self.name,
            "description": self.description,
            "parameters": self.parameters,
        }
        return shown if self.strict is None else shown | {"strict": self.strict}


class ToolBody(JsonObject):
    """Tool; all are functions."""

    type: Literal["function"]
    function: FunctionBody


class CalledFunction(JsonObject):
    """Function called by an earlier answer; `arguments` is JSON."""

    name: Name
    arguments: str = ""


class CalledBody(JsonObject):
    """Call in an earlier answer of the assistant."""

    id: Name | None = None
    type: Literal["function"] = "function"
    function: CalledFunction

    def for_template(self) -> dict[str, object]:
        """Return the call as templates expect it, with its arguments as an object.

        Invalid arguments become an empty object, as in vLLM: a model may have written them, and a refusal
        would end the conversation.
        """
        arguments: object = None
        with suppress(ValueError):
            arguments = jiter.from_json((self.function.arguments or "{}").encode(), allow_inf_nan=False)
            if isinstance(arguments, str):  # a text of JSON, as some models write them
                arguments = jiter.from_json(arguments.encode(), allow_inf_nan=False)
        function = {"name": self.function.name, "arguments": arguments if isinstance(arguments, dict) else {}}
        return {"id": self.id, "type": self.type, "function": function}


@dataclass(frozen=True, slots=True)
class ToolChoice:
    """Tool choice; `kind` is none, auto, required or named, and a named function has a `name`."""

    kind: Literal["none", "auto", "required", "named"]
    name: str | None = None


def as_tool_choice(value: object) -> ToolChoice:
    """Parse `tool_choice`; raises ValueError."""
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
    """Return a request's choice, auto if it only gives tools; raises 400 if it does not fit the tools."""
    if choice is None:
        return ToolChoice("auto" if tools else "none")
    if not tools and choice.kind != "none":
        raise invalid("tool_choice needs tools: send tools with it.", "tool_choice")
    if choice.kind == "named" and choice.name not in {tool.function.name for tool in tools}:
        message = f"tool_choice names {shown(choice.name)}, which is not among the tools."
        raise invalid(message, "tool_choice")
    return choice


def constraint_of(choice: ToolChoice, tools: Sequence[ToolBody], parallel: bool) -> Constraint | None:
    """Return the grammar of an answer that must call; raises 400 for contradicting definitions."""
    if choice.kind == "named":
        (tool,) = [tool for tool in tools if tool.function.name == choice.name][:1]
        return _as_constraint(dict(tool.function.parameters or NO_PARAMETERS))
    if choice.kind != "required":
        return None
    definitions: dict[str, object] = {}
    calls = [_call(tool.function, definitions) for tool in tools]
    schema = {"type": "array", "minItems": 1, "items": {"anyOf": calls}}
    return _as_constraint(
        schema | ({} if parallel else {"maxItems": 1}) | ({"$defs": definitions} if calls else {})
    )


def or_calls(answer: Constraint, tool_call_parser: str | None, tools: Sequence[ToolBody]) -> Constraint:
    """Extend an answer's schema so that calls of the tools are allowed, too: the schema is for the final
    answer.

    Calls have the format of the parser of this name; their arguments may be any object, as without a schema.
    """
    if answer.kind is not ConstraintKind.JSON or tool_call_parser is None:
        return answer
    names = sorted({tool.function.name for tool in tools})
    form = {"calls": tool_call_parser, "names": names, "schema": json.loads(answer.text)}
    return replace(answer, kind=ConstraintKind.CALLS_OR_JSON, text=_as_json(form))


def _call(function: FunctionBody, definitions: dict[str, object]) -> dict[str, object]:
    """Return the schema of one call; its definitions move to the top of the whole schema, where references
    expect them.
    """
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


def _as_constraint(schema: Mapping[str, object]) -> Constraint:
    return Constraint(ConstraintKind.JSON, json.dumps(schema, ensure_ascii=False), param="tools")


def for_template(tools: Sequence[ToolBody]) -> list[dict[str, object]]:
    """Return the tools as templates expect them."""
    return [{"type": tool.type, "function": tool.function.for_template()} for tool in tools]
