"""Parameters of policies, routers and predictors after their name: `KEY=VALUE,KEY=VALUE`."""

import inspect
import math
import re
from collections.abc import Callable
from typing import TypeVar, get_type_hints

from sundog.actors.core.config import ConfigError
from sundog.actors.core.names import did_you_mean

T = TypeVar("T")
PART = re.compile(r"(?:\\.|[^,\\])+")
WHOLE = re.compile(r"[+-]?\d+")
TRUTH = {"true": True, "false": False}
WORDS = {int: "a whole number", float: "a number", bool: "true or false"}


def arguments_of(what: str, make: Callable[..., object], text: str) -> dict[str, object]:
    """Parse the parameters of a policy or router: KEY=VALUE, separated by commas.

    A comma or backslash within a value is escaped by a backslash. The type of a value is that of the policy's
    field, or, without an annotation, the one its text looks like.
    """
    known, hints = list(_parameters(make)), _hints(make)
    values: dict[str, object] = {}
    for part in PART.findall(text):
        key, equals, value = part.partition("=")
        if not (equals and key):
            raise ConfigError(f"{what}: {part!r} is not KEY=VALUE")
        if key not in known:
            hint = did_you_mean(key, known) + f" Known: {', '.join(known) or 'none'}."
            raise ConfigError(f"{what} has no parameter {key}.{hint}")
        if key in values:
            raise ConfigError(f"{what}: {key} is given twice")
        values[key] = _value(what, key, re.sub(r"\\(.)", r"\1", value), hints.get(key))
    return values


def _parameters(make: Callable[..., object]) -> dict[str, inspect.Parameter]:
    parameters = inspect.signature(make).parameters.values()
    return {p.name: p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}


def constructed(what: str, make: Callable[..., T], text: str) -> T:
    """Construct the policy or router with the parameters of the text."""
    values = arguments_of(what, make, text)
    try:
        return make(**values)
    except BaseException as error:
        reason = str(error) if isinstance(error, TypeError | ValueError) else repr(error)
        needed = [name for name, p in _parameters(make).items() if p.default is p.empty]
        missing = [name for name in needed if name not in values]
        if missing:
            reason = f"{missing[0]} has no default: give it as {missing[0]}=VALUE after the name and a colon"
        raise ConfigError(f"{what}: {' '.join(reason.split())}") from error


def _hints(make: object) -> dict[str, object]:
    try:
        return get_type_hints(make) | get_type_hints(getattr(make, "__init__", make))
    except Exception:  # noqa: BLE001  # annotations are code, and a user's
        return {}


def _value(what: str, key: str, text: str, kind: object) -> object:
    number = _number(text)
    if number is not None and math.isnan(number):
        raise ConfigError(f"{what}: {key} is {text!r}: it must be a number")
    if kind is str:
        return text
    if kind in (int, float, bool):
        value = TRUTH.get(text.lower()) if kind is bool else number
        if value is None or (kind is int and not isinstance(value, int)):
            raise ConfigError(f"{what}: {key} is {text!r}: it must be {WORDS[kind]}")
        return value
    if number is not None:
        return number
    return TRUTH.get(text.lower(), text)


def _number(text: str) -> int | float | None:
    try:
        return int(text) if WHOLE.fullmatch(text) else float(text)
    except ValueError:
        return None
