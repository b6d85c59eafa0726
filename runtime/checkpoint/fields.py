"""Fields of a JSON file as a dataclass: declared ones are checked, others ignored.

Uses the standard library alone, so that a model can be opened with only torch and transformers installed.
"""

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from types import NoneType, UnionType
from typing import TypeVar, Union, get_args, get_origin, get_type_hints

T = TypeVar("T")
KINDS: Mapping[type, str] = {
    str: "a string",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    list: "a list",
    dict: "an object",
    NoneType: "null",
}


class FieldError(ValueError):
    """Field of the wrong type."""


def fields_of(kind: type[T], values: Mapping[str, object]) -> T:
    """Return a dataclass of these values; FieldError names the first field of a wrong type.

    A whole number may be written as 8.0, and may stand where any number is allowed; null is allowed only
    where None is.
    """
    made: T = _dataclass(kind, values, "")
    return made


def _dataclass(kind: type[T], values: Mapping[str, object], at: str) -> T:
    hints = get_type_hints(kind)
    assert is_dataclass(kind)
    given = {
        field.name: _checked(hints[field.name], values[field.name], f"{at}{field.name}")
        for field in fields(kind)
        if field.name in values
    }
    return kind(**given)


def _checked(hint: object, value: object, at: str) -> object:
    kinds = _kinds(hint)
    for kind in kinds:
        origin = get_origin(kind) or kind
        if origin is object:
            return value
        if is_dataclass(origin) and isinstance(origin, type) and isinstance(value, dict):
            return _dataclass(origin, value, f"{at}.")
        if origin is int and isinstance(value, float) and value.is_integer():
            return int(value)
        if origin is float and isinstance(value, int) and not isinstance(value, bool):
            return float(value)
        if isinstance(origin, type) and isinstance(value, origin) and not _is_other(origin, value):
            return _elements(kind, value, at)
    raise FieldError(f"{at} is {value!r}; it should be {' or '.join(map(_named, kinds))}")


def _is_other(origin: type, value: object) -> bool:
    return isinstance(value, bool) and origin is not bool


def _elements(kind: object, value: object, at: str) -> object:
    given = get_args(kind)
    if isinstance(value, list) and given:
        return [_checked(given[0], each, f"{at}.{number}") for number, each in enumerate(value)]
    if isinstance(value, dict) and given:
        return {name: _checked(given[1], each, f"{at}.{name}") for name, each in value.items()}
    return value


def _kinds(hint: object) -> tuple[object, ...]:
    return get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)


def _named(kind: object) -> str:
    origin = get_origin(kind) or kind
    return KINDS[origin] if isinstance(origin, type) and origin in KINDS else KINDS[dict]
