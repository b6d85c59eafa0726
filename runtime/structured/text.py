"""From a constraint to the grammar that llguidance reads. Text alone: no tokenizer, no model.

As in vLLM, where only one text can follow, the model chooses among all tokens that begin it.
"""

import json
import re
from collections.abc import Mapping

import llguidance

from actors.core.constraint import Constraint, ConstraintKind
from runtime.structured.tags import tags_grammar

WHITESPACE = r"[\x20\x0A\x0D\x09]{1,20}"
"""Of JSON, unless a client says otherwise: bounded, so that no answer is whitespace to its end."""
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
            return _free(tags_grammar(json.loads(constraint.text), special_tokens))


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


def _json_grammar(constraint: Constraint) -> str:
    schema = json.loads(constraint.text)
    if schema is True:
        schema = {}
    if not isinstance(schema, dict):
        raise ValueError("the schema must be an object")
    if constraint.closed_objects:
        schema = _closed(schema)
    pattern = constraint.whitespace_pattern
    if pattern is None and constraint.any_whitespace:
        pattern = WHITESPACE
    options: dict[str, object] = {"whitespace_flexible": constraint.any_whitespace}
    if pattern is not None:
        options["whitespace_pattern"] = pattern
    own = schema.get("x-guidance")
    schema = {**schema, "x-guidance": {**(own if isinstance(own, dict) else {}), **options}}
    return f"start: %json {json.dumps(schema)}{FREE_TOKENS}"


def _closed(schema: object) -> object:
    """The schema with no further properties in any object whose properties it names."""
    if isinstance(schema, list):
        return [_closed(each) for each in schema]
    if not isinstance(schema, Mapping):
        return schema
    closed = {name: _closed(each) for name, each in schema.items()}
    if "properties" in closed and "additionalProperties" not in closed:
        closed["additionalProperties"] = False
    return closed
