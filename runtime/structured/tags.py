"""Structural tags: free text in which some beginnings oblige to a schema and an end, such as tool calls.

Read in both forms that vLLM reads: `structures` with `triggers`, and a `format` of type `triggered_tags`
whose tags hold a `json_schema`. Other formats are refused by name.
"""

from collections.abc import Mapping
from typing import cast

from llguidance import StructTag


def tags_grammar(spec: object, special_tokens: frozenset[str]) -> str:
    """The grammar of a structural tag; raises ValueError for what is none.

    A trigger like `<name>` that is among `special_tokens` is that token, any other is text.
    """
    if not isinstance(spec, Mapping):
        raise ValueError("a structural tag must be an object")
    triggers, tags = _legacy(spec) if "structures" in spec else _triggered(spec.get("format"))
    if not triggers or not all(isinstance(trigger, str) and trigger for trigger in triggers):
        raise ValueError("triggers must be a list of texts, none of them empty")
    if not tags:
        raise ValueError("a structural tag needs at least one tag")
    found = [_tag(begin, schema, end, cast(list[str], triggers)) for begin, schema, end in tags]
    looks_special = {
        tag.trigger for tag in found if tag.trigger.startswith("<") and tag.trigger.endswith(">")
    }
    is_special = bool(looks_special) and looks_special <= special_tokens
    return StructTag.to_grammar(found, assume_special=is_special)


def _legacy(spec: Mapping[str, object]) -> tuple[list[object], list[tuple[object, object, object]]]:
    structures = _list(spec, "structures")
    tags = [(each.get("begin"), each.get("schema"), each.get("end")) for each in _objects(structures)]
    return _list(spec, "triggers"), tags


def _triggered(form: object) -> tuple[list[object], list[tuple[object, object, object]]]:
    if not isinstance(form, Mapping):
        raise ValueError('a structural tag needs "structures" and "triggers", or a "format"')
    if form.get("type") != "triggered_tags":
        raise ValueError(f"a format of type {form.get('type')!r} is not supported: use triggered_tags")
    for name in ("at_least_one", "stop_after_first"):
        if form.get(name):
            raise ValueError(f"{name} is not supported: leave it out")
    tags = []
    for tag in _objects(_list(form, "tags")):
        content = tag.get("content")
        if not isinstance(content, Mapping) or content.get("type") != "json_schema":
            raise ValueError("the content of a tag must be of type json_schema")
        tags.append((tag.get("begin"), content.get("json_schema"), tag.get("end")))
    return _list(form, "triggers"), tags


def _list(spec: Mapping[str, object], name: str) -> list[object]:
    value = spec.get(name)
    if not isinstance(value, list):
        raise ValueError(f"{name} must be a list")
    return value


def _objects(values: list[object]) -> list[Mapping[str, object]]:
    if not all(isinstance(value, Mapping) for value in values):
        raise ValueError("each tag must be an object")
    return cast(list[Mapping[str, object]], values)


def _tag(begin: object, schema: object, end: object, triggers: list[str]) -> StructTag:
    if not (isinstance(begin, str) and isinstance(end, str)):
        raise ValueError("a tag's begin and end must be text")
    if not isinstance(schema, dict):
        raise ValueError(f"the schema of the tag {begin!r} must be an object")
    trigger = next((each for each in triggers if begin.startswith(each)), None)
    if trigger is None:
        raise ValueError(f"no trigger begins the tag {begin!r}")
    return StructTag(trigger=trigger, begin=begin, grammar=schema, end=end)
