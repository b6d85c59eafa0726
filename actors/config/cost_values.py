"""Costs as records: text of `NAME=VALUE,…` that gives their fields, and the bounds of their values."""

from dataclasses import Field, fields, replace
from typing import Any, ClassVar, Protocol, TypeVar

from sundog.actors.core.config import ConfigError

MOST_PROCESSES = 1024


class Costs(Protocol):
    """Record whose fields are seconds, with a default of type float, or numbers of processes."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]
    most_s: ClassVar[float]
    """Largest value of a field of seconds."""


R = TypeVar("R", bound=Costs)


def _wanted(costs: Costs, name: str) -> str:
    if _is_number(costs, name):
        return f"give a whole number from 1 to {MOST_PROCESSES}"
    return f"give seconds from 0 to {costs.most_s:g}"


def _is_number(costs: Costs, name: str) -> bool:
    return isinstance(costs.__dataclass_fields__[name].default, int)


def check_costs(costs: Costs) -> None:
    """Raise ConfigError, which names the field and its bounds, if a value is not within them."""
    for name in [field.name for field in fields(costs)]:
        value = getattr(costs, name)
        least, most = (1, MOST_PROCESSES) if _is_number(costs, name) else (0, costs.most_s)
        if not least <= value <= most:
            raise ConfigError(f"{name} is {value}: {_wanted(costs, name)}")


def parse_costs(text: str, known: R) -> R:
    """Read `request=0.007,response=0.003,processes=2`; fields that are not named stay as `known`.

    Raises:
        ConfigError: A name is unknown or comes twice, or a value is no number of its kind.
    """
    values = dict[str, Any]()
    names = [field.name for field in fields(known)]
    for part in text.split(","):
        name, _, value = part.partition("=")
        if name not in names:
            raise ConfigError(f"{name!r} is unknown: give NAME=VALUE with a name of {', '.join(names)}")
        if name in values:
            raise ConfigError(f"{name} comes twice: give it once")
        try:
            values[name] = int(value) if _is_number(known, name) else float(value)
        except ValueError:
            raise ConfigError(f"{name} is {value!r}: {_wanted(known, name)}") from None
    return replace(known, **values)
