"""Conversion of a constraint to llguidance's grammar text, without tokenizer or model.

As in vLLM, where only one text can follow, the model chooses among all tokens that begin it, and an object
has only the properties that its schema names. JSON Schema itself allows further properties, and any value
without a `type`: a model may take the opportunity. `additionalProperties: true` allows other properties here,
too.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import cast

import llguidance

from sundog.actors.core.params.sampling import Constraint, ConstraintKind

MAPS = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
"""Keywords whose values are schemas by name."""
SCHEMAS = (
    "additionalItems",
    "additionalProperties",
    "contains",
    "else",
    "if",
    "items",
    "not",
    "propertyNames",
    "then",
    "unevaluatedItems",
    "unevaluatedProperties",
)
"""Keywords whose value is one schema, or a list of them."""
PARTS = ("allOf", "anyOf", "oneOf")
BESIDE = (*PARTS, "if", "not", "$ref", "$dynamicRef")
"""Keywords with further schemas for the same object."""
FORMATS = ("date", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "time", "uri", "uuid")
"""Formats that are enforced. Others are annotations, as in JSON Schema (2020-12, 7.2.1), and so is
`uniqueItems`: the library has no grammar for them.
"""
NUMERIC = ("const", "enum", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
"""Keywords with numeric values."""
MOST_EXACT = 2**53
ARRAY_IS_OPEN = ("items", "additionalItems", "unevaluatedItems")
Schema = dict[str, object]


def closed(schema: Schema, closes_all: bool = False) -> Schema:
    """Return the schema with further properties and items forbidden, if it names some and does not allow
    others.

    Combined schemas (`allOf` and the like) stay unchanged unless `closes_all`, since each part would forbid
    what the others require.
    """
    return _Closer(closes_all, closes_all or not _is_merged(schema)).walk(schema, is_alone=True)


class _Closer:
    def __init__(self, closes_all: bool, closes_definitions: bool) -> None:
        self._closes_all = closes_all
        self._closes_definitions = closes_definitions

    def walk(self, schema: Schema, is_alone: bool) -> Schema:
        """Return the closed schema; `is_alone` if no other schema applies to the same value."""
        alone = is_alone and not any(name in schema for name in BESIDE)
        found: Schema = {}
        for name, value in schema.items():
            if name in MAPS and isinstance(value, dict):
                # A definition that is merged with others must not forbid what they ask for.
                own = self._closes_definitions if name in ("$defs", "definitions") else True
                found[name] = {key: self._any(each, own) for key, each in value.items()}
            elif name in PARTS and isinstance(value, list):
                only = is_alone and (name != "allOf" or len(value) == 1) and "properties" not in schema
                found[name] = [self._any(each, only) for each in value]
            # Left out of what is compiled, so that the answer may break it.
            elif name == "uniqueItems" or (name == "format" and value not in FORMATS):
                continue
            elif name in NUMERIC:
                found[name] = _exact(value)
            elif name == "prefixItems" or name in SCHEMAS:
                found[name] = self._any(value, name not in ("if", "then", "else", "not", "contains"))
            else:
                found[name] = value
        if alone or self._closes_all:
            self._close(found)
        return found

    def _any(self, value: object, is_alone: bool) -> object:
        if isinstance(value, list):
            return [self._any(each, is_alone) for each in value]
        return self.walk(value, is_alone) if isinstance(value, dict) else value

    def _close(self, schema: Schema) -> None:
        if "unevaluatedProperties" in schema and "additionalProperties" not in schema:
            schema["additionalProperties"] = schema.pop("unevaluatedProperties")
        names_some = "properties" in schema or "patternProperties" in schema
        if names_some and "additionalProperties" not in schema:
            properties, required = schema.get("properties") or {}, schema.get("required") or []
            if "patternProperties" in schema or (
                isinstance(properties, dict)
                and isinstance(required, list)
                and all(name in properties for name in required)
            ):
                schema["additionalProperties"] = False
        if "prefixItems" in schema and not any(name in schema for name in ARRAY_IS_OPEN):
            schema["items"] = False
        if not any(name in schema for name in ("type", "enum", "const")):
            if names_some:
                schema["type"] = "object"
            elif "items" in schema:
                schema["type"] = "array"


def _exact(value: object) -> object:
    """Return a value in a schema; raises ValueError for an integer that the library would round."""
    for each in value if isinstance(value, list) else (value,):
        if isinstance(each, Mapping):
            _exact(list(each.values()))
        elif isinstance(each, list):
            _exact(each)
        elif isinstance(each, int) and abs(each) > MOST_EXACT:
            raise ValueError(f"{each} is beyond 2**53, where integers are not exact: use a string for it")
    return value


def _is_merged(value: object) -> bool:
    if isinstance(value, list):
        return any(map(_is_merged, value))
    if not isinstance(value, Mapping):
        return False
    parts = value.get("allOf")
    several = isinstance(parts, list) and len(parts) > 1
    beside = "properties" in value and any(name in value for name in BESIDE)
    return several or beside or any(map(_is_merged, value.values()))


WHITESPACE = r"[\x20\x09]|\x0D?\x0A[\x20\x09]{0,64}"
"""Default whitespace between two tokens of JSON, a blank or a line break with indentation: short enough
that a looping model emits little, long enough to indent a deep answer.
"""
OPTIONS = re.compile(r"(?m)^\s*%llguidance\b.*")
FREE_TOKENS = '\n%llguidance {"no_forcing": true}\n'
"""llguidance's option to let the model choose among tokens; appended, to keep errors' line numbers."""
LARK_START = re.compile(r"(?m)^\s*[?!]?start\s*(?:\.-?\d+)?\s*:")


def grammar_of(constraint: Constraint, special_tokens: frozenset[str] = frozenset()) -> str:
    """Return the grammar's text; raises ValueError for an invalid constraint.

    `special_tokens` are those of the tokenizer, which may be triggers of structural tags; for calls, all
    added tokens.
    """
    match constraint.kind:
        case ConstraintKind.JSON:
            return _json_grammar(constraint)
        case ConstraintKind.REGEX:
            return f"start: /{_ascii_regex(constraint.text)}/{FREE_TOKENS}"
        case ConstraintKind.CHOICE:
            choices = json.loads(constraint.text)
            # One terminal: as a rule, each choice would be an item of the parser's, which has 2,000 at most.
            words = " | ".join(json.dumps(choice) for choice in choices)
            return f"start: CHOICE\nCHOICE: {words}{FREE_TOKENS}"
        case ConstraintKind.GRAMMAR:
            return _free(_lark(constraint.text))
        case ConstraintKind.STRUCTURAL_TAG:
            return _tags(json.loads(constraint.text), special_tokens)
        case ConstraintKind.CALLS_OR_JSON:
            return _calls_or_json(constraint, added_tokens=special_tokens)


def _ascii_regex(pattern: str) -> str:
    """Return the expression in Lark's syntax; digits, word characters and blanks are ASCII, as in vLLM and
    in JSON schemas.
    """
    return str(llguidance.regex_to_lark(pattern, "dws"))


def _lark(grammar: str) -> str:
    is_lark = LARK_START.search(grammar) or OPTIONS.search(grammar)
    return llguidance.grammar_from("lark" if is_lark else "grammar", grammar)


def _free(lark: str) -> str:
    """Add the option for free choice of tokens; the grammar's own options stay."""
    own = OPTIONS.search(lark)
    if own is not None and own.group().partition("%llguidance")[2].strip() != "{}":
        return lark
    return OPTIONS.sub("", lark, count=1) + FREE_TOKENS


def _tags(spec: object, special_tokens: frozenset[str]) -> str:
    """Return free text in which each trigger must be followed by one of the tags that begin with it.

    Both of vLLM's formats are supported; raises ValueError for invalid ones, and for others by name.
    """
    if not isinstance(spec, Mapping):
        raise ValueError("a structural tag must be an object")
    form = dict(spec) if "structures" in spec else _triggered(spec.get("format"))
    triggers = form.get("triggers")
    if not isinstance(triggers, list) or not all(isinstance(each, str) and each for each in triggers):
        raise ValueError("triggers must be a list of texts, none of them empty")
    tags = [_tag(tag, triggers) for tag in _objects(form, "structures" if "structures" in form else "tags")]
    used = {tag.trigger for tag in tags}
    in_brackets = {each for each in used if each.startswith("<") and each.endswith(">")}
    if unnamed := sorted((used & special_tokens) - in_brackets):
        raise ValueError(f"the special token {unnamed[0]!r} cannot be a trigger here")
    if (special := in_brackets & special_tokens) and special != in_brackets:
        raise ValueError("triggers must all be special tokens, or none of them")
    return _free(llguidance.StructTag.to_grammar(tags, assume_special=bool(special)))


def _triggered(form: object) -> Schema:
    """Translate a format of free text with tags; other formats are refused by name."""
    kind = form.get("type") if isinstance(form, Mapping) else None
    if not isinstance(form, Mapping) or kind != "triggered_tags":
        raise ValueError(f"a format of type {kind!r} is not supported: use triggered_tags")
    _refuse(form, "at_least_one", "stop_after_first", "excludes")
    return dict(form)


def _tag(tag: Schema, triggers: list[str]) -> llguidance.StructTag:
    begin, end = tag.get("begin"), tag.get("end")
    if not isinstance(begin, str) or not isinstance(end, str):
        raise ValueError("a tag's begin and end must be texts")
    found = [trigger for trigger in triggers if begin.startswith(trigger)]
    if len(found) != 1:
        raise ValueError(f"{len(found) or 'no'} triggers begin the tag {begin!r}: exactly one must")
    schema = tag.get("schema")
    if (content := tag.get("content")) is not None:
        kind = content.get("type") if isinstance(content, Mapping) else None
        if not isinstance(content, Mapping) or kind != "json_schema":
            raise ValueError(f"a tag's content of type {kind!r} is not supported: use json_schema")
        if (style := content.get("style", "json")) != "json":
            raise ValueError(f"the style {style!r} of a json_schema is not supported: use json")
        _refuse(content, "any_order", "excludes", "max_whitespace_cnt")
        schema = content.get("json_schema")
    return llguidance.StructTag(trigger=found[0], begin=begin, grammar=_schema(schema, WHITESPACE), end=end)


def _objects(form: Schema, name: str) -> list[Schema]:
    value = form.get(name)
    if not isinstance(value, list) or not value or not all(isinstance(each, Mapping) for each in value):
        raise ValueError(f"{name} must be a list of objects, at least one")
    return cast(list[Schema], value)


def _refuse(form: Mapping[str, object], *names: str) -> None:
    for name in names:
        if form.get(name) not in (None, False, []):
            raise ValueError(f"{name} = {json.dumps(form[name])[:40]} is not supported: leave it out")


def _json_grammar(constraint: Constraint) -> str:
    pattern = constraint.whitespace_pattern
    if pattern is None and constraint.any_whitespace:
        pattern = WHITESPACE
    schema = json.loads(constraint.text)
    return f"start: {_json(schema, pattern, constraint.closed_objects)}{FREE_TOKENS}"


PREAMBLE = r"""/[^\s{}\[\]<"0-9\-][^{}<]{0,300}/"""
"""Text that a model may write before a call: excludes the beginnings of JSON and marks."""


def _calls_or_json(constraint: Constraint, added_tokens: frozenset[str]) -> str:
    """Return a grammar for calls in the model's format, or an answer of the schema; a mark may be a token
    or spelled out.
    """
    form = json.loads(constraint.text)
    answer = _json_grammar(replace(constraint, text=json.dumps(form["schema"])))
    alternative = answer.removeprefix("start: ").removesuffix(FREE_TOKENS)
    arguments = {"hermes": "arguments", "llama3_json": "parameters"}.get(form["calls"])
    if arguments is None:  # the mark of Mistral's calls is a token that no grammar of the library can name
        return answer
    called = {
        "type": "object",
        "properties": {"name": {"enum": form["names"]}, arguments: {"type": "object"}},
        "required": ["name", arguments],
        "additionalProperties": False,
    }
    call = _json(called, WHITESPACE)
    if form["calls"] == "llama3_json":
        start = 'start: answer | call (";" BLANK* call)*'
        return f'{start}\nanswer: {alternative}\ncall: {call}\nBLANK: " "{FREE_TOKENS}'
    begin, end = (
        f'({mark} | "{mark}")' if mark in added_tokens else f'"{mark}"'
        for mark in ("<tool_call>", "</tool_call>")
    )
    return (
        f"start: answer | PREAMBLE? call (BLANK* call)*\nanswer: {alternative}\n"
        f"call: {begin} BLANK* {call} BLANK* {end}\nPREAMBLE: {PREAMBLE}\nBLANK: /[ \\n]/{FREE_TOKENS}"
    )


def _json(schema: object, whitespace: str | None, closes_all: bool = False) -> str:
    return f"%json {json.dumps(_schema(schema, whitespace, closes_all))}"


def _schema(schema: object, whitespace: str | None, closes_all: bool = False) -> Schema:
    if schema is True:
        schema = {}
    if not isinstance(schema, dict):
        raise ValueError("the schema must be an object")
    schema = closed(schema, closes_all)
    options: dict[str, object] = {"whitespace_flexible": whitespace is not None}
    if whitespace is not None:
        options["whitespace_pattern"] = whitespace
    own = schema.get("x-guidance")
    return {**schema, "x-guidance": {**(own if isinstance(own, dict) else {}), **options}}
