"""Options as keyword arguments, with the checks and errors of the command line."""

from collections.abc import Collection, Mapping, Sequence
from pathlib import PurePath
from typing import Any

from sundog.actors.config import ConfigError
from sundog.actors.core.names import did_you_mean
from sundog.options.engine import EngineOptions
from sundog.options.row import OptionRow, rows
from sundog.options.simulation import LoadOptions, ReadingOptions, TargetOptions, TermsOptions

RECORDS = (TargetOptions, ReadingOptions, LoadOptions, TermsOptions, EngineOptions)


def records_of(
    given: Mapping[str, object], records: Sequence[type] = RECORDS, without: Collection[str] = ()
) -> tuple[Any, ...]:
    """Return the records of options; rows named in `without` are refused, and keep their defaults.

    Raises:
        ConfigError: An option does not exist, or does not take the value.
    """
    known = {row.name: row for record in records for row in rows(record) if row.name not in without}
    values: dict[str, object] = {}
    for name, value in given.items():
        if name not in known:
            raise ConfigError(f"there is no option {name}.{did_you_mean(name, known)}")
        if value is not None:
            values[name] = taken(known[name], value)
    found = []
    for record in records:
        make: Any = record
        found.append(make(**{row.name: values[row.name] for row in rows(record) if row.name in values}))
    return tuple(found)


def taken(row: OptionRow, value: object) -> object:
    """Return the checked value; raises ConfigError that names the option as Python spells it.

    An option that may be given several times takes a list, or a text with a plus between two values. A path
    object counts as its text.
    """
    try:
        if row.many:
            several = value if isinstance(value, list | tuple) else str(value).split("+")
            return tuple([row.kind.take(_plain(each)) for each in several])
        return row.kind.take(_plain(value))
    except ValueError as error:
        raise ConfigError(f"{row.name} is {value!r}: {error}") from None


def path_of(name: str, value: object) -> str:
    """Return a path, a text or a path object, as text.

    Raises:
        ConfigError: It is neither, or empty; the error names the argument.
    """
    if not isinstance(value, str | PurePath):
        raise ConfigError(f"{name} is of type {type(value).__name__}: give a path, as a text or a Path")
    if not str(value):
        raise ConfigError(f"{name} is empty: give a path")
    return str(value)


def _plain(value: object) -> object:
    return str(value) if isinstance(value, PurePath) else value
