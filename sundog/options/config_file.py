"""`config.toml`: the options of a run, to be run again from any folder.

Law: what `kept_options` records, `--config` gives back. A path is recorded relative to the file, and
read so; a key that is no option, or a value that the option does not take, is refused by the file's name.
A file of Python that it names is run only if the command line names it, too.
"""

import os
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import click

from sundog.actors.config import ConfigError
from sundog.actors.core.names import did_you_mean
from sundog.options.row import AnyText, OptionRow, rows
from sundog.options.takes import PROGRAMS, Command

Decorated = TypeVar("Decorated", bound=Callable[..., Any])

TRACE = OptionRow(kind=AnyText("TRACE", is_path=True), help="What was replayed.", name="trace", flag="TRACE")
"""An argument of the command line, and a key of the file."""
ARGUMENTS = {
    "trace": TRACE,
    "url": OptionRow(kind=AnyText("URL"), help="The server that was asked.", name="url", flag="URL"),
}


def config_option(body: Decorated) -> Decorated:
    """Let a command take options from a file; they count where the command line says nothing."""
    return click.option(
        "--config",
        type=click.Path(path_type=Path),
        is_eager=True,
        expose_value=False,
        callback=_take,
        metavar="FILE",
        help="Take options, and the trace, from a run's config.toml.",
    )(body)


def _take(context: click.Context, _option: click.Parameter, path: Path | None) -> None:
    if path is None:
        return
    options = read_options(path, rows_of(context.command))
    context.meta[PROGRAMS] = {name: value for name, value in options.items() if _is_program(value)}
    context.default_map = {**(context.default_map or {}), **options}


def _is_program(value: object) -> bool:
    return isinstance(value, str) and re.search(r"\.py(?![\w.])", value) is not None


def rows_of(command: click.Command) -> dict[str, OptionRow]:
    """The rows that a file may set for this command."""
    own = command.rows if isinstance(command, Command) else {}
    rows = {name: row for name, row in own.items() if row.kept}
    taken = {p.name for p in command.params}
    return rows | {name: row for name, row in ARGUMENTS.items() if name in taken}


def read_options(path: Path, rows: Mapping[str, OptionRow]) -> dict[str, object]:
    """The checked options in the file; raises ConfigError that names the file and the key."""
    from sundog.sim.record.run_directory import read_config

    given = read_config(path)
    for name in given:
        if name not in rows:
            raise ConfigError(f"{path}: {name} is no option.{did_you_mean(name, rows)}")
    return {name: from_file(rows[name], value, path) for name, value in given.items()}


def from_file(row: OptionRow, value: object, path: Path) -> object:
    """The option's value from the file's; a path in it is relative to the file."""
    taken = row.take_all(value, str(path))
    if not isinstance(taken, str) or not isinstance(row.kind, AnyText) or not row.kind.is_path:
        return taken
    file, rest = _split(taken)
    beside = path.parent / Path(file).expanduser()
    if row is TRACE or file.startswith(("./", "../")) or beside.exists():
        return os.path.normpath(beside) + rest
    return taken


def from_here(row: OptionRow, value: object, folder: Path) -> object:
    """Return a value of the config.toml in that folder as a command in the current folder gives it."""
    if not isinstance(value, str) or not isinstance(row.kind, AnyText) or not row.kind.is_path:
        return value
    file, rest = _split(value)
    place = folder / file
    return os.path.relpath(place) + rest if place.exists() else value


def kept_options(directory: str | Path, without: Collection[str] = ()) -> dict[str, object]:
    """Return the options of the running command as the `config.toml` in that directory shall say them.

    Left out: where results go, what changes none of them, what was not given and has no default, and those
    `without` which it says as much.
    """
    context = click.get_current_context()
    given = (
        (row, context.params[name]) for name, row in rows_of(context.command).items() if name not in without
    )
    return _kept(given, Path(directory))


def recorded(records: Iterable[object], trace: str, directory: Path) -> dict[str, object]:
    """Return such options of a run that has no command line of its own, from its records of options."""
    given = ((row, getattr(record, row.name)) for record in records for row in rows(type(record)) if row.kept)
    return _kept([(TRACE, trace), *given], directory)


def _kept(given: Iterable[tuple[OptionRow, object]], folder: Path) -> dict[str, object]:
    return {row.name: to_file(row, value, folder) for row, value in given if value not in (None, ())}


def to_file(row: OptionRow, value: object, folder: Path) -> object:
    """The value with a path in it made relative to the folder, where that can be done."""
    if not isinstance(value, str) or not isinstance(row.kind, AnyText) or not row.kind.is_path:
        return value
    file, rest = _split(value)
    path = Path(file).expanduser()
    if not path.exists():
        return value
    here, there = folder.resolve(), path.resolve()
    if len(os.path.commonpath([here, there])) <= 1:  # Nothing in common but the root.
        return str(there) + rest
    relative = os.path.relpath(there, here)
    return (relative if relative.startswith("..") else f"./{relative}") + rest


def _split(text: str) -> tuple[str, str]:
    """Return the file and what follows it, for policies (`FILE.py:NAME`) and GPUs (`FILE.toml:LINK`)."""
    found = re.match(r"(.+?\.(?:py|toml))(:.*)?$", text, re.DOTALL)
    return (found[1], found[2] or "") if found else (text, "")
