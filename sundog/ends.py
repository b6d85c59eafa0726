"""The ends of a command: with results, one line of refusal, an interrupt, or a bug.

| what | stderr | exit code |
|---|---|---|
| results | | 0 |
| a mistake in what was asked for, wherever it is found; an extra that is not installed | one line | 2 |
| Ctrl-C | one line | 130 |
| SIGTERM in a sweep | one line | 143 |
| the reader of stdout has gone (`| head`) | | 1, as click and rich have it |
| the disk is full, or stdout's | one line | 2 |
| anything else: a bug | one line that asks to report it, and the traceback | 1 |

An error may cross several nurseries on its way, and several actors may fail together: a refusal is found in
exception groups however deep. A server may write all of this as a log of JSON lines.
"""

import codecs
import errno
import io
import json
import logging
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from difflib import SequenceMatcher, get_close_matches
from itertools import pairwise
from pathlib import Path

import click

from sundog import fast, terminated
from sundog.actors.config import ConfigError

EXTRAS = {
    "serve": (
        "h11",
        "httpx",
        "hypercorn",
        "jiter",
        "msgspec",
        "prometheus_client",
        "quart",
        "quart_trio",
        "tokenizers",
        "werkzeug",
        "wsproto",
    ),
    "structured": ("llguidance",),
    "kv-events": ("zmq",),
    "otel": ("opentelemetry",),
    "engine": ("psutil", "safetensors", "torch", "transformers"),
    "plot": ("cycler", "matplotlib"),
    "ray": ("ray",),
    "fast": ("mypy", "mypyc", "setuptools"),
}
"""Modules by the extra of pyproject.toml that installs them."""
COMPUTING, OF_ENGINE = ("calibrate", "demo", "serve"), ("serve", "structured")
"""The commands that compute a model, which takes the extra `engine`, and the extras that it includes."""
ALIKE, MUCH_ALIKE = 0.75, 0.9
"""The likeness of two spellings, from 0 to 1, at which one is suggested for the other."""


@contextmanager
def writing(path: str | Path) -> Iterator[None]:
    """Refuse a file that cannot be written by its name; raises ConfigError."""
    try:
        yield
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror or error}") from None


def check_can_draw(figure: str | None) -> None:
    """Refuse a figure before the work for it begins if matplotlib is missing; raises ConfigError."""
    if figure is None:
        return
    from importlib.util import find_spec

    if find_spec("matplotlib") is None:
        raise ConfigError("--figure needs matplotlib: pip install 'sundog[plot]'")


def how_to_install(error: ModuleNotFoundError, command: str = "") -> str | None:
    """Return the line that says what to install for a command, if the missing module belongs to an extra."""
    module = (error.name or "").split(".")[0]
    for extra, modules in EXTRAS.items():
        if module in modules:
            extra = "engine" if command in COMPUTING and extra in OF_ENGINE else extra
            return f"this needs {module}, which is not installed: pip install 'sundog[{extra}]'"
    return None


PLAIN = {
    "±": "+-",
    "→": "->",
    "×": "x",
    "÷": "/",
    "–": "-",
    "…": "...",
    "≤": "<=",
    "≥": ">=",
    "µ": "u",
    "─": "-",
    "∞": "inf",
}
REFUSED, INTERRUPTED, PIPE_CLOSED, BUG = 2, 130, 1, 1
NO_ROOM = (errno.ENOSPC, errno.EFBIG, errno.EDQUOT)


class Stopped(Exception):
    """Ctrl-C or SIGTERM ended a command; the message says where, if it is not empty."""

    def __init__(self, message: str = "", code: int = INTERRUPTED) -> None:
        super().__init__(message)
        self.code = code


class JsonLogFormatter(logging.Formatter):
    """Time, level, logger and message, and the numbers that a record carries as `fields`."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": self.formatTime(record, "%Y-%m-%dT%H:%M:%S%z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


class SeldomWithoutDescriptors(logging.Filter):
    """Lets Trio's remark that no descriptor is left pass once a minute; Trio makes ten a second."""

    every_s, next_s = 60.0, 0.0

    def filter(self, record: logging.LogRecord) -> bool:
        if record.created < self.next_s:
            return False
        self.next_s = record.created + self.every_s
        record.msg, record.args, record.exc_info = "no file descriptor is left: raise `ulimit -n`", (), None
        return True


def log_to_stderr(kind: str) -> None:
    """Write what is logged to stderr, as `kind` says: text or json, and as JSON Python's warnings, too."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLogFormatter() if kind == "json" else logging.Formatter("%(message)s"))
    logging.basicConfig(handlers=[handler])
    logging.getLogger("trio.serve_listeners").addFilter(SeldomWithoutDescriptors())
    logging.captureWarnings(writes_json())


def let_it_remark() -> None:
    """Show what is no warning: for the process that people start, whose lines are few."""
    logging.getLogger("sundog").setLevel(logging.INFO)


def writes_json() -> bool:
    """True if each line of the log is a JSON object."""
    return any(isinstance(handler.formatter, JsonLogFormatter) for handler in logging.getLogger().handlers)


def remark(text: str, *, is_error: bool = False) -> None:
    """A line for people, on stderr; one of the log where that is written for programs."""
    if writes_json():
        logging.getLogger("sundog").log(logging.ERROR if is_error else logging.INFO, text)
    else:
        click.echo(text, err=True)


def _log_as_asked(words: Sequence[str]) -> None:
    """Log in JSON if a command line asks for it: what is wrong elsewhere in it is said in JSON, too."""
    if "--log-format=json" in words or ("--log-format", "json") in pairwise(words):
        log_to_stderr("json")
        let_it_remark()


def run_to_its_end(command: click.Command) -> None:
    """Run the command line's arguments, and exit."""
    _let_nothing_be_unprintable()
    _log_as_asked(sys.argv)
    if changed := fast.stale():
        remark(f"sundog: {', '.join(changed)} changed: `make fast` again, or `make plain`")
        sys.exit(REFUSED)
    try:
        code = command.main(standalone_mode=False)
        sys.stdout.flush()
    except BaseException as error:
        sys.exit(_end(error))
    sys.exit(code if isinstance(code, int) else 0)


def _let_nothing_be_unprintable() -> None:
    """Replace unprintable characters: a terminal without UTF-8 must not lose results."""
    codecs.register_error("plain", _plainly)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="plain")


def _plainly(error: UnicodeError) -> tuple[str | bytes, int]:
    if isinstance(error, UnicodeEncodeError) and (sign := PLAIN.get(error.object[error.start])):
        return sign, error.start + 1
    return codecs.backslashreplace_errors(error)


def _end(error: BaseException) -> int:
    causes = list(leaves(error))
    for cause in causes:
        if isinstance(cause, KeyboardInterrupt | click.Abort | Stopped):
            remark(f"sundog: {str(cause) or 'interrupted'}")
            return cause.code if isinstance(cause, Stopped) else interrupted(cause)
    for refusal in filter(None, map(_refusal, causes)):
        remark(f"sundog: {refusal}", is_error=True)
        return REFUSED
    if any(isinstance(cause, BrokenPipeError) for cause in causes):
        _forget_stdout()
        return PIPE_CLOSED
    if full := next((c for c in causes if isinstance(c, OSError) and c.errno in NO_ROOM), None):
        _forget_stdout()
        remark(f"sundog: cannot write {full.filename or 'the results'}: {full.strerror}", is_error=True)
        return REFUSED
    if isinstance(error, SystemExit):
        return error.code if isinstance(error.code, int) else BUG
    said = "sundog: this is a bug in Sundog; please report it, with the command and what follows"
    if writes_json():
        logging.getLogger("sundog").critical(said, exc_info=error)
    else:
        remark(said)
        sys.excepthook(type(error), error, error.__traceback__)
    return BUG


def interrupted(error: BaseException) -> int:
    """The exit code after Ctrl-C, or SIGTERM where it ends things as that does."""
    return terminated.CODE if isinstance(error, terminated.Terminated) else INTERRUPTED


def _forget_stdout() -> None:
    """Redirect stdout to the null device: Python would flush the rest, and complain."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def leaves(error: BaseException) -> Iterator[BaseException]:
    """The errors inside exception groups however deep, in order."""
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from leaves(inner)
    else:
        yield error


def _refusal(cause: BaseException) -> str | None:
    if isinstance(cause, ConfigError):
        return _one_line(str(cause))
    if isinstance(cause, click.ClickException):
        return _usage(cause)
    if isinstance(cause, ModuleNotFoundError):
        return how_to_install(cause, "".join(sys.argv[1:2]))
    return None


def _usage(error: click.ClickException) -> str:
    """Return Click's message and where to read on; only similarly spelled options are suggested."""
    context = getattr(error, "ctx", None)
    where = f" (see {context.command_path} --help)" if context is not None else ""
    if isinstance(error, click.NoSuchOption):
        alike = [name for name in error.possibilities or () if _may_mean(error.option_name, name)]
        near = get_close_matches(error.option_name, alike, n=1, cutoff=ALIKE)
        return _one_line(error.message) + "".join(f" Did you mean '{name}'?" for name in near) + where
    return _one_line(error.format_message()) + where


def _may_mean(asked: str, name: str) -> bool:
    """Return whether two names have the same words, apart from typos: `batch-size` is not `block-size`."""
    ours, theirs = asked.strip("-").split("-"), name.strip("-").split("-")

    def has_all(words: list[str], others: list[str]) -> bool:
        begins = {other[:3] for other in others}
        return all(word[:3] in begins or get_close_matches(word, others, 1, ALIKE) for word in words)

    is_much_alike = SequenceMatcher(None, asked, name).ratio() > MUCH_ALIKE
    return is_much_alike or has_all(ours, theirs) or has_all(theirs, ours)


def _one_line(text: str) -> str:
    return " ".join(text.split())
