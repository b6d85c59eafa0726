"""The fields that say what an answer must look like: OpenAI's `response_format`, vLLM's `structured_outputs`.

Exactly one kind at a time; the names and meanings are vLLM's.
"""

import json
from collections.abc import Mapping
from typing import Annotated

from pydantic import PlainValidator

from actors.api.errors import shown
from actors.core.params.constraint import Constraint, ConstraintKind

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
"""Former fields of vLLM's, and what they are called in `structured_outputs`."""


def as_response_format(value: object) -> Constraint | None:
    """`response_format` as a constraint, None for plain text; raises ValueError."""
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
            return Constraint(ConstraintKind.STRUCTURAL_TAG, _text(value), param="response_format")
        case _:
            raise ValueError(f"has the type {shown(kind)}, which is unknown: use {FORMATS}")


def _json_schema(value: object) -> Constraint:
    if not isinstance(value, Mapping) or not isinstance(value.get("name"), str):
        raise ValueError('must have a json_schema like {"name": "…", "schema": {…}}')
    schema = value.get("schema")
    if not isinstance(schema, Mapping):
        raise ValueError("must have an object as json_schema.schema")
    return Constraint(ConstraintKind.JSON, _text(schema), param="response_format.json_schema.schema")


def as_structured_outputs(value: object) -> Constraint:
    """`structured_outputs` as a constraint; raises ValueError."""
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
            return ConstraintKind.JSON, _text(value)
        case "json_object" if value is True:
            return ConstraintKind.JSON, ANY_OBJECT
        case "choice":
            if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
                raise ValueError("must have a list of strings as choice")
            if not value:
                raise ValueError("must have at least one string as choice")
            return ConstraintKind.CHOICE, _text(value)
        case "structural_tag" if isinstance(value, Mapping):
            return ConstraintKind.STRUCTURAL_TAG, _text(value)
        case "regex" if value == "":
            return ConstraintKind.CHOICE, '[""]'
        case "regex" | "grammar" | "structural_tag" if isinstance(value, str) and value:
            return ConstraintKind(name), value
        case _:
            wanted = "a schema, as an object or as text" if name == "json" else "a text that is not empty"
            raise ValueError(f"must have {'true' if name == 'json_object' else wanted} as {name}")


def _text(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


ResponseFormat = Annotated[
    Constraint | None, PlainValidator(as_response_format, json_schema_input_type=dict[str, object])
]
StructuredOutputs = Annotated[
    Constraint, PlainValidator(as_structured_outputs, json_schema_input_type=dict[str, object])
]
