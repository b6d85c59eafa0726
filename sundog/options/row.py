"""The rows of the table of options, and the kinds of values that they take.

Each kind of value takes a text or a value of TOML. Law: what it gives back is finite, within its bounds and
of its type. It refuses with a ValueError that says what would be right ("give a whole number from 1 to 64");
the row knows the option's name and puts it in front.
"""

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from typing import Any, Protocol, TypeVar

from sundog.actors.config import ConfigError


class ValueKind(Protocol):
    """The values of an option."""

    @property
    def metavar(self) -> str:
        """The word behind the option in `--help`."""
        ...

    def take(self, value: object) -> object:
        """The value that `value` stands for; ValueError says what would be right."""
        ...


@dataclass(frozen=True, slots=True)
class Whole:
    """A whole number from `least` to `most`, both included."""

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
    """A finite number from `least` to `most`; `above` and `below` leave the bound itself out."""

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
    """A word out of a few."""

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
    """A text that is not empty; `is_path` if it may name a file (see `sundog.options.config_file`)."""

    metavar: str = "TEXT"
    is_path: bool = False

    def take(self, value: object) -> str:
        if not isinstance(value, str) or not value.strip() or "\0" in value:
            raise ValueError("give a text that is not empty")
        return value


@dataclass(frozen=True, slots=True)
class Parsed:
    """A text that `parse` can read; `parse` raises ValueError for others."""

    parse: Callable[[str], object]
    metavar: str

    def take(self, value: object) -> str:
        if not isinstance(value, str):
            raise ValueError(f"give a text like {self.metavar!r}")
        self.parse(value)
        return value


PICTURES = (".svg", ".pdf", ".png")


def picture_format(name: str) -> str:
    """The ending of a picture's name; raises ValueError if no picture is written so."""
    ending = name[name.rfind(".") :].lower()
    if ending not in PICTURES:
        raise ValueError(f"name it {', '.join(PICTURES)}")
    return ending


@dataclass(frozen=True, slots=True)
class Switch:
    """A kind of option that is on or off: `--name`, and with `pair` also `--no-name`."""

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
"""The section of what most people need, which `--help` shows; `--help-all` shows the others, too."""
RECORDING = "Recording"
SCHEDULER, ENGINE = "scheduler", "engine"
"""The parts of the configuration, one of which may have a field of a row's name."""


@dataclass(frozen=True, slots=True)
class OptionRow:
    """An option: how it is called, what it may be, and where its value goes."""

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
    envvar: str | tuple[str, ...] | None = None

    @property
    def spellings(self) -> tuple[str, ...]:
        """The option's names as click takes them, with the switch that turns it off."""
        paired = isinstance(self.kind, Switch) and self.kind.pair
        return (f"{self.flag}/--no-{self.flag[2:]}" if paired else self.flag, *self.names)

    def take(self, value: object, where: str | None = None) -> object:
        """The value that `value` stands for; ConfigError names the option and what it may be.

        `where` is what the value was read from, if that was not the command line.
        """
        try:
            return self.kind.take(value)
        except ValueError as error:
            name = self.flag if where is None else f"{where}: {self.name}"
            raise ConfigError(f"{name} is {_shown(value)}: {error}") from None

    def take_all(self, value: object, where: str | None = None) -> object:
        """Return what `take` does, or a tuple of it for a list of an option that may be given often."""
        if self.many and isinstance(value, list | tuple):
            return tuple([self.take(each, where) for each in value])
        return self.take(value, where)


def _shown(value: object) -> str:
    text = value if isinstance(value, str) and value and value.isprintable() else repr(value)
    return text if len(text) <= 60 else f"{text[:57]}…"


def option(default: T, kind: ValueKind, help: str, **further: Any) -> T:
    """A field that is a row of the table; `sundog.options` says what each further part of the row is for."""
    return field(default=default, metadata={"row": OptionRow(kind, help, default, **further)})


def rows(record: type) -> list[OptionRow]:
    """The rows of a record, in the order of its fields."""
    found = []
    for declared in fields(record):
        row: OptionRow = declared.metadata["row"]
        flag = row.flag or "--" + declared.name.replace("_", "-")
        found.append(replace(row, name=declared.name, flag=flag))
    return found


def refuse(
    records: Iterable[object], why: str, but: Collection[str] = (), only: Collection[str] | None = None
) -> None:
    """Raise ConfigError for an option that was given, but for those named in `but`, or not in `only`.

    The message is the option and `why`. What has its default was not given.
    """
    for record in records:
        for row in rows(type(record)):
            is_meant = row.name not in but and (only is None or row.name in only)
            if is_meant and getattr(record, row.name) != row.default:
                raise ConfigError(f"{row.flag} {why}")


def spelled(record: object, without: Collection[str] = ()) -> Iterator[str]:
    """The options of a record as a command line gives them, but for defaults and those named in `without`."""
    for row in rows(type(record)):
        value = getattr(record, row.name)
        if value == row.default or row.name in without:
            continue
        if isinstance(row.kind, Switch):
            yield row.flag if value else f"--no-{row.flag[2:]}"
        else:
            for each in value if row.many else [value]:
                yield from (row.flag, str(each))
