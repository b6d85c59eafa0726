"""`config.toml`: the options of a run, to repeat it from any folder.

Law: `--config` restores what `kept_options` records. A path is relative to the file; an unknown option or
value is refused with the file's name. A Python file that it names is run only if the command line names it,
too.
"""

import os
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click

from sundog.actors.config import ConfigError
from sundog.actors.core.names import did_you_mean
from sundog.options.row import AnyText, OptionRow, rows
from sundog.options.takes import PROGRAMS, Command

Decorated = TypeVar("Decorated", bound=Callable[..., Any])

TRACE = OptionRow(kind=AnyText("TRACE", is_path=True), help="What was replayed.", name="trace", flag="TRACE")
"""Argument TRACE of the command line, and key of the file."""
ARGUMENTS = {
    "trace": TRACE,
    "url": OptionRow(kind=AnyText("URL"), help="URL of the measured server.", name="url", flag="URL"),
}


def config_option(body: Decorated) -> Decorated:
    """Let a command take options from a file; the command line overrides them."""
    return click.option(
        "--config",
        type=click.Path(path_type=Path),
        multiple=True,
        is_eager=True,
        expose_value=False,
        callback=_take,
        metavar="FILE",
        help="Take options, and the trace, from a run's config.toml.",
    )(body)


def only_file(paths: Sequence[Path]) -> Path | None:
    """Return the file that --config names, if any; raises ConfigError for two, as vLLM does."""
    if len(paths) > 1:
        first, second, *_ = paths
        raise ConfigError(
            f"--config is given twice, {first} and {second}: give one file, and further options beside it"
        )
    return paths[0] if paths else None


def _take(context: click.Context, _option: click.Parameter, paths: Sequence[Path]) -> None:
    path = only_file(paths)
    if path is None:
        return
    if path.suffix in (".yaml", ".yml"):
        raise ConfigError(
            f"--config is {path}: give a run's config.toml; YAML is for `sundog serve --config`"
        )
    options = read_options(path, rows_of(context.command))
    context.meta[PROGRAMS] = {name: value for name, value in options.items() if _is_program(value)}
    context.default_map = {**(context.default_map or {}), **options}


def _is_program(value: object) -> bool:
    return isinstance(value, str) and re.search(r"\.py(?![\w.])", value) is not None


def rows_of(command: click.Command) -> dict[str, OptionRow]:
    """Return the rows that a file may set for this command."""
    own = command.rows if isinstance(command, Command) else {}
    rows = {name: row for name, row in own.items() if row.kept}
    taken = {p.name for p in command.params}
    return rows | {name: row for name, row in ARGUMENTS.items() if name in taken}


def read_options(path: Path, rows: Mapping[str, OptionRow]) -> dict[str, object]:
    """Return the checked options in the file; raises ConfigError that names the file and the key."""
    from sundog.sim.record.run_directory import read_config

    given = read_config(path)
    for name in given:
        if name not in rows:
            raise ConfigError(f"{path}: {name} is no option.{did_you_mean(name, rows)}")
    return {name: from_file(rows[name], value, path) for name, value in given.items()}


def from_file(row: OptionRow, value: object, path: Path) -> object:
    """Return the option's value from the file's; a path in it is relative to the file."""
    taken = row.take_all(value, str(path))
    if not isinstance(taken, str) or not isinstance(row.kind, AnyText) or not row.kind.is_path:
        return taken
    file, rest = _split(taken)
    beside = path.parent / Path(file).expanduser()
    if row is TRACE or file.startswith(("./", "../")) or beside.exists():
        return os.path.normpath(beside) + rest
    return taken


def from_here(row: OptionRow, value: object, folder: Path) -> object:
    """Return a value of the `config.toml` in `folder`, with a path made relative to the current folder."""
    if not isinstance(value, str) or not isinstance(row.kind, AnyText) or not row.kind.is_path:
        return value
    file, rest = _split(value)
    place = folder / file
    return os.path.relpath(place) + rest if place.exists() else value


def kept_options(directory: str | Path, without: Collection[str] = ()) -> dict[str, object]:
    """Return the options of the running command, to be written to `config.toml` in that directory.

    Omitted: places of results, options without effect on them, options without value or default, and the
    equivalent ones in `without`.
    """
    context = click.get_current_context()
    given = (
        (row, context.params[name]) for name, row in rows_of(context.command).items() if name not in without
    )
    return _kept(given, Path(directory))


def recorded(records: Iterable[object], trace: str, directory: Path) -> dict[str, object]:
    """Return the same options for a run without a command line, from its records of options."""
    given = ((row, getattr(record, row.name)) for record in records for row in rows(type(record)) if row.kept)
    return _kept([(TRACE, trace), *given], directory)


def _kept(given: Iterable[tuple[OptionRow, object]], folder: Path) -> dict[str, object]:
    return {row.name: to_file(row, value, folder) for row, value in given if value not in (None, ())}


def to_file(row: OptionRow, value: object, folder: Path) -> object:
    """Return the value with a path in it made relative to the folder, if possible."""
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
    """Return the file and the rest of a text, for policies (`FILE.py:NAME`) and GPUs (`FILE.toml:LINK`)."""
    found = re.match(r"(.+?\.(?:py|toml))(:.*)?$", text, re.DOTALL)
    return (found[1], found[2] or "") if found else (text, "")
