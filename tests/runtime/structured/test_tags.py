"""Structural tags and schemas hold the very texts that vLLM's default backend holds."""

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("llguidance", reason="the extra for structured output is not installed")

import llguidance

from actors.core.params.sampling import Constraint, ConstraintKind
from runtime.serve import EMBEDDED_MODEL
from runtime.structured.text import closed, grammar_of

CASES = [json.loads(line) for line in Path(__file__).with_name("xgrammar.jsonl").read_text().splitlines()]
"""What `_is_grammar_accept_string` of xgrammar 0.2.8 said of these texts."""
TOKENIZER = llguidance.LLTokenizer((EMBEDDED_MODEL / "tokenizer.json").read_text(), eos_token=2)
SPECIAL = frozenset({"<|bos|>", "<|end|>", "<|user|>", "<|assistant|>", "<|system|>", "<|pad|>"})
TEXT = {"type": "any_text"}


def constraint(case: dict[str, Any]) -> Constraint:
    if "format" in case:
        return Constraint(ConstraintKind.STRUCTURAL_TAG, json.dumps({"format": case["format"]}))
    return Constraint(ConstraintKind.JSON, json.dumps(case["schema"]))


def holds(case: dict[str, Any], tokens: list[int]) -> bool:
    """Whether the answer may be these tokens."""
    matcher = llguidance.LLMatcher(TOKENIZER, grammar_of(constraint(case), SPECIAL), log_level=0)
    assert not matcher.is_error(), matcher.get_error()
    return bool(matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting())


def in_bytes(text: str) -> list[int]:
    return [token for byte in text.encode() for token in TOKENIZER.tokenize_bytes(bytes([byte]))]


@pytest.mark.parametrize("case", CASES, ids=[str(number) for number in range(len(CASES))])
def test_the_same_texts_are_held_as_by_xgrammar(case: dict[str, Any]) -> None:
    """Byte by byte, and in the tokens that a model would take."""
    for spell in (in_bytes, TOKENIZER.tokenize_str):
        found = {text: holds(case, spell(text)) for text in (*case["accepted"], *case["refused"])}
        assert found == {**dict.fromkeys(case["accepted"], True), **dict.fromkeys(case["refused"], False)}


def test_the_recorded_cases_say_yes_and_no() -> None:
    """Of every kind of format: a file of refusals alone would prove nothing."""
    kinds = {case["format"]["type"] for case in CASES if "format" in case}
    assert len(kinds) >= 14 and sum(len(case["accepted"]) for case in CASES) > 80
    assert sum(len(case["refused"]) for case in CASES) > 60


@pytest.mark.parametrize(
    ("form", "says"),
    [
        ({"type": "any_tokens"}, "any_tokens"),
        ({"type": "json_schema", "json_schema": {}, "style": "glm_xml"}, "glm_xml"),
        ({"type": "json_schema", "json_schema": {}, "any_order": True}, "any_order"),
        ({"type": "any_text", "max_tokens": 3}, "max_tokens"),
        ({"type": "plus", "content": TEXT}, "plus"),
        ({"type": "sequence", "elements": [TEXT, {"type": "json_schema", "json_schema": {}}]}, "any_text"),
        ({"type": "tag", "begin": "", "content": TEXT, "end": ""}, "end"),
        ({"type": "tag", "begin": 3, "content": TEXT, "end": "x"}, "begin"),
        ({"type": "triggered_tags", "triggers": ["a", "ab"], "tags": [{"begin": "abc"}]}, "triggers"),
        ({"type": "dispatch", "rules": [["a", TEXT]]}, "free text"),
        ({"type": "token", "token": "<|nobody|>"}, "<|nobody|>"),
        ({"type": "repeat", "min": 2, "max": -2, "content": TEXT}, "free text"),
        ({"type": "or", "elements": []}, "elements"),
        ({"type": "qwen_xml_parameter", "json_schema": {"type": "string"}}, "properties"),
        ({"type": []}, "type"),
        ("any_text", "format"),
        (None, "format"),
    ],
)
def test_what_cannot_be_said_is_refused_by_name(form: Any, says: str) -> None:
    """In one line, whatever the type of what was sent."""
    with pytest.raises(ValueError, match=says.replace("|", r"\|")):
        grammar_of(constraint({"format": form}), SPECIAL)


def test_a_special_token_is_said_by_its_token_alone() -> None:
    """As a trigger, an end, in fixed text, and by its number."""
    ids = {name: id_of(name) for name in ("<|user|>", "<|assistant|>")}
    tag = {"type": "tag", "begin": "<|user|>x", "content": TEXT, "end": "<|assistant|>"}
    said = [ids["<|user|>"], *in_bytes("xyz"), ids["<|assistant|>"]]
    assert holds({"format": tag}, said)
    assert not holds({"format": tag}, in_bytes("<|user|>xyz<|assistant|>"))
    triggered = {"type": "triggered_tags", "triggers": ["<|user|>"], "tags": [tag]}
    assert holds({"format": triggered}, [*in_bytes("so "), *said, *in_bytes("!")])
    assert not holds({"format": triggered}, said[:-1])
    numbered = {"type": "token", "token": ids["<|user|>"]}
    assert holds({"format": {**tag, "begin": numbered}}, said[:1] + said[2:])


def id_of(name: str) -> int:
    added = json.loads((EMBEDDED_MODEL / "tokenizer.json").read_text())["added_tokens"]
    found: int = next(each["id"] for each in added if each["content"] == name)
    return found


def test_only_an_object_that_stands_alone_is_closed() -> None:
    """Names of properties and constants are no schemas, and what is said stays."""
    named = {"properties": {"properties": {"const": {"properties": 1}}}}
    assert closed(named)["properties"] == named["properties"]
    for said in (True, False, {"type": "integer"}):
        schema = {"type": "object", "properties": {}, "additionalProperties": said}
        assert closed(schema) == schema
    parts = [{"type": "object", "properties": {name: {}}} for name in "ab"]
    assert closed({"allOf": parts}) == {"allOf": parts}
    every = closed({"allOf": parts}, closes_all=True)["allOf"]
    assert isinstance(every, list) and all(part["additionalProperties"] is False for part in every)
    deep: dict[str, Any] = {"type": "integer"}
    for _ in range(50):
        deep = {"type": "object", "properties": {"x": deep}}
    assert json.dumps(closed(deep)).count('"additionalProperties": false') == 50


def test_a_deep_answer_may_be_indented() -> None:
    """And none is white space to its end."""
    schema: dict[str, Any] = {"type": "integer"}
    value: Any = 1
    for _ in range(16):
        schema, value = {"type": "array", "items": schema}, [value]
    assert holds({"schema": schema}, in_bytes(json.dumps(value, indent=4)))
    for blanks in (" " * 21, "\n" + " " * 65, "\n" * 21):
        assert not holds({"schema": schema}, in_bytes("[" + blanks + json.dumps(value)[1:]))
