"""How a command ends: with results, one line of refusal, an interrupt, or a bug.

| what | stderr | exit code |
|---|---|---|
| results | | 0 |
| a mistake in the request, found anywhere; an extra that is not installed | one line | 2 |
| Ctrl-C | one line | 130 |
| SIGTERM in a sweep | one line | 143 |
| the reader of stdout has gone (`| head`) | | 1, as click and rich have it |
| the disk is full, or stdout's | one line | 2 |
| anything else: a bug | one line that asks to report it, and the traceback | 1 |

An error may cross several nurseries, and several actors may fail together: a refusal is found in nested
exception groups. A server may write all of this as a log of JSON lines.
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
from itertools import pairwise
from pathlib import Path
from tempfile import NamedTemporaryFile

import click

from sundog import fast, terminated
from sundog.actors.config import ConfigError

EXTRAS = {
    "serve": (
        "h11",
        "httpx",
        "huggingface_hub",
        "hypercorn",
        "jiter",
        "msgspec",
        "prometheus_client",
        "quart",
        "quart_trio",
        "tokenizers",
        "werkzeug",
        "wsproto",
        "yaml",
    ),
    "structured": ("llguidance",),
    "kv-events": ("zmq",),
    "otel": ("opentelemetry",),
    "engine": ("gguf", "psutil", "safetensors", "torch", "transformers"),
    "plot": ("cycler", "matplotlib"),
    "ray": ("ray",),
    "fast": ("mypy", "mypyc", "setuptools"),
}
"""Modules by the extra of pyproject.toml that installs them."""
COMPUTING, OF_ENGINE = ("calibrate", "demo", "serve"), ("serve", "structured")
"""Commands that compute a model and need the extra `engine`, and the extras that it includes."""
ALIKE, MUCH_ALIKE = 0.75, 0.9
"""Similarity of two spellings, from 0 to 1, from which one is suggested for the other."""


@contextmanager
def writing(path: str | Path) -> Iterator[None]:
    """Convert an OSError for the file to a ConfigError that names it."""
    try:
        yield
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror or error}") from None


def check_writable(path: str | Path) -> None:
    """Raise ConfigError, before the work begins, if `whole_file` could not write a file there afterwards."""
    from sundog.sim.files.run_files import STDOUT

    path = Path(path)
    if os.path.isdir(path):
        raise ConfigError(f"cannot write {path}: it is a folder")
    if path == STDOUT or (os.path.exists(path) and not os.path.isfile(path)):
        return
    place = Path(os.path.realpath(path)).parent
    if not os.path.isdir(place):
        raise ConfigError(f"cannot write {path}: there is no folder {path.parent}")
    with writing(path), NamedTemporaryFile(dir=place, prefix=f"{path.name}."):
        pass


def check_folder(path: str | Path) -> None:
    """Raise ConfigError, before the work begins, if a file is where a folder will be made."""
    for each in (Path(path), *Path(path).parents):
        if os.path.isdir(each):
            return
        if os.path.isfile(each):
            raise ConfigError(f"cannot make the folder {path}: {each} is a file")


def check_can_draw(figure: str | None) -> None:
    """Raise ConfigError, before the work begins, if a figure needs matplotlib and it is missing, or if it
    cannot be written.
    """
    if figure is None:
        return
    check_writable(figure)
    from importlib.util import find_spec

    if find_spec("matplotlib") is None:
        raise ConfigError("--figure needs matplotlib: pip install 'sundog[plot]'")


def how_to_install(error: ModuleNotFoundError, command: str = "") -> str | None:
    """Return the line with the extra to install for a command, if the missing module belongs to one."""
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
    """Raised when Ctrl-C or SIGTERM ended a command; the message, if any, is the progress so far."""

    def __init__(self, message: str = "", code: int = INTERRUPTED) -> None:
        super().__init__(message)
        self.code = code


class JsonLogFormatter(logging.Formatter):
    """Formatter of time, level, logger, message, and a record's numbers in `fields`."""

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
    """Filter that passes Trio's warning of exhausted descriptors once a minute; Trio logs ten a second."""

    every_s, next_s = 60.0, 0.0

    def filter(self, record: logging.LogRecord) -> bool:
        if record.created < self.next_s:
            return False
        self.next_s = record.created + self.every_s
        record.msg, record.args, record.exc_info = "no file descriptor is left: raise `ulimit -n`", (), None
        return True


def log_to_stderr(kind: str) -> None:
    """Log to stderr as `kind`, text or json; as JSON including Python's warnings."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLogFormatter() if kind == "json" else logging.Formatter("%(message)s"))
    logging.basicConfig(handlers=[handler])
    logging.getLogger("trio.serve_listeners").addFilter(SeldomWithoutDescriptors())
    logging.captureWarnings(writes_json())


def let_it_remark() -> None:
    """Log remarks, not only warnings, in processes that people start and that print few lines."""
    logging.getLogger("sundog").setLevel(logging.INFO)


def writes_json() -> bool:
    """Return whether each line of the log is a JSON object."""
    return any(isinstance(handler.formatter, JsonLogFormatter) for handler in logging.getLogger().handlers)


def remark(text: str, *, is_error: bool = False) -> None:
    """Print a line for people on stderr, or log it as JSON."""
    if writes_json():
        logging.getLogger("sundog").log(logging.ERROR if is_error else logging.INFO, text)
    else:
        click.echo(text, err=True)


def _log_as_asked(words: Sequence[str]) -> None:
    """Log in JSON if the command line requests it, so that errors in the command line are JSON, too."""
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
        code = command.main(standalone_mode=False, complete_var="_SUNDOG_COMPLETE")
        sys.stdout.flush()
    except BaseException as error:
        sys.exit(_end(error))
    sys.exit(code if isinstance(code, int) else 0)


def _let_nothing_be_unprintable() -> None:
    """Replace unprintable characters on stdout and stderr: a terminal without UTF-8 must not lose results."""
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
    """Return the exit code after Ctrl-C, or after SIGTERM where that is handled alike."""
    return terminated.CODE if isinstance(error, terminated.Terminated) else INTERRUPTED


def _forget_stdout() -> None:
    """Redirect stdout to the null device: Python would flush the rest, and complain."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def leaves(error: BaseException) -> Iterator[BaseException]:
    """Yield the errors inside nested exception groups, in order."""
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
        from difflib import get_close_matches

        alike = [name for name in error.possibilities or () if _may_mean(error.option_name, name)]
        near = get_close_matches(error.option_name, alike, n=1, cutoff=ALIKE)
        return _one_line(error.message) + "".join(f" Did you mean '{name}'?" for name in near) + where
    return _one_line(error.format_message()) + where


def _may_mean(asked: str, name: str) -> bool:
    """Return whether two names have the same words, apart from typos: `batch-size` is not `block-size`."""
    from difflib import SequenceMatcher, get_close_matches

    ours, theirs = asked.strip("-").split("-"), name.strip("-").split("-")

    def has_all(words: list[str], others: list[str]) -> bool:
        begins = {other[:3] for other in others}
        return all(word[:3] in begins or get_close_matches(word, others, 1, ALIKE) for word in words)

    is_much_alike = SequenceMatcher(None, asked, name).ratio() > MUCH_ALIKE
    return is_much_alike or has_all(ours, theirs) or has_all(theirs, ours)


def _one_line(text: str) -> str:
    return " ".join(text.split())
