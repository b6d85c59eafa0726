"""Reading the formats of structural tags: the fields of JSON objects, or a ValueError that names them."""

import json
from collections.abc import Mapping
from typing import cast

Form = Mapping[str, object]
Ends = tuple[str, ...]
"""One of these follows, and belongs to what is written; none where it is empty."""


def begins(form: Form) -> str | None:
    """The text that something surely begins with."""
    begin = form.get({"const_string": "value", "tag": "begin"}.get(str(form.get("type")), ""))
    return begin if isinstance(begin, str) and begin else None


def refuse(form: Form, *names: str) -> None:
    for name in names:
        if form.get(name) not in (None, False, []):
            raise ValueError(f"{name} = {json.dumps(form[name])[:40]} is not supported: leave it out")


def text_of(form: Form, name: str, least: str = "") -> str:
    value = form.get(name)
    if not isinstance(value, str) or len(value) < len(least):
        raise ValueError(f"{name} must be a text{' that is not empty' if least else ''}")
    return value


def texts_of(form: Form, name: str) -> Ends:
    value = form.get(name) or []
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        raise ValueError(f"{name} must be a list of texts")
    return tuple(value)


def forms_of(form: Form, name: str) -> list[Form]:
    value = form.get(name)
    if not isinstance(value, list) or not value or not all(isinstance(each, Mapping) for each in value):
        raise ValueError(f"{name} must be a list of objects, at least one")
    return cast(list[Form], value)
