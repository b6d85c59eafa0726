"""Rows of the table of options, and the kinds of values that they take.

Each kind of value takes a text or a value of TOML. Law: its result is finite, within its bounds and of its
type. A wrong value raises ValueError that describes valid ones ("give a whole number from 1 to 64"); the row
adds the option's name.
"""

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import field, fields, replace
from functools import cache
from typing import Any, Protocol, TypeVar

from sundog.actors.config import ConfigError
from sundog.actors.core.records import dataclass


class ValueKind(Protocol):
    """Kind of an option's values."""

    @property
    def metavar(self) -> str:
        """Placeholder of the value in `--help`."""
        ...

    def take(self, value: object) -> object:
        """Return the checked value; ValueError describes valid values."""
        ...


@dataclass(frozen=True, slots=True)
class Whole:
    """Whole number from `least` to `most`, both included."""

    least: int
    most: int
    metavar: str = "N"

    def take(self, value: object) -> int:
        number = None
        if isinstance(value, int) and not isinstance(value, bool):
            number = value
        elif isinstance(value, str):
            with suppress(ValueError):
                number = int(value)
        if number is None or not self.least <= number <= self.most:
            raise ValueError(f"give a whole number from {self.least:,} to {self.most:,}")
        return number


@dataclass(frozen=True, slots=True)
class Real:
    """Finite number from `least` to `most`; `above` and `below` exclude the bound."""

    least: float
    most: float
    above: bool = False
    below: bool = False
    metavar: str = "X"

    def take(self, value: object) -> float:
        number = math.nan
        if isinstance(value, int | float | str) and not isinstance(value, bool):
            with suppress(ValueError, OverflowError):
                number = float(value)
        large_enough = number > self.least if self.above else number >= self.least
        small_enough = number < self.most if self.below else number <= self.most
        if not (large_enough and small_enough):
            first = f"above {self.least:,.12g}" if self.above else f"from {self.least:,.12g}"
            last = f"to below {self.most:,.12g}" if self.below else f"to {self.most:,.12g}"
            raise ValueError(f"give a number {first} {last}")
        return number


@dataclass(frozen=True, slots=True)
class OneOf:
    """One of a few words."""

    words: Sequence[str]

    @property
    def metavar(self) -> str:
        return "|".join(self.words)

    def take(self, value: object) -> str:
        if value not in self.words:
            raise ValueError(f"give one of {', '.join(self.words)}")
        return str(value)


@dataclass(frozen=True, slots=True)
class AnyText:
    """Non-empty text; `is_path` if it may name a file (see `sundog.options.config_file`)."""

    metavar: str = "TEXT"
    is_path: bool = False

    def take(self, value: object) -> str:
        if not isinstance(value, str) or not value.strip() or "\0" in value:
            raise ValueError("give a text that is not empty")
        return value


@dataclass(frozen=True, slots=True)
class Parsed:
    """Text that `parse` accepts; `parse` raises ValueError for others."""

    parse: Callable[[str], object]
    metavar: str

    def take(self, value: object) -> str:
        if not isinstance(value, str):
            raise ValueError(f"give a text like {self.metavar!r}")
        self.parse(value)
        return value


PICTURES = (".svg", ".pdf", ".png")


def picture_format(name: str) -> str:
    """Return the suffix of a picture's name; raises ValueError for an unsupported one."""
    ending = name[name.rfind(".") :].lower()
    if ending not in PICTURES:
        raise ValueError(f"name it {', '.join(PICTURES)}")
    return ending


@dataclass(frozen=True, slots=True)
class Switch:
    """Switch: `--name`, and with `pair` also `--no-name`."""

    pair: bool = True
    metavar: str = ""

    def take(self, value: object) -> bool:
        if isinstance(value, bool):
            return value
        words = {"true": True, "false": False, "on": True, "off": False, "yes": True, "no": False}
        if not isinstance(value, str) or value.lower() not in words:
            raise ValueError("give true or false")
        return words[value.lower()]


T = TypeVar("T")

COMMON = "Options"
"""Section of the most common options, which `--help` shows; `--help-all` shows the others, too."""
RECORDING = "Recording"
SCHEDULER, ENGINE = "scheduler", "engine"
"""Parts of the configuration: a row may set the field of its own name in one of them."""


@dataclass(frozen=True, slots=True)
class OptionRow:
    """Option: its names, its kind of values, and the field that it sets."""

    kind: ValueKind
    help: str
    default: object = None
    name: str = ""
    flag: str = ""
    section: str = COMMON
    to: str | None = None
    names: tuple[str, ...] = ()
    kept: bool = True
    many: bool = False
    rare: bool = False
    """Whether the help lists it only under `--set`; docs/options.md has all options."""
    envvar: str | tuple[str, ...] | None = None
    completes: Callable[[], Iterable[str]] | None = None
    """Returns the names that a shell completes. Files are also completed if the value may name one."""
    secret: bool = False
    """True if the value must not be printed."""

    @property
    def spellings(self) -> tuple[str, ...]:
        """Names of the option for click, including the one that switches it off."""
        paired = isinstance(self.kind, Switch) and self.kind.pair
        return (f"{self.flag}/--no-{self.flag[2:]}" if paired else self.flag, *self.names)

    def take(self, value: object, where: str | None = None) -> object:
        """Return the checked value; ConfigError names the option and describes valid values.

        `where` is the source of the value, if not the command line.
        """
        try:
            return self.kind.take(value)
        except ValueError as error:
            name = self.flag if where is None else f"{where}: {self.name}"
            raise ConfigError(f"{name} is {_shown(value)}: {error}") from None

    def take_all(self, value: object, where: str | None = None) -> object:
        """Return the checked value, or a tuple of them for an option that may be given several times."""
        if self.many and isinstance(value, list | tuple):
            return tuple([self.take(each, where) for each in value])
        return self.take(value, where)


def _shown(value: object) -> str:
    text = value if isinstance(value, str) and value and value.isprintable() else repr(value)
    return text if len(text) <= 60 else f"{text[:57]}…"


def option(default: T, kind: ValueKind, help: str, **further: Any) -> T:
    """Return a field that is a row of the table; `sundog.options` describes the remaining arguments."""
    return field(default=default, metadata={"row": OptionRow(kind, help, default, **further)})


def rows(record: type) -> tuple[OptionRow, ...]:
    """Return the rows of a record, in the order of its fields."""
    return _rows(record)


@cache
def _rows(record: type) -> tuple[OptionRow, ...]:
    found = []
    for declared in fields(record):
        row: OptionRow = declared.metadata["row"]
        flag = row.flag or "--" + declared.name.replace("_", "-")
        found.append(replace(row, name=declared.name, flag=flag))
    return tuple(found)


def refuse(
    records: Iterable[object], why: str, but: Collection[str] = (), only: Collection[str] | None = None
) -> None:
    """Raise ConfigError for an option that was given, except those in `but`, or not in `only`.

    The message is the option followed by `why`. An option with its default counts as not given.
    """
    for record in records:
        for row in rows(type(record)):
            is_meant = row.name not in but and (only is None or row.name in only)
            if is_meant and getattr(record, row.name) != row.default:
                raise ConfigError(f"{row.flag} {why}")


def spelled(record: object, without: Collection[str] = ()) -> Iterator[str]:
    """Yield the options of a record as a command line, without defaults and those in `without`."""
    for row in rows(type(record)):
        value = getattr(record, row.name)
        if value == row.default or row.name in without:
            continue
        if isinstance(row.kind, Switch):
            yield row.flag if value else f"--no-{row.flag[2:]}"
        else:
            for each in value if row.many else [value]:
                yield from (row.flag, str(each))
