"""Answers that are either JSON by a schema or a tool call; formats and numbers beyond the library's."""

import json
from typing import Any

import pytest

llguidance = pytest.importorskip("llguidance", reason="the structured extra is not installed")

from sundog.actors.core.params.sampling import Constraint, ConstraintKind  # noqa: E402
from sundog.runtime.serve import EMBEDDED_MODEL  # noqa: E402
from sundog.runtime.structured.text import grammar_of  # noqa: E402

SCHEMA = {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"]}
TOKENS = ("<tool_call>", "</tool_call>")


def tokenizer(*added: str) -> Any:
    """The embedded model's, with further tokens that are not special, as Qwen's marks of calls are."""
    text = json.loads((EMBEDDED_MODEL / "tokenizer.json").read_text())
    most = max([*text["model"]["vocab"].values(), *(each["id"] for each in text["added_tokens"])])
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized", "special"), False)
    text["added_tokens"] += [{"id": most + 1 + at, "content": each} | flags for at, each in enumerate(added)]
    return llguidance.LLTokenizer(json.dumps(text), eos_token=0)


def accepts(parser: str, answer: str, added: tuple[str, ...] = ()) -> bool:
    """Whether all of an answer may be said and may then end."""
    form = {"calls": parser, "names": ["f", "g"], "schema": SCHEMA}
    grammar = grammar_of(Constraint(ConstraintKind.CALLS_OR_JSON, json.dumps(form)), frozenset(added))
    known = tokenizer(*added)
    matcher = llguidance.LLMatcher(known, grammar, log_level=0)
    assert not matcher.is_error(), matcher.get_error()
    tokens = known.tokenize_str(answer, parse_special=True)
    return matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting()


@pytest.mark.parametrize("added", [(), TOKENS], ids=["spelled", "tokens"])
@pytest.mark.parametrize(
    ("answer", "is_right"),
    [
        ('{"a": true}', True),
        ('<tool_call>\n{"name": "f", "arguments": {"x": [1]}}\n</tool_call>', True),
        (
            '<tool_call>{"name": "f", "arguments": {}}</tool_call>\n'
            '<tool_call>{"name": "g", "arguments": {}}</tool_call>',
            True,
        ),
        ('Let me look. <tool_call>{"name": "f", "arguments": {}}</tool_call>', True),
        ('{"a": 1}', False),
        ("Let me look.", False),
        ('<tool_call>{"name": "h", "arguments": {}}</tool_call>', False),
        ('<tool_call>{"name": "f"}</tool_call>', False),
        ('{"a": true}<tool_call>{"name": "f", "arguments": {}}</tool_call>', False),
    ],
)
def test_an_answer_calls_or_has_the_form(added: tuple[str, ...], answer: str, is_right: bool) -> None:
    """Of Qwen's and Hermes' kind, whether the marks are tokens or not; a call may have words before it."""
    assert accepts("hermes", answer, added) == is_right


@pytest.mark.parametrize(
    ("answer", "is_right"),
    [
        ('{"a": false}', True),
        ('{"name": "f", "parameters": {"q": 1}}', True),
        ('{"name": "f", "parameters": {}}; {"name": "g", "parameters": {}}', True),
        ('{"name": "f", "arguments": {}}', False),
    ],
)
def test_a_bare_call_stands_beside_the_form(answer: str, is_right: bool) -> None:
    assert accepts("llama3_json", answer) == is_right


def test_where_no_grammar_can_name_the_mark_the_form_alone_holds() -> None:
    assert accepts("mistral", '{"a": true}')


@pytest.mark.parametrize("form", ["password", "path", "binary", "base64", "regex", "ipvanyaddress"])
def test_a_format_that_is_an_annotation_changes_nothing(form: str) -> None:
    """JSON Schema 2020-12, 7.2.1; a property may be called so, too."""
    schema = {"type": "object", "properties": {"format": {"type": "string", "format": form}}}
    plain = {"type": "object", "properties": {"format": {"type": "string"}}}
    both = [grammar_of(Constraint(ConstraintKind.JSON, json.dumps(each))) for each in (schema, plain)]
    assert both[0] == both[1]


def test_formats_that_the_library_knows_are_kept() -> None:
    schema = json.dumps({"type": "string", "format": "date"})
    assert '"format": "date"' in grammar_of(Constraint(ConstraintKind.JSON, schema))


@pytest.mark.parametrize(
    "schema",
    [
        {"enum": [1, 9007199254740993]},
        {"const": -9007199254740993},
        {"type": "integer", "maximum": 2**63},
        {"type": "object", "properties": {"id": {"const": {"n": [2**60]}}}},
    ],
)
def test_integers_that_would_be_rounded_are_refused(schema: dict[str, Any]) -> None:
    """An answer would be another number: the library keeps numbers of schemas as float64."""
    with pytest.raises(ValueError, match=r"beyond 2\*\*53.*use a string"):
        grammar_of(Constraint(ConstraintKind.JSON, json.dumps(schema)))


def test_the_largest_exact_integers_are_taken() -> None:
    assert grammar_of(Constraint(ConstraintKind.JSON, json.dumps({"enum": [2**53, -(2**53)]})))
