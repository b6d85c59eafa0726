"""One row of the table, and the rows of a record."""

from dataclasses import dataclass, field, fields, replace
from typing import TypeVar

from actors.config import ConfigError
from sundog.options.kinds import Kind, Switch

T = TypeVar("T")

COMMON = "Options"
"""The section of what most people need; every other section comes behind it."""

SCHEDULER, ENGINE = "scheduler", "engine"
"""Which part of the configuration has a field of the same name."""


@dataclass(frozen=True, slots=True)
class Row:
    """An option: how it is called, what it may be, and where its value goes."""

    kind: Kind
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
        """As click takes them, the switch that turns it off included."""
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


def _shown(value: object) -> str:
    text = value if isinstance(value, str) and value and value.isprintable() else repr(value)
    return text if len(text) <= 60 else f"{text[:57]}…"


def option(
    default: T,
    kind: Kind,
    help: str,
    *,
    flag: str = "",
    section: str = COMMON,
    to: str | None = None,
    names: tuple[str, ...] = (),
    kept: bool = True,
    many: bool = False,
    envvar: str | tuple[str, ...] | None = None,
) -> T:
    """A field that is a row of the table; `sundog.options` says what each part is for."""
    row = Row(
        kind=kind,
        help=help,
        default=default,
        flag=flag,
        section=section,
        to=to,
        names=names,
        kept=kept,
        many=many,
        envvar=envvar,
    )
    return field(default=default, metadata={"row": row})


def rows(record: type) -> list[Row]:
    """The rows of a record, in the order of its fields."""
    found = []
    for declared in fields(record):
        row: Row = declared.metadata["row"]
        flag = row.flag or "--" + declared.name.replace("_", "-")
        found.append(replace(row, name=declared.name, flag=flag))
    return found
