"""Chat template of a model: lookup, compilation in a sandbox, and rendering."""

import json
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import datetime
from functools import wraps
from pathlib import Path
from typing import NoReturn

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
import jinja2.runtime
import jinja2.sandbox
import jinja2.visitor

from sundog.actors.front.foreign import contained
from sundog.actors.messages import ChatMessage, Reading
from sundog.runtime.checkpoint.facts import LoadError


class ChatTemplateError(ValueError):
    """Messages that cannot become a prompt, with the reason."""


@dataclass(frozen=True, slots=True)
class ChatTemplate:
    """Compiled template, and whether it mentions the role `developer`."""

    template: jinja2.Template
    knows_developer: bool


def rendered(
    template: ChatTemplate,
    messages: Sequence[ChatMessage],
    reading: Reading,
    special_tokens: Mapping[str, str],
) -> str:
    """Render the conversation, up to where the model continues.

    Raises ChatTemplateError if the template refuses, or fails at the client's arguments.
    """
    turns = messages if template.knows_developer else _without_developers(messages)
    variables: dict[str, object] = {"tools": None, "documents": None, **reading.template_arguments}
    variables |= special_tokens
    variables |= {
        "messages": [{"role": turn.role, "content": turn.content, **turn.more} for turn in turns],
        "add_generation_prompt": reading.add_generation_prompt,
    }
    size = sum(len(turn.content) + len(turn.more) for turn in turns)
    try:
        with _time_to_render(size):
            text = contained(lambda: _text(template.template.generate(variables)))
    except jinja2.TemplateError as error:
        raise ChatTemplateError(f"the chat template refuses: {error}") from error
    except (OverflowError, RecursionError, MemoryError) as error:
        what = " ".join(str(error).split()) or type(error).__name__
        raise ChatTemplateError(f"the chat template is too large for this conversation: {what}") from error
    except Exception as error:
        if not reading.template_arguments:
            raise
        names = ", ".join(reading.template_arguments)
        raise ChatTemplateError(f"the chat template fails with these arguments ({names}): {error}") from error
    return _open_ended(text, turns[-1].content) if reading.continue_final_message else text


def _text(pieces: Iterable[str]) -> str:
    written: list[str] = []
    length = 0
    for piece in pieces:
        length += len(piece)
        _check_length(length)
        written.append(piece)
    return "".join(written)


def _without_developers(messages: Sequence[ChatMessage]) -> Sequence[ChatMessage]:
    """Convert developer messages to system messages, for a template without developers.

    As in vLLM, all system messages become one at the beginning, where templates expect it.
    """
    if not any(turn.role == "developer" for turn in messages):
        return messages
    of_system = [turn for turn in messages if turn.role in ("system", "developer")]
    said = "\n\n".join(turn.content for turn in of_system if turn.content)
    others = [turn for turn in messages if turn.role not in ("system", "developer")]
    return [ChatMessage("system", said), *others]


def _open_ended(text: str, last: str) -> str:
    """Return the conversation up to the end of its last message, so that the model continues it."""
    begin = text.rfind(last.strip())
    if begin < 0 or not last.strip():
        what = "is empty" if not last.strip() else "is not shown as it is by the chat template"
        raise ChatTemplateError(f"the last message {what}: it cannot be continued")
    # Some templates keep the spaces at its end and others strip them.
    end = begin + len(last.lstrip())
    return text[:end] if text[begin:end] == last.lstrip() else text[: begin + len(last.strip())]


DEFAULT, FOR_TOOLS = "default", "tool_use"
"""Names of a model's templates; the second is for conversations with tools."""
FURTHER = "additional_chat_templates"
"""Folder of named templates."""


class ChatTemplates:
    """Templates of a model: with tools the one for tools, if any, else the default.

    `given` is a file that replaces them.
    """

    def __init__(self, folder: Path, config: Mapping[str, object], given: Path | None = None) -> None:
        sources = template_sources(folder, config) if given is None else {DEFAULT: _read(given)}
        self._compiled = {name: compiled(source, given or folder) for name, source in sources.items()}
        self.call_format = _call_format(sources.get(FOR_TOOLS) or sources.get(DEFAULT) or "")
        """Parser of calls in the templates' format, by vLLM's name; None if unknown."""

    def chosen(self, reading: Reading) -> ChatTemplate | None:
        """Return the template of a conversation; None if the model has none."""
        plain = self._compiled.get(DEFAULT)
        return self._compiled.get(FOR_TOOLS, plain) if reading.template_arguments.get("tools") else plain


def _call_format(source: str) -> str | None:
    if "[TOOL_CALLS]" in source:
        return "mistral"
    if "<tool_call>" in source and "<function=" not in source and "<arg_key>" not in source:
        return "hermes"
    return "llama3_json" if "<|python_tag|>" in source else None


def template_sources(folder: Path, config: Mapping[str, object]) -> dict[str, str]:
    """Return the chat templates by name: separate files before those of the configuration."""
    given = config.get("chat_template")
    entries = given if isinstance(given, list) else [{"name": DEFAULT, "template": given}]
    found: dict[str, str] = {}
    for entry in entries:
        name, source = (entry.get("name"), entry.get("template")) if isinstance(entry, dict) else (None, None)
        if source is None:
            continue
        if not isinstance(name, str) or not isinstance(source, str):
            raise LoadError(f"cannot read the chat template of {folder}: it is no text")
        found[name] = source
    own_file = folder / "chat_template.jinja"
    if own_file.is_file():
        found[DEFAULT] = _read(own_file)
    for file in sorted((folder / FURTHER).glob("*.jinja")):
        found[file.stem] = _read(file)
    return found


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise LoadError(f"cannot read the chat template {file}: {error}") from error


def compiled(source: str, folder: Path) -> ChatTemplate:
    """Compile the template in a sandbox with the names that transformers provides."""
    environment = _Bounded(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.filters |= {name: _within_bounds(environment.filters[name]) for name in WIDENING}
    environment.filters[_JOINED] = lambda parts: _text(str(part) for part in parts)
    environment.filters[_WHILE_THERE_IS_TIME] = _while_there_is_time
    environment.globals["raise_exception"] = _refuse
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    try:
        parsed = environment.parse(source)
        for loop in parsed.find_all(jinja2.nodes.For):
            loop.iter = jinja2.nodes.Filter(loop.iter, _WHILE_THERE_IS_TIME, [], [], None, None)
        template = environment.from_string(_Joins().visit(parsed))
    except jinja2.TemplateError as error:
        raise LoadError(f"cannot read the chat template of {folder}: {error}") from error
    return ChatTemplate(template, any(f"{quote}developer{quote}" in source for quote in "'\""))


LEAST_RENDER_S, MOST_RENDER_S, RENDER_S_A_CHARACTER = 0.2, 5.0, 1e-5
"""CPU seconds to render a conversation: ten times what real templates take, and forty for a short one, which
may pay for Python's collector on a busy machine.
"""
MOST_TEXT = 2**25
"""Most characters of a text made by a template."""
MOST_WIDTH = 2**16
"""Most characters to which a template may pad or indent a text."""
LOOKS_EVERY = 64
_WHILE_THERE_IS_TIME = "while_there_is_time"
_JOINED = "joined_within_bounds"
WIDENING = ("center", "format", "indent", "join", "replace", "tojson", "wordwrap")
"""Filters that may lengthen a text by a factor."""
WIDE = re.compile(r"\d{6,}|\*")
"""Pattern of a format width that is too large, or an argument."""
_deadline_s: ContextVar[float] = ContextVar("deadline_s", default=float("inf"))
"""Value of the thread's CPU clock at which the rendering in this context is ended."""


@contextmanager
def _time_to_render(num_characters: int) -> Iterator[None]:
    limit_s = min(MOST_RENDER_S, LEAST_RENDER_S + RENDER_S_A_CHARACTER * num_characters)
    token = _deadline_s.set(time.thread_time() + limit_s)
    try:
        yield
    finally:
        _deadline_s.reset(token)


def _check_time() -> None:
    if time.thread_time() > _deadline_s.get():
        raise jinja2.TemplateError("it takes too long to render this conversation")


def _while_there_is_time(items: Iterable[object]) -> Iterator[object]:
    """Yield the items of a loop; TemplateError after the time limit of a rendering."""
    for number, item in enumerate(items):
        if number % LOOKS_EVERY == 0:
            _check_time()
        yield item


class _Bounded(jinja2.sandbox.ImmutableSandboxedEnvironment):
    """Sandbox with a time limit on loops and calls, and size limits on texts and numbers.

    A template comes with a model, and its behaviour may depend on a client's input.
    """

    intercepted_binops = frozenset(("+", "%", "*", "**"))

    def call(
        self, context: jinja2.runtime.Context, function: object, *args: object, **kwargs: object
    ) -> object:
        """Call a function of a template; TemplateError after the time limit or for too large a result."""
        _check_time()
        method = getattr(function, "__wrapped__", function)  # the sandbox wraps `format`
        if isinstance(owner := getattr(method, "__self__", None), str):
            _check_widening(getattr(method, "__name__", ""), (owner, *args, *kwargs.values()))
        return super().call(context, function, *args, **kwargs)

    def call_binop(
        self, context: jinja2.runtime.Context, operator: str, left: object, right: object
    ) -> object:
        """Add, multiply or format; raises `jinja2.TemplateError` for a result that would fill the memory."""
        if operator == "+" and isinstance(left, Sized) and isinstance(right, Sized):
            _check_length(len(left) + len(right))
        elif operator == "*":
            sized, times = (left, right) if isinstance(left, Sized) else (right, left)
            if isinstance(sized, Sized) and isinstance(times, int):
                _check_length(len(sized) * times)
        elif operator == "%" and isinstance(left, str):
            _check_widening("format", (left, right))
        elif operator == "**" and not (abs(_number(left)) <= 2**16 and abs(_number(right)) <= 64):
            raise jinja2.TemplateError("it computes a power that is too large")
        return super().call_binop(context, operator, left, right)


class _Joins(jinja2.visitor.NodeTransformer):
    def visit_Concat(self, node: jinja2.nodes.Concat) -> jinja2.nodes.Node:  # named by jinja
        self.generic_visit(node)
        parts = jinja2.nodes.List(node.nodes, lineno=node.lineno)
        return jinja2.nodes.Filter(parts, _JOINED, [], [], None, None, lineno=node.lineno)


def _within_bounds(widen: Callable[..., object]) -> Callable[..., object]:
    name = widen.__name__.removeprefix("do_")

    @wraps(widen)
    def bounded(*args: object, **kwargs: object) -> object:
        _check_time()
        # Some filters are given what they are called in first.
        first = [each for each in args if isinstance(each, jinja2.Environment | jinja2.nodes.EvalContext)]
        text, *others = args[len(first) :]
        if name == "join":
            text = list(text) if isinstance(text, Iterable) else text
            _check_widening(name, (str(others[0]) if others else str(kwargs.get("d", "")), text))
        else:
            _check_widening(name, (text, *others, *kwargs.values()))
        return widen(*first, text, *others, **kwargs)

    return bounded


def _check_widening(name: str, given: Sequence[object]) -> None:
    """Raise TemplateError if padding or joining would make a text too long."""
    text, *others = given
    if any(isinstance(each, int) and each > MOST_WIDTH for each in others):
        raise jinja2.TemplateError(f"it fills a text up to more than {MOST_WIDTH} characters")
    if not isinstance(text, str):
        return
    if name in ("format", "format_map") and WIDE.search(text):
        raise jinja2.TemplateError("it formats a text with a width that is too large")
    if name == "replace" and len(others) > 1 and isinstance(others[0], str):
        _check_length(len(text) + text.count(others[0]) * len(str(others[1])))
    elif name == "join" and others and isinstance(others[0], Sized):
        items = others[0] if isinstance(others[0], list | tuple) else ()
        _check_length(len(text) * len(others[0]) + sum(len(each) for each in items if isinstance(each, str)))


def _check_length(length: int) -> None:
    if length > MOST_TEXT:
        raise jinja2.TemplateError(f"it makes a text of more than {MOST_TEXT} characters")


def _number(value: object) -> float:
    return value if isinstance(value, int | float) else 0.0


class _Generation(jinja2.ext.Extension):
    """Extension for `{% generation %}`, which marks training data and has no effect here."""

    tags = {"generation"}  # noqa: RUF012  # declared so by jinja

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _to_json(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Write plain JSON: Jinja's own filter escapes HTML."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _refuse(reason: str) -> NoReturn:
    raise jinja2.TemplateError(reason)
