"""Configuration of a server: the command line overrides the environment, which overrides a file.

Laws: an unknown key in the file is refused with the most similar option; a value is refused as on the command
line, with the name of the file or variable. `--show-config` prints such a file, without secrets. vLLM's keys
are accepted: option names with hyphens or underscores. An option's variable is `SUNDOG_` and its name. A
run's `config.toml` is another kind of file, for `replay` and `bench`.
"""

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from sundog.actors.config import ConfigError
from sundog.actors.core.names import did_you_mean
from sundog.ends import let_it_remark, log_to_stderr, remark
from sundog.options.config_file import TRACE, from_file, only_file
from sundog.options.row import AnyText, OptionRow, Parsed, Switch
from sundog.options.takes import Body, Command, Option, command

PREFIX = "SUNDOG_"
CONFIG = "SUNDOG_CONFIG"
"""Variable that names the file if --config does not."""
COURTESY = {"api_key": "VLLM_API_KEY"}
"""vLLM's environment variables that set an option if nothing else does, as in vLLM; their use is logged."""
FILE = "sundog.options: server's file"
"""Key of the file's name in the `meta` of a Click context."""
SHOWS = "sundog.options: shows config"
CLOSE = 0.85
"""Similarity, from 0 to 1, from which a variable is suggested for an unknown one."""
OURS = ("SUNDOG_NATIVE", "SUNDOG_PYTHON", "SUNDOG_FUZZ", "SUNDOG_PGO", "SUNDOG_ORACLE_CACHE")
OF_KUBERNETES = re.compile(r"_SERVICE_(HOST|PORT)(_|$)|_PORT_\d+_(TCP|UDP|SCTP)(_|$)")
"""Variables of a service whose name begins with sundog; of another form is the one with its URL."""
MASKED = "set, but not shown"


class ServerCommand(Command):
    """Command whose options may be set by a file or by variables."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse as other commands do; an argument MODEL overrides the file and the environment."""
        left = super().parse_args(ctx, args)
        if ctx.params.get("model_argument") is not None and not _is_typed(ctx, "model"):
            ctx.params["model"] = None
        return left

    def invoke(self, ctx: click.Context) -> object:
        """Run the command, or print its configuration if requested."""
        if ctx.meta.get(SHOWS):
            _say_unknown(self.rows, ctx.info_name or "")
            click.echo("\n".join(_shown(ctx, self.rows)))
            return None
        if ctx.params["log_format"] == "json":  # which a file or a variable may say
            log_to_stderr("json")
            let_it_remark()
        _say_courtesies(ctx, self.rows)
        _say_unknown(self.rows, ctx.info_name or "")
        return super().invoke(ctx)


class ServerOption(Option):
    """Option that may be set by a variable, which errors then name."""

    def __init__(self, row: OptionRow) -> None:
        super().__init__(row)
        self.envvar = _variables(row)

    def consume_value(self, ctx: click.Context, opts: Mapping[str, Any]) -> tuple[object, ParameterSource]:
        """Return the value from the first source that has one, checked under the name of that source."""
        value, source = super().consume_value(ctx, opts)
        if source is ParameterSource.DEFAULT and os.environ.get(COURTESY.get(self.row.name, "")):
            source = ParameterSource.ENVIRONMENT
        if source is not ParameterSource.ENVIRONMENT:
            return value, source
        name = _variable_of(self.row)
        text = os.environ[name]
        if self.row.name == "port" and text.startswith("tcp://"):
            # Kubernetes sets it for a service that is called sundog: it is no port of ours.
            return self.get_default(ctx), ParameterSource.DEFAULT
        if isinstance(self.row.kind, Switch):
            text = {"1": "true", "0": "false"}.get(text, text)
        return self.row.take_all(_listed(text) if self.row.many else text, name), source


def server_command(body: Body) -> Command:
    """Return the command of a server, whose options a file and the environment may set."""
    made = command(body, ServerCommand)
    made.params = [ServerOption(each.row) if isinstance(each, Option) else each for each in made.params]
    made.params[-1:-1] = [
        click.Option(
            ["--config"],
            type=click.Path(path_type=Path),
            multiple=True,
            is_eager=True,
            expose_value=False,
            callback=_take,
            metavar="FILE",
            help="TOML or YAML file with options (or SUNDOG_CONFIG); variables and options override it.",
        ),
        click.Option(
            ["--show-config"],
            is_flag=True,
            is_eager=True,
            expose_value=False,
            callback=_note_shows,
            help="Print all values with their sources, and exit.",
        ),
    ]
    return made


def _note_shows(context: click.Context, _option: click.Parameter, wanted: bool) -> None:
    context.meta[SHOWS] = wanted


def _take(context: click.Context, _option: click.Parameter, paths: Sequence[Path]) -> None:
    if context.resilient_parsing:  # while a shell completes a line, no file is read
        return
    # Not `envvar`: click takes the colon in a path for the end of the first of several.
    from_environment = [Path(text)] if (text := os.environ.get(CONFIG)) else []
    path = only_file(paths or from_environment)
    if path is None:
        return
    assert isinstance(context.command, Command)
    values = read_server_config(path, context.command.rows, context.info_name or "")
    context.meta[FILE] = str(path)
    context.default_map = {**(context.default_map or {}), **values}


def read_server_config(path: Path, rows: Mapping[str, OptionRow], command: str) -> dict[str, object]:
    """Return the checked options in the file, by field name.

    Raises ConfigError that names the file and the key. A path that exists relative to the file's folder is
    used relative to it.
    """
    known = {_key(spelling): row for row in rows.values() for spelling in (row.name, row.flag, *row.names)}
    values: dict[str, object] = {}
    for key, value in _read(path).items():
        row = known.get(_key(key))
        if row is None:
            another = (
                ": a run's config.toml is for `sundog replay` and `sundog bench`" if key == TRACE.name else ""
            )
            raise ConfigError(
                f"{path}: {key} is no option of `sundog {command}`{another}.{did_you_mean(_key(key), known)}"
            )
        if row.name in values:
            raise ConfigError(f"{path}: {key} is given twice, in two spellings: leave one out")
        if value is not None:
            values[row.name] = from_file(row, _as_given(row, value), path)
    return values


def _key(text: str) -> str:
    return text.lstrip("-").replace("_", "-").lower()


def _as_given(row: OptionRow, value: object) -> object:
    """Return a value in the form that the command line takes: a JSON text, or a list."""
    if row.many:
        return [_in_json(row, each) for each in (value if isinstance(value, list) else [value])]
    return _in_json(row, value)


def _in_json(row: OptionRow, value: object) -> object:
    takes_text = isinstance(row.kind, Parsed | AnyText)
    if takes_text and isinstance(value, dict | list):
        return json.dumps(value)
    # YAML reads `model: 7` and `dtype: 1.0` as numbers: words of digits are texts, too.
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return str(value) if takes_text and is_number else value


def _read(path: Path) -> dict[str, object]:
    if path.suffix == ".toml":
        from sundog.sim.files.toml import read_toml

        return dict(read_toml(path, ConfigError))
    if path.suffix not in (".yaml", ".yml"):
        raise ConfigError(f"--config is {path}: give a file that ends in .toml, .yaml or .yml")
    return _read_yaml(path)


def _read_yaml(path: Path) -> dict[str, object]:
    import yaml

    try:
        text = path.read_text(encoding="utf-8")
        top = yaml.compose(text, Loader=yaml.SafeLoader)
        read = yaml.safe_load(text)
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror or error}") from None
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError, ValueError) as error:
        raise ConfigError(f"{path} is not YAML: {' '.join(str(error).split())}") from None
    if read is None:
        return {}
    if not isinstance(read, dict) or not all(isinstance(key, str) for key in read):
        raise ConfigError(f"{path} holds no options: give lines like `port: 8000`")
    keys = [str(key.value) for key, _ in top.value]
    if twice := [key for key in read if keys.count(key) > 1]:  # YAML itself takes the last
        raise ConfigError(f"{path}: {twice[0]} is given twice: leave one out")
    return read


def _variables(row: OptionRow) -> list[str]:
    given = row.envvar or ()
    return [PREFIX + row.name.upper(), *((given,) if isinstance(given, str) else given)]


def _variable_of(row: OptionRow) -> str:
    known = (*_variables(row), COURTESY.get(row.name, ""))
    return next(name for name in known if os.environ.get(name))


def _listed(text: str) -> list[object]:
    """Return the values in a variable for a repeatable option: a JSON list, or words."""
    if text.lstrip().startswith("["):
        try:
            read = json.loads(text)
        except ValueError:
            read = None
        if isinstance(read, list):
            return [json.dumps(each) if isinstance(each, dict) else each for each in read]
    return list(text.split())


def _is_typed(ctx: click.Context, name: str) -> bool:
    return ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE


def _say_courtesies(ctx: click.Context, rows: Mapping[str, OptionRow]) -> None:
    for name, theirs in COURTESY.items():
        is_from_outside = ctx.get_parameter_source(name) is ParameterSource.ENVIRONMENT
        if is_from_outside and _variable_of(rows[name]) == theirs:
            ours = PREFIX + name.upper()
            remark(f"{rows[name].flag} is taken from {theirs}, which is vLLM's variable; ours is {ours}")


def _say_unknown(rows: Mapping[str, OptionRow], command: str) -> None:
    known = {name for row in rows.values() for name in _variables(row)} | {CONFIG}
    for name, text in os.environ.items():
        if not name.startswith(PREFIX) or name in known or name in OURS:
            continue
        if OF_KUBERNETES.search(name) or text.startswith(("tcp://", "udp://", "sctp://")):
            continue
        hint = did_you_mean(name, known, cutoff=CLOSE)
        remark(f"{name} is ignored: `sundog {command}` has no such option.{hint}")


def _shown(ctx: click.Context, rows: Mapping[str, OptionRow]) -> Iterator[str]:
    """Yield the lines of a TOML file with all options, and the source of each value."""
    sections: dict[str, list[tuple[str, str]]] = {}
    for name, row in rows.items():
        value, where = ctx.params[name], _where(ctx, row)
        if name == "model" and value is None and ctx.params.get("model_argument") is not None:
            value, where = ctx.params["model_argument"], "command line"
        if value is None or value == ():
            line = f"# {name} ="
        elif row.secret:
            line = f"# {name} = ({MASKED})"
        else:
            line = f"{name} = {_in_toml(value)}"
        sections.setdefault(row.section, []).append((line, where))
    width = min(60, max(len(line) for lines in sections.values() for line, _ in lines))
    for section, lines in sections.items():
        yield f"# {section}"
        yield from (f"{line:{width}}  # {where}" for line, where in lines)
        yield ""


def _in_toml(value: object) -> str:
    import tomli_w

    if isinstance(value, tuple):
        return f"[{', '.join(map(_in_toml, value))}]"
    return tomli_w.dumps({"x": value}).strip().removeprefix("x = ")


def _where(ctx: click.Context, row: OptionRow) -> str:
    match ctx.get_parameter_source(row.name):
        case ParameterSource.COMMANDLINE:
            return "command line"
        case ParameterSource.ENVIRONMENT:
            return _variable_of(row)
        case ParameterSource.DEFAULT_MAP:
            return str(ctx.meta[FILE])
        case _:
            return "default"
