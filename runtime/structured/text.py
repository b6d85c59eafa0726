"""From a constraint to the grammar that llguidance reads. Text alone: no tokenizer, no model."""

import json
from collections.abc import Mapping

import llguidance

from actors.core.constraint import Constraint, ConstraintKind
from runtime.structured.tags import tags_grammar

WHITESPACE = r"[\x20\x0A\x0D\x09]{1,20}"
"""Of JSON, unless a client says otherwise: bounded, so that no answer is whitespace to its end."""


def grammar_of(constraint: Constraint, special_tokens: frozenset[str] = frozenset()) -> str:
    """The grammar's text; raises ValueError for what is none.

    `special_tokens` are those of the tokenizer, which structural tags may begin with.
    """
    match constraint.kind:
        case ConstraintKind.JSON:
            return _json_grammar(constraint)
        case ConstraintKind.REGEX:
            return llguidance.LLMatcher.grammar_from_regex(constraint.text)
        case ConstraintKind.CHOICE:
            choices = json.loads(constraint.text)
            # One terminal: as a rule, each choice would be an item of the parser's, which has 2,000 at most.
            words = " | ".join(json.dumps(choice) for choice in choices)
            return llguidance.LLMatcher.grammar_from_lark(f"start: CHOICE\nCHOICE: {words}\n")
        case ConstraintKind.GRAMMAR:
            return llguidance.grammar_from("grammar", constraint.text)
        case ConstraintKind.STRUCTURAL_TAG:
            return tags_grammar(json.loads(constraint.text), special_tokens)


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
    return llguidance.LLMatcher.grammar_from_json_schema(
        json.dumps(schema),
        overrides={
            "whitespace_flexible": constraint.any_whitespace,
            **({"whitespace_pattern": pattern} if pattern is not None else {}),
        },
    )


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
