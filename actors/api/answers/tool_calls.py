"""Calls of tools in the text of an answer, as it grows: content, functions, arguments.

Law: whatever way the text is cut into deltas, names and arguments are the same. What looks like a call and
names no function is content, with its mark. Blanks before a call and between calls are not.
"""

import json
import re
from dataclasses import dataclass, field

import jiter

from sundog.actors.api.answers.reasoning import overlap

NAME = "name"
ARGUMENTS = ("arguments", "parameters")
BLANKS = " \t\r\n"
ORDER = "order"
"""The key of a message or delta that is read on: its texts and the numbers of its calls, in their order."""


class CallObject:
    """A JSON object, read character by character: its name, and its arguments as they are written."""

    def __init__(self, index: int) -> None:
        self.index = index
        self.name: str | None = None
        self.raw = ""
        self.has_arguments = False
        """True once a part of the arguments was released."""
        self.is_complete = self.is_cut = False
        """Whether it has ended; if it `is_cut`, before the last character, which no JSON has there."""
        self._depth = 0
        self._in_string = self._escaped = False
        self._key: str | None = None
        self._token = ""
        self._held = ""

    def feed(self, character: str) -> str:
        """Take one in; returns what is new of the arguments, "" before the name is known."""
        self.raw += character
        if self._in_string:
            self._token += character
            if self._escaped:
                self._escaped = False
            elif character == "\\":
                self._escaped = True
            elif character == '"':
                self._in_string = False
            return self._argument(character)
        if character == '"':
            self._in_string, self._token = True, character
            return self._argument(character)
        if character == "<":  # a mark, and the model has forgotten a brace
            return self._cut()
        if self._depth == 1 and character in ":,}":
            return self._punctuation(character)
        self._depth += (character in "{[") - (character in "}]")
        return "" if self._depth == 1 and self.raw == character else self._argument(character)

    def _punctuation(self, character: str) -> str:
        if character == ":" and self._key is None:
            self._key, self._token = _text(self._token), ""
            return ""
        if character in ",}":
            if self._key == NAME:
                self.name = _text(self._token)
            if self._key in ARGUMENTS:
                self._held = unquoted(self._held.rstrip(BLANKS))
            self._key = None
        self.is_complete = character == "}"
        return self._released()

    def _cut(self) -> str:
        self.raw = self.raw[:-1]
        fresh = self._punctuation(",") if self._depth == 1 else self._released()
        self.is_complete = self.is_cut = True
        return fresh

    def _argument(self, character: str) -> str:
        if self._key not in ARGUMENTS:
            return ""
        if self._held or self._in_string or character not in BLANKS or self._depth > 1:
            self._held += character
        return self._released()

    def _released(self) -> str:
        if self.name is None or (self._key is not None and not self.has_arguments and self._held[:1] == '"'):
            return ""  # an object that is written as a text is known at its end
        kept = self._held.rstrip(BLANKS) if self._depth == 1 and not self._in_string else self._held
        self._held = self._held[len(kept) :]
        self.has_arguments = self.has_arguments or bool(kept)
        return kept


class NamedArguments:
    """The arguments of a function whose name came before: one JSON object, as it stands."""

    def __init__(self, index: int, name: str) -> None:
        self.index = index
        self.name: str | None = name
        self.raw = ""
        self.has_arguments = False
        self.is_complete = self.is_cut = False
        self._depth = 0
        self._in_string = self._escaped = False

    def feed(self, character: str) -> str:
        """Take one in; returns it."""
        self.raw += character
        self.has_arguments = True
        if self._escaped:
            self._escaped = False
        elif self._in_string and character == "\\":
            self._escaped = True
        elif character == '"':
            self._in_string = not self._in_string
        elif not self._in_string:
            self._depth += (character in "{[") - (character in "}]")
            self.is_complete = self._depth == 0
        return character


def _text(token: str) -> str | None:
    try:
        value = json.loads(token)
    except ValueError:
        return None
    return value if isinstance(value, str) else None


def unquoted(arguments: str) -> str:
    """The arguments as an object where a model has written it as a text of JSON, as Granite's do."""
    inner = _text(arguments) if arguments.startswith('"') else None
    if inner is None:
        return arguments
    try:
        value = jiter.from_json(inner.encode(), allow_inf_nan=False)
    except ValueError:  # no JSON, too deep, or half of a surrogate pair
        return arguments
    return inner if isinstance(value, dict) else arguments


BETWEEN_CALLS = BLANKS + "[],;"
MOST_NAME = 256
NAMED = re.compile(r"([\w.-]+)(?:\[CALL_ID\]\w*)?(?:\[ARGS\])?\s*(?=\{)")
NAMED_SO_FAR = re.compile(r"[\w.-]+(?:\[[\w\]]*)*\s*")
"""The beginning of a call of newer models of Mistral's: a function's name, and marks before its arguments."""


@dataclass(frozen=True, slots=True)
class CallFormat:
    """The way in which models write calls: JSON objects with a name and arguments, between `begin` and `end`.

    `bare` calls need no `begin` where the answer starts with them; a call that `is_named` may be its
    function's name and the arguments behind it. `keeps_special`: `begin` is a special token, which must not
    be left out of the text.
    """

    begin: str | None
    end: str | None = None
    bare: bool = False
    is_named: bool = False
    keeps_special: bool = False


FORMATS = {
    "hermes": CallFormat("<tool_call>", "</tool_call>"),
    "llama3_json": CallFormat("<|python_tag|>", bare=True, keeps_special=True),
    "mistral": CallFormat("[TOOL_CALLS]", is_named=True, keeps_special=True),
}
"""The formats of calls, by the names that vLLM gives its parsers; `hermes` is Qwen's, too."""
LISTED = CallFormat(None, bare=True)
"""The format that a grammar makes of a required call: a JSON list of calls."""


@dataclass(frozen=True, slots=True)
class CallPart:
    """The news of the call `index`: its name, which comes first and once, or more of its arguments."""

    index: int
    name: str | None
    arguments: str


@dataclass(slots=True)
class ParsedText:
    """The content and the parts of calls that a piece of text says, in its order."""

    said: list[str | CallPart] = field(default_factory=list)

    def add(self, piece: str | CallPart) -> None:
        """Append a piece; texts that follow each other are one."""
        if not isinstance(piece, str):
            self.said.append(piece)
        elif self.said and isinstance(last := self.said[-1], str):
            self.said[-1] = last + piece
        elif piece:
            self.said.append(piece)

    @property
    def content(self) -> str:
        return "".join(piece for piece in self.said if isinstance(piece, str))

    @property
    def parts(self) -> list[CallPart]:
        return [piece for piece in self.said if isinstance(piece, CallPart)]


class CallParser:
    """The calls of one answer."""

    def __init__(self, form: CallFormat) -> None:
        self._form = form
        self._text = ""
        """The text that has not been decided on: perhaps the beginning of a mark."""
        self._between = form.begin is None
        self._opened = ""
        """The text that will have been content if no call follows: a mark, and blanks behind it."""
        self._blanks = ""
        """Blanks at the beginning of content, or behind a call, which are content if more of it follows."""
        self._talks = False
        self._may_be_bare = form.bare
        self._object: CallObject | NamedArguments | None = None
        self._num_calls = 0

    @property
    def has_called(self) -> bool:
        return self._num_calls > 0

    @property
    def open_call(self) -> int | None:
        """The index of the call whose arguments have not ended, if there is one."""
        call = self._object
        return None if call is None or call.name is None else call.index

    def feed(self, text: str) -> ParsedText:
        """Return what the new text adds."""
        said, self._text = ParsedText(), self._text + text
        while self._text and self._step(said):
            pass
        return said

    def flush(self) -> ParsedText:
        """Return what is left at the end of the answer."""
        said, text, self._text = ParsedText(), self._text, ""
        if self._form.begin is None:
            return said
        if self._object is not None:
            text = self._opened + self._object.raw if self._object.name is None else ""
        elif self._between:
            is_mark = not self._opened and (self._form.end or "").startswith(text)
            text = "" if is_mark else self._opened + text
        self._say(said, text)
        if not self._num_calls:
            said.add(self._blanks)
        return said

    def _say(self, said: ParsedText, text: str) -> None:
        if not self._talks:
            text = self._blanks + text
            self._talks = bool(text.strip(BLANKS))
            self._blanks = "" if self._talks else text
        said.add(text if self._talks else "")

    def _step(self, said: ParsedText) -> bool:
        """Decide on part of the text; False if more text is needed."""
        if self._object is not None:
            self._in_object(self._object, said)
            return True
        return self._outside(said) if self._between else self._in_content(said)

    def _in_object(self, call: CallObject | NamedArguments, said: ParsedText) -> None:
        fresh, had_name = "", call.name is not None and self._num_calls > call.index
        for at, character in enumerate(self._text):
            fresh += call.feed(character)
            if call.is_complete:
                self._text, self._object = self._text[at + (not call.is_cut) :], None
                break
        else:
            self._text = ""
        if call.name is None:
            if call.is_complete:
                self._reject(said, call.raw)
            return
        if call.is_complete and not call.has_arguments:
            fresh = "{}"
        if not had_name:
            self._num_calls = call.index + 1
            self._opened = self._blanks = ""
            self._talks = False
        if fresh or not had_name:
            said.add(CallPart(call.index, None if had_name else call.name, fresh))

    def _reject(self, said: ParsedText, text: str) -> None:
        opened, self._opened = self._opened, ""
        self._between = self._form.begin is None
        self._say(said, opened + text)

    def _outside(self, said: ParsedText) -> bool:
        """Read text between calls, or before the first; True if more can be read."""
        text, form = self._skipped(self._text), self._form
        if self._opened:
            self._opened += self._text[: len(self._text) - len(text)]
        self._text = text
        if not text:
            return False
        if text.startswith("{"):
            self._object = CallObject(self._num_calls)
            return True
        if form.end is not None and not self._opened and text.startswith(form.end):
            self._text, self._between = text[len(form.end) :], False
            return True
        if form.begin is None:
            self._text = ""
            return False
        if text.startswith(form.begin):
            opened, self._text = self._opened + form.begin, text[len(form.begin) :]
            self._opened = opened
            return True
        if any(mark is not None and mark.startswith(text) for mark in (form.begin, form.end)):
            return False
        if form.is_named and self._opened and (named := self._named(text)) is not None:
            return named
        self._reject(said, "")
        return True

    def _skipped(self, text: str) -> str:
        mark = self._form.begin or ""
        while text and text[0] in BETWEEN_CALLS and not (mark and mark.startswith(text[: len(mark)])):
            text = text[1:]
        return text

    def _named(self, text: str) -> bool | None:
        """Return whether a call begins with its name; None if it does not, False if more text is needed."""
        found = NAMED.match(text)
        if found is None:
            return False if len(text) < MOST_NAME and NAMED_SO_FAR.fullmatch(text) else None
        self._object = NamedArguments(self._num_calls, found[1])
        self._text = text[found.end() :]
        return True

    def _in_content(self, said: ParsedText) -> bool:
        mark = self._form.begin
        assert mark is not None
        if self._may_be_bare and (start := self._text.lstrip(BLANKS)):
            self._may_be_bare = False
            if start.startswith("{"):
                self._text, self._between = start, True
                return True
        found = self._text.find(mark)
        if found >= 0:
            self._say(said, self._text[:found])
            self._text, self._between, self._opened = self._text[found + len(mark) :], True, mark
            self._may_be_bare = False
            return True
        kept = overlap(self._text, mark)
        if self._may_be_bare:  # nothing but blanks
            return False
        self._say(said, self._text[: len(self._text) - kept])
        self._text = self._text[len(self._text) - kept :]
        return False
