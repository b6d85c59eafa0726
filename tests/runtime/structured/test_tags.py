"""Schemas allow exactly the texts that vLLM's default backend allows; tags restrict their contents."""

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("llguidance", reason="the extra for structured output is not installed")

import llguidance

from sundog.actors.core.params.sampling import Constraint, ConstraintKind
from sundog.runtime.serve import EMBEDDED_MODEL
from sundog.runtime.structured.text import closed, grammar_of

CASES = [json.loads(line) for line in Path(__file__).with_name("xgrammar.jsonl").read_text().splitlines()]
"""What `_is_grammar_accept_string` of xgrammar 0.2.8 said of these texts."""
TOKENIZER = llguidance.LLTokenizer((EMBEDDED_MODEL / "tokenizer.json").read_text(), eos_token=2)
SPECIAL = frozenset({"<|bos|>", "<|end|>", "<|user|>", "<|assistant|>", "<|system|>", "<|pad|>"})
TEXT = {"type": "any_text"}


def constraint(case: dict[str, Any]) -> Constraint:
    if "schema" not in case:
        return Constraint(ConstraintKind.STRUCTURAL_TAG, json.dumps(case.get("tag", case)))
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


FLAG = {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"]}
TAG = {"begin": "<f>", "content": {"type": "json_schema", "json_schema": FLAG}, "end": "</f>"}
INTEGER = {"type": "json_schema", "json_schema": {"type": "integer"}}
NUMBER = {"begin": "<fx>", "content": INTEGER, "end": "</fx>"}


def tags(*given: object, **fields: object) -> dict[str, Any]:
    return {"format": {"type": "triggered_tags", "triggers": ["<f"], "tags": [*given], **fields}}


def test_the_recorded_cases_say_yes_and_no() -> None:
    """A file of refusals alone would prove nothing."""
    assert sum(len(case["accepted"]) for case in CASES) > 15 < sum(len(case["refused"]) for case in CASES)


@pytest.mark.parametrize("is_old", [True, False])
def test_a_trigger_obliges_to_one_of_its_tags(is_old: bool) -> None:
    """In both spellings; all other text is free, and there may be any number of tags, whole ones alone."""
    structures = [
        {"begin": tag["begin"], "schema": tag["content"]["json_schema"], "end": tag["end"]}  # type: ignore[index]
        for tag in (TAG, NUMBER)
    ]
    case = {"tag": {"triggers": ["<f"], "structures": structures}} if is_old else tags(TAG, NUMBER)
    for spell in (in_bytes, TOKENIZER.tokenize_str):
        whole = '<f>{"a":true}</f>'
        for text in ("", "a < b", whole, 'x<f>{"a": false}</f> <fx>12</fx>\ny', "<fx>3</fx>" * 3):
            assert holds(case, spell(text)), text
        for text in ("a <f", "<f>no", '<f>{"a":1}</f>', whole[:-1], "<fx>x</fx>", '<f>{"b":true}</f>'):
            assert not holds(case, spell(text)), text


@pytest.mark.parametrize(
    ("form", "says"),
    [
        ({"type": "any_text"}, "any_text"),
        ({"type": "sequence", "elements": []}, "use triggered_tags"),
        (tags(TAG, at_least_one=True)["format"], "at_least_one = true"),
        (tags(TAG, excludes=["x"])["format"], "excludes"),
        (tags()["format"], "tags must be a list"),
        (tags({**TAG, "content": TEXT})["format"], "any_text"),
        (tags({**TAG, "content": {**TAG["content"], "style": "glm_xml"}})["format"], "glm_xml"),  # type: ignore[dict-item]
        (tags({**TAG, "content": {**TAG["content"], "any_order": True}})["format"], "any_order"),  # type: ignore[dict-item]
        (tags({**TAG, "begin": 3})["format"], "begin"),
        (tags({**TAG, "begin": "abc"})["format"], "no triggers"),
        (tags({"begin": "<f>", "end": "x"})["format"], "schema"),
        (tags({**TAG, "begin": "abc"}, triggers=["a", "ab"])["format"], "2 triggers"),
        (tags(TAG, triggers=[])["format"], "no triggers"),
        (tags(TAG, triggers="<f")["format"], "triggers must be"),
        ({"type": []}, "type"),
        ("any_text", "format"),
        (None, "format"),
    ],
)
def test_what_cannot_be_said_is_refused_by_name(form: Any, says: str) -> None:
    """In one line, whatever the type of what was sent."""
    with pytest.raises(ValueError, match=says):
        grammar_of(constraint({"format": form}), SPECIAL)


def test_a_trigger_that_is_a_special_token_is_that_token_alone() -> None:
    """Its letters are text like any other; beside it, or in no brackets, others are refused by name."""
    tag = {**NUMBER, "begin": "<|user|>x", "end": "!"}
    special, user = tags(tag, triggers=["<|user|>"]), id_of("<|user|>")
    assert holds(special, [*in_bytes("so "), user, *in_bytes("x12!")])
    assert not holds(special, [user, *in_bytes("x12")])
    mixed = tags(tag, {**NUMBER, "begin": "<t>x"}, triggers=["<|user|>", "<t>"])
    with pytest.raises(ValueError, match="all be special tokens"):
        grammar_of(constraint(mixed), SPECIAL)
    bare = tags({**NUMBER, "begin": "[CALLS]x"}, triggers=["[CALLS]"])
    with pytest.raises(ValueError, match="CALLS.*cannot be a trigger"):
        grammar_of(constraint(bare), frozenset({"[CALLS]"}))


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
