"""Options as keyword arguments: by the table of the command line, with its errors."""

from collections.abc import Mapping, Sequence
from typing import Any

from sundog.actors.config import ConfigError
from sundog.actors.core.names import did_you_mean
from sundog.options.engine import EngineOptions
from sundog.options.row import OptionRow, rows
from sundog.options.simulation import LoadOptions, ReadingOptions, TargetOptions, TermsOptions

RECORDS = (TargetOptions, ReadingOptions, LoadOptions, TermsOptions, EngineOptions)


def records_of(given: Mapping[str, object], records: Sequence[type] = RECORDS) -> tuple[Any, ...]:
    """Return the records of options.

    Raises:
        ConfigError: An option does not exist, or does not take the value.
    """
    known = {row.name: row for record in records for row in rows(record)}
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
    """Return the value as the option takes it; raises ConfigError that names the option as Python spells it.

    An option that may be given often takes a list, or a text with a plus between two values.
    """
    try:
        if row.many:
            several = value if isinstance(value, list | tuple) else str(value).split("+")
            return tuple([row.kind.take(each) for each in several])
        return row.kind.take(value)
    except ValueError as error:
        raise ConfigError(f"{row.name} is {value!r}: {error}") from None
