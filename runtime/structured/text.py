"""A constraint becomes the grammar that llguidance reads. Text alone: no tokenizer, no model.

As in vLLM, where only one text can follow, the model chooses among all tokens that begin it, and an object
has the properties that its schema names and no others. JSON Schema itself allows any others, and any value
where no `type` is said: a model that sees the chance may take it. `additionalProperties: true` allows other
properties here, too.
"""

import json
import re
from collections.abc import Mapping

import llguidance

from actors.core.params.sampling import Constraint, ConstraintKind
from runtime.structured.tags import tags_grammar

MAPS = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
"""Keywords that hold schemas by name."""
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
"""Keywords that hold one schema, or a list of them."""
PARTS = ("allOf", "anyOf", "oneOf")
BESIDE = (*PARTS, "if", "not", "$ref", "$dynamicRef")
"""What may say more of the same object."""
ARRAY_IS_OPEN = ("items", "additionalItems", "unevaluatedItems")
Schema = dict[str, object]


def closed(schema: Schema, closes_all: bool = False) -> Schema:
    """The schema with no further properties or items where it names some and says nothing of others.

    What several schemas say together is left as it is, unless it `closes_all`: each would forbid what the
    others ask for.
    """
    return _Closer(closes_all, closes_all or not _is_merged(schema)).walk(schema, is_alone=True)


class _Closer:
    """`closes_definitions` that may be used where several schemas hold at once."""

    def __init__(self, closes_all: bool, closes_definitions: bool) -> None:
        self._closes_all = closes_all
        self._closes_definitions = closes_definitions

    def walk(self, schema: Schema, is_alone: bool) -> Schema:
        """The schema; `is_alone` if no other one says something of the same value."""
        alone = is_alone and not any(name in schema for name in BESIDE)
        found: Schema = {}
        for name, value in schema.items():
            if name in MAPS and isinstance(value, dict):
                own = self._closes_definitions if name in ("$defs", "definitions") else True
                found[name] = {key: self._any(each, own) for key, each in value.items()}
            elif name in PARTS and isinstance(value, list):
                only = is_alone and (name != "allOf" or len(value) == 1) and "properties" not in schema
                found[name] = [self._any(each, only) for each in value]
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


def _is_merged(value: object) -> bool:
    """Whether definitions may be used where several schemas hold at once."""
    if isinstance(value, list):
        return any(map(_is_merged, value))
    if not isinstance(value, Mapping):
        return False
    parts = value.get("allOf")
    several = isinstance(parts, list) and len(parts) > 1
    beside = "properties" in value and any(name in value for name in BESIDE)
    return several or beside or any(map(_is_merged, value.values()))


WHITESPACE = r"[\x20\x09]|\x0D?\x0A[\x20\x09]{0,64}"
"""Between two tokens of JSON, unless a client says otherwise, one blank or one line break with an indentation
may stand: a model that goes astray writes few of them, and a deep answer can still be indented."""
OPTIONS = re.compile(r"(?m)^\s*%llguidance\b.*")
FREE_TOKENS = '\n%llguidance {"no_forcing": true}\n'
"""At the end, so that errors name the lines of what a client wrote."""
LARK_START = re.compile(r"(?m)^\s*[?!]?start\s*(?:\.-?\d+)?\s*:")


def grammar_of(constraint: Constraint, special_tokens: frozenset[str] = frozenset()) -> str:
    """The grammar's text; raises ValueError for what is none.

    `special_tokens` are those of the tokenizer, which structural tags may begin with.
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


def _ascii_regex(pattern: str) -> str:
    r"""The expression as Lark writes it; `\d`, `\w` and `\s` are of ASCII, as in vLLM and in JSON schemas."""
    return str(llguidance.regex_to_lark(pattern, "dws"))


def _lark(grammar: str) -> str:
    """A grammar in EBNF or Lark as Lark."""
    is_lark = LARK_START.search(grammar) or OPTIONS.search(grammar)
    return llguidance.grammar_from("lark" if is_lark else "grammar", grammar)


def _free(lark: str) -> str:
    """The grammar with free choice of tokens; options of its own stay."""
    own = OPTIONS.search(lark)
    if own is not None and own.group().partition("%llguidance")[2].strip() != "{}":
        return lark
    return OPTIONS.sub("", lark, count=1) + FREE_TOKENS


def _tags(spec: object, special_tokens: frozenset[str]) -> str:
    """A structural tag's grammar; its schemas, grammars and expressions are as they are alone."""

    def json_of(schema: object, most_whitespace: int | None) -> str:
        if most_whitespace is None:
            return _json(schema, WHITESPACE)
        return _json(schema, f"[\\x20\\x0A\\x0D\\x09]{{1,{most_whitespace}}}" if most_whitespace else None)

    def lark_of(grammar: str) -> str:
        return OPTIONS.sub("", _lark(grammar))

    return tags_grammar(spec, special_tokens, json_of, lark_of, _ascii_regex) + FREE_TOKENS


def _json_grammar(constraint: Constraint) -> str:
    pattern = constraint.whitespace_pattern
    if pattern is None and constraint.any_whitespace:
        pattern = WHITESPACE
    schema = json.loads(constraint.text)
    return f"start: {_json(schema, pattern, constraint.closed_objects)}{FREE_TOKENS}"


def _json(schema: object, whitespace: str | None, closes_all: bool = False) -> str:
    """JSON of this schema as Lark has it; `whitespace` may stand between two tokens, if anything may."""
    if schema is True:
        schema = {}
    if not isinstance(schema, dict):
        raise ValueError("the schema must be an object")
    schema = closed(schema, closes_all)
    options: dict[str, object] = {"whitespace_flexible": whitespace is not None}
    if whitespace is not None:
        options["whitespace_pattern"] = whitespace
    own = schema.get("x-guidance")
    schema = {**schema, "x-guidance": {**(own if isinstance(own, dict) else {}), **options}}
    return f"%json {json.dumps(schema)}"
