"""Click options made from the table: a command gets whole records, and `--help` has sections."""

import re
import textwrap
from collections.abc import Callable, Collection, Sequence
from functools import wraps
from pathlib import Path
from typing import Any, TypeVar

import click
from click.core import ParameterSource
from click.shell_completion import CompletionItem

from sundog.actors.config import ConfigError
from sundog.actors.core.names import did_you_mean
from sundog.options.outputs import check_apart
from sundog.options.row import COMMON, AnyText, OneOf, OptionRow, Switch, rows

SET = "--set"
"""Option that sets any other one, as NAME=VALUE."""
Body = Callable[..., None]
PROGRAMS = "sundog.options: programs"
"""Key in a context's `meta` of the options with Python files from a run's file, and their values."""
SHOWS_ALL = "sundog.options: shows all"
"""Key in a context's `meta` that is set if the help shows every section."""


def given_once(varied: dict[str, Sequence[Any]]) -> dict[str, Sequence[Any]]:
    """Return the varied values; raises ConfigError for an option that is also set on the command line."""
    context = click.get_current_context()
    for name in varied:
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            flag = "--" + name.replace("_", "-")
            raise ConfigError(f"{flag} is given, and --vary has {name}, too: leave one of them out")
    return varied


class Option(click.Option):
    """Row of the table on the command line."""

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
    """Click type of a row's values."""

    name = "value"

    def __init__(self, row: OptionRow) -> None:
        self._row = row

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> object:
        return self._row.take(value)

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """Return the words or names with the given beginning; if there is none, the mark by which shells
        complete files.
        """
        kind, completes = self._row.kind, self._row.completes
        words = kind.words if isinstance(kind, OneOf) else () if completes is None else completes()
        found = [CompletionItem(word) for word in words if word.startswith(incomplete)]
        if not found and isinstance(kind, AnyText) and kind.is_path:
            # Never beside names: bash forgets them then.
            found.append(CompletionItem(incomplete, type="file"))
        return found


class Command(click.Command):
    """Command with options in sections; with several, `--help` shows the first, one line per option."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        sections: dict[str, list[click.Option]] = {COMMON: []}
        for parameter in self.get_params(ctx):
            if isinstance(parameter, click.Option) and not _is_rare(parameter):
                section = parameter.row.section if isinstance(parameter, Option) else COMMON
                sections.setdefault(section, []).append(parameter)
        is_short = len(sections) > 1 and not ctx.meta.get(SHOWS_ALL)
        for section in [COMMON] if is_short else sections:
            with formatter.section(section):
                if is_short:
                    shown = [each for each in sections[section] if SET not in each.opts]
                    _write_short(shown, ctx, formatter)
                else:
                    found = (each.get_help_record(ctx) for each in sections[section])
                    formatter.write_dl([line for line in found if line is not None])
        if is_short:
            formatter.write_paragraph()
            named = "; ".join(section for section in sections if section != COMMON)
            formatter.write_text(f"--help-all shows further options: {named}.")
        elif rare := [row.flag[2:] for row in self.rows.values() if row.rare]:
            formatter.write_paragraph()
            formatter.write_text(f"--set takes rare options, too (docs/options.md): {', '.join(rare)}.")

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse as click does, but let an option that may be given several times take all values that
        follow.
        """
        args = self._with_set(args)
        many = {flag: row for row in self.rows.values() if row.many for flag in row.spellings}
        spelled: list[str] = []
        for arg in args:
            last = next((flag for flag in spelled[-2:-1] if flag in many), None)
            if last is not None and not arg.startswith("-") and _is_value(many[last], arg):
                spelled.append(last)
            spelled.append(arg)
        if "" in spelled and not ctx.resilient_parsing:
            self._check_arguments(ctx, spelled)
        left = super().parse_args(ctx, spelled)
        _check_programs(ctx)
        check_apart(ctx.params)
        return left

    def _check_arguments(self, ctx: click.Context, args: list[str]) -> None:
        """Raise ConfigError for an empty argument: as a path it would be the current folder."""
        given, _, _ = self.make_parser(ctx).parse_args(list(args))
        for parameter in self.params:
            value = given.get(parameter.name or "")
            if isinstance(parameter, click.Argument) and "" in (
                value if isinstance(value, tuple) else (value,)
            ):
                name = (parameter.metavar or parameter.human_readable_name).strip("[].…")
                raise ConfigError(f"{name} is '': give a text that is not empty")

    def _with_set(self, args: list[str]) -> list[str]:
        """Return the arguments with each `--set NAME=VALUE` replaced by the option of that name."""
        if not any(row.rare for row in self.rows.values()):
            return args
        given, words = list[str](), iter(args)
        for word in words:
            if word == "--":
                return [*given, word, *words]
            if word == SET or word.startswith(f"{SET}="):
                given += self._option(next(words, "") if word == SET else word.removeprefix(f"{SET}="))
            else:
                given.append(word)
        return given

    def _option(self, text: str) -> list[str]:
        """Return the words of an option given as NAME=VALUE; raises ConfigError for an unknown one."""
        name, equals, value = text.partition("=")
        known = {row.flag[2:]: row for row in self.rows.values()}
        row = known.get(name.strip().removeprefix("--").replace("_", "-"))
        if not equals:
            raise ConfigError(f"{SET} is {text!r}: give NAME=VALUE, as in {SET} debug=true")
        if row is None:
            raise ConfigError(f"{SET} {name}: there is no such option.{did_you_mean(name, known)}")
        if not isinstance(row.kind, Switch):
            return [row.flag, value]
        if row.take(value):
            return [row.flag]
        return [f"--no-{row.flag[2:]}"] if row.kind.pair else []

    @property
    def rows(self) -> dict[str, OptionRow]:
        """Rows of the table among its options, by name."""
        return {option.row.name: option.row for option in self.params if isinstance(option, Option)}


def _is_rare(option: click.Option) -> bool:
    return isinstance(option, Option) and option.row.rare


def _check_programs(ctx: click.Context) -> None:
    """Raise ConfigError if only a run's file names a Python file: it may be somebody else's code."""
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

    The rows in `without` are not offered, and keep their defaults.
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


def command(body: Body, kind: type[Command] = Command) -> Command:
    """Make a command; the first line of its docstring is its line in the list of commands."""
    made = click.command(cls=kind, short_help=(body.__doc__ or "").partition("\n")[0])(body)
    assert isinstance(made, Command)
    if any(row.rare for row in made.rows.values()):
        made.params.append(
            click.Option(
                [SET],
                metavar="NAME=VALUE",
                expose_value=False,
                help="Set an option by its name, rare ones too.",
            )
        )
    if any(row.section != COMMON for row in made.rows.values()):
        made.params.append(
            click.Option(
                ["--help-all"],
                is_flag=True,
                is_eager=True,
                expose_value=False,
                callback=_show_all,
                help="Show further options, in full, and exit.",
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
    """File to write; `-` is standard output, `./-` a file of that name."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        from sundog.sim.files.run_files import STDOUT

        return STDOUT if value == "-" else super().convert(value, param, ctx)


def say_where(path: Path) -> None:
    """Print the name of the written file, unless it went to standard output."""
    from sundog.sim.files.run_files import STDOUT

    if path != STDOUT:
        click.echo(path)


def output(what: str, default: str | None = None, *, required: bool = False) -> Callable[[F], F]:
    """Return the option `-o FILE`, or `--output FILE`, as the argument `output`; `what` is its help."""
    # A default of None is one, too: an option that has it is never missing.
    given = {"required": True} if required else {"default": default, "show_default": default is not None}
    file = OutputFile(dir_okay=False, path_type=Path)
    return click.option("-o", "--output", type=file, metavar="FILE", help=what, **given)
