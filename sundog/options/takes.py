"""The table as click's options: a command is given whole records, and `--help` has sections."""

import re
import textwrap
from collections.abc import Callable, Collection, Sequence
from functools import wraps
from pathlib import Path
from typing import Any, TypeVar

import click
from click.core import ParameterSource

from sundog.actors.config import ConfigError
from sundog.options.row import COMMON, OptionRow, Switch, rows

Body = Callable[..., None]
PROGRAMS = "sundog.options: programs"
"""The key in a context's `meta` of the options that a run's file sets to a Python file, with their values."""
SHOWS_ALL = "sundog.options: shows all"
"""The key that is set in a context's `meta` where the help shows every section."""


def given_once(varied: dict[str, Sequence[Any]]) -> dict[str, Sequence[Any]]:
    """Return what is varied; raises ConfigError for an option that has a value on the command line, too."""
    context = click.get_current_context()
    for name in varied:
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            flag = "--" + name.replace("_", "-")
            raise ConfigError(f"{flag} is given, and --vary has {name}, too: leave one of them out")
    return varied


class Option(click.Option):
    """A row of the table on the command line."""

    def __init__(self, row: OptionRow) -> None:
        switch = isinstance(row.kind, Switch)
        super().__init__(
            [row.name, *row.spellings],
            help=row.help,
            default=row.default,
            show_default=not (row.default is None or row.default is False or row.many),
            metavar=None if switch else row.kind.metavar,
            multiple=row.many,
            envvar=row.envvar,
            is_flag=switch,
            type=bool if switch else RowType(row),
        )
        self.row = row


class RowType(click.ParamType):  # type: ignore[type-arg]  # generic in the newest click alone
    """Values as a row takes them."""

    name = "value"

    def __init__(self, row: OptionRow) -> None:
        self._row = row

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> object:
        return self._row.take(value)


class Command(click.Command):
    """A command whose options stand in sections; of several `--help` shows the first, a line an option."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        sections: dict[str, list[click.Option]] = {COMMON: []}
        for parameter in self.get_params(ctx):
            if isinstance(parameter, click.Option):
                section = parameter.row.section if isinstance(parameter, Option) else COMMON
                sections.setdefault(section, []).append(parameter)
        is_short = len(sections) > 1 and not ctx.meta.get(SHOWS_ALL)
        for section in [COMMON] if is_short else sections:
            with formatter.section(section):
                if is_short:
                    _write_short(sections[section], ctx, formatter)
                else:
                    found = (each.get_help_record(ctx) for each in sections[section])
                    formatter.write_dl([line for line in found if line is not None])
        if is_short:
            formatter.write_paragraph()
            named = "; ".join(section for section in sections if section != COMMON)
            formatter.write_text(f"--help-all shows further options: {named}.")

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse as click does, but let an option that may be given often take all values that follow it."""
        many = {flag: row for row in self.rows.values() if row.many for flag in row.spellings}
        spelled: list[str] = []
        for arg in args:
            last = next((flag for flag in spelled[-2:-1] if flag in many), None)
            if last is not None and not arg.startswith("-") and _is_value(many[last], arg):
                spelled.append(last)
            spelled.append(arg)
        left = super().parse_args(ctx, spelled)
        _check_programs(ctx)
        return left

    @property
    def rows(self) -> dict[str, OptionRow]:
        """The table's rows among its options, by name."""
        return {option.row.name: option.row for option in self.params if isinstance(option, Option)}


def _check_programs(ctx: click.Context) -> None:
    """Refuse to run code because a run's file names it: the file may be somebody else's."""
    found: dict[str, str] = ctx.meta.get(PROGRAMS, {})
    unnamed = {
        name: value
        for name, value in found.items()
        if ctx.get_parameter_source(name) is ParameterSource.DEFAULT_MAP
    }
    if unnamed:
        named = " ".join(f"--{name.replace('_', '-')} {value}" for name, value in unnamed.items())
        raise ConfigError(
            f"--config names code, which is not run unless you name it, too: if you trust it, add {named}"
        )


def _write_short(options: list[click.Option], ctx: click.Context, formatter: click.HelpFormatter) -> None:
    lines = [(_short_name(each), each.get_help_record(ctx)) for each in options]
    width = formatter.width - max(len(name) for name, _ in lines) - 6
    formatter.write_dl([(name, _clause(record[1], width)) for name, record in lines if record], col_max=40)


def _short_name(option: click.Option) -> str:
    long = option.row.flag if isinstance(option, Option) else option.opts[-1]
    name = f"--[no-]{long[2:]}" if option.secondary_opts else long
    letters = [each for each in option.opts if not each.startswith("--")]
    metavar = option.metavar or ""
    return f"{', '.join([*letters, name])} {metavar if len(metavar) <= 12 else 'WORD'}".strip()


def _clause(text: str, width: int) -> str:
    words, bracket, default = text.partition("  [")
    first = re.split("[;(]|(?<=.{12}):", words)[0].strip().removesuffix(".")
    shorter = (f"{first[: comma.start()]}." for comma in reversed([*re.finditer(",", first)]))
    wanted = (text, words, f"{first}.{bracket}{default}", f"{first}.", *shorter)
    fitting = (each for each in wanted if len(each) <= width)
    return next(fitting, textwrap.shorten(first, width, placeholder=" …"))


def _is_value(row: OptionRow, text: str) -> bool:
    try:
        row.take(text)
    except ConfigError:
        return False
    return True


def takes(*records: type, without: Collection[str] = ()) -> Callable[[Body], Body]:
    """Give a command the options of these records, as its first arguments.

    The rows named in `without` are no options of the command: they keep their defaults.
    """

    def taken(record: type) -> list[OptionRow]:
        return [row for row in rows(record) if row.name not in without]

    def decorate(body: Body) -> Body:
        @wraps(body)
        def call(**values: object) -> None:
            given = [
                record(**{row.name: values.pop(row.name) for row in taken(record)}) for record in records
            ]
            body(*given, **values)

        options = [Option(row) for record in records for row in taken(record)]
        call.__click_params__ = [  # type: ignore[attr-defined]  # where click's own decorators put them
            *reversed(options),
            *getattr(body, "__click_params__", []),
        ]
        return call

    return decorate


def command(body: Body) -> Command:
    """A command; the first line of its docstring is its line in the list of commands, whole."""
    made = click.command(cls=Command, short_help=(body.__doc__ or "").splitlines()[0])(body)
    assert isinstance(made, Command)
    if any(row.section != COMMON for row in made.rows.values()):
        made.params.append(
            click.Option(
                ["--help-all"],
                is_flag=True,
                is_eager=True,
                expose_value=False,
                callback=_show_all,
                help="Show every option, in full, and exit.",
            )
        )
    return made


def _show_all(context: click.Context, _option: click.Parameter, wanted: bool) -> None:
    if wanted:
        context.meta[SHOWS_ALL] = True
        click.echo(context.get_help())
        context.exit()


F = TypeVar("F", bound=Callable[..., Any])


class OutputFile(click.Path):
    """A file to write; `-` is standard output, `./-` a file of that name."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        from sundog.sim.files.run_files import STDOUT

        return STDOUT if value == "-" else super().convert(value, param, ctx)


def say_where(path: Path) -> None:
    """The name of what was written, unless it went where the name would go."""
    from sundog.sim.files.run_files import STDOUT

    if path != STDOUT:
        click.echo(path)


def output(what: str, default: str | None = None, *, required: bool = False) -> Callable[[F], F]:
    """`-o FILE`, or `--output FILE`, as the argument `output`; `what` is its help."""
    # A default of None is one, too: an option that has it is never missing.
    given = {"required": True} if required else {"default": default, "show_default": default is not None}
    file = OutputFile(dir_okay=False, path_type=Path)
    return click.option("-o", "--output", type=file, metavar="FILE", help=what, **given)
