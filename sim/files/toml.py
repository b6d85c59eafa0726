"""TOML files, read and written in one way; errors name the file, and the line or the key."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from sundog.actors.core.config import ConfigError
from sundog.actors.core.names import did_you_mean

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

T = TypeVar("T")
Values = dict[str, Any]
UNKNOWN_KEYS = ("extra_forbidden", "unexpected_keyword_argument")
"""pydantic's types of errors for an unknown key, in a model and in a dataclass."""
UNKNOWN_KINDS = ("union_tag_not_found", "union_tag_invalid")
"""pydantic's types of errors for a `kind` that is missing or unknown."""


def read_toml(path: str | Path, kind: type[ConfigError] = ConfigError) -> Values:
    """Read the values of a file; raises `kind` if it cannot be read or is not TOML."""
    try:
        text = Path(path).read_bytes().decode("utf-8")
    except OSError as error:
        raise kind(f"{path} cannot be read: {error.strerror or error}") from None
    except UnicodeDecodeError as error:
        raise kind(f"{path} is not UTF-8: byte {error.start + 1}") from None
    return parse_toml(text, path, kind)


def parse_toml(text: str, path: str | Path, kind: type[ConfigError] = ConfigError) -> Values:
    """Parse the values in the text of a file; the error gives line and column."""
    import tomllib

    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise kind(f"{path} is not TOML: {error}") from None


def checked(
    made: type[T],
    values: Any,
    path: str | Path,
    at: tuple[str, ...] = (),
    kind: type[ConfigError] = ConfigError,
) -> T:
    """Return the values as a pydantic model or dataclass; raises `kind`, which names the first bad key."""
    from pydantic import TypeAdapter, ValidationError

    if is_dataclass(made):  # pydantic leaves out what plain ones have no field for
        names = [field.name for field in fields(made)]
        if strange := [name for name in values if name not in names]:
            place = ".".join((*at, strange[0]))
            missing = [name for name in names if name not in values]
            hint = did_you_mean(strange[0], missing) + _known(names)
            raise kind(f"{path}: {place}: there is no such key.{hint}")
    try:
        return TypeAdapter(made).validate_json(json.dumps(values, default=str), strict=True)
    except ValidationError as error:
        errors = error.errors(include_url=False)
        # A misspelt key explains why another is missing.
        first = next((e for e in errors if e["type"] in UNKNOWN_KEYS), errors[0])
        place = ".".join(str(part) for part in (*at, *first["loc"])) or "the file"
        missing = [str(e["loc"][-1]) for e in errors if e["type"] == "missing"]
        known: list[str] = []
        if first["type"] in UNKNOWN_KEYS:
            known = list(_node_at(made, first["loc"][:-1]).get("properties", {}))
        elif first["type"] in UNKNOWN_KINDS:
            place += ".kind"
            known = list(_node_at(made, first["loc"])["discriminator"]["mapping"])
        raise kind(f"{path}: {place}: {_reason(first, missing, known)}{_known(known)}") from None


def _known(names: Iterable[str]) -> str:
    text = ", ".join(names)
    return f" Known here: {text}." if text else ""


def _node_at(made: Any, place: tuple[int | str, ...]) -> Any:
    """Return the part of the JSON schema that describes what is at this place."""
    from pydantic import TypeAdapter

    schema = TypeAdapter(made).json_schema()
    node: Any = schema
    for part in place:
        node = _resolved(schema, node)
        options = [_resolved(schema, each) for each in node.get("anyOf", node.get("oneOf", [node]))]
        step = next((each for each in options if part in each.get("properties", {})), None)
        tags = node.get("discriminator", {}).get("mapping", {})
        if step is not None:
            node = step["properties"][part]
        elif part in tags:
            node = {"$ref": tags[str(part)]}
        else:
            node = node.get("items", node)
    return _resolved(schema, node)


def _resolved(schema: Any, node: Any) -> Any:
    while "$ref" in node:
        node = schema["$defs"][node["$ref"].rsplit("/", 1)[-1]]
    return node


def _reason(error: "ErrorDetails", missing: list[str], known: list[str]) -> str:
    if error["type"] in UNKNOWN_KEYS:
        return "there is no such key." + did_you_mean(str(error["loc"][-1]), missing)
    if error["type"] in {"missing", "union_tag_not_found"}:
        return "it is missing."
    if error["type"] == "union_tag_invalid":
        tag = str(error["ctx"]["tag"])
        return f"there is no {tag!r}.{did_you_mean(tag, known)}"
    return error["msg"].removeprefix("Value error, ")


def toml_text(values: Mapping[str, object], comment: str) -> str:
    """Return the text of a file: a line of comment, then the values that are not None."""
    import tomli_w

    known = {name: value for name, value in values.items() if value is not None}
    return f"# {comment}\n" + tomli_w.dumps(known)
