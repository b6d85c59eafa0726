"""Tool calls in the text of an answer, parsed as it grows: content, functions, arguments.

Law: names and arguments do not depend on how the text is cut into deltas. Text that looks like a call but
names no function is content, including its mark. Whitespace before and between calls is dropped.
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
"""Key of a message or delta for conversion to other shapes: its texts and call numbers in order."""


class CallObject:
    """Parser of a call as a JSON object: its name and its arguments as written."""

    def __init__(self, index: int) -> None:
        self.index = index
        self.name: str | None = None
        self.raw = ""
        self.has_arguments = False
        """Whether part of the arguments was released."""
        self.is_complete = self.is_cut = False
        """Whether the object has ended; if it `is_cut`, before the last character, which is invalid JSON
        there.
        """
        self._depth = 0
        self._in_string = self._escaped = False
        self._key: str | None = None
        self._token = ""
        self._held = ""

    def feed(self, character: str) -> str:
        """Add a character; return new arguments, "" before the name is known."""
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
    """Parser of arguments after a function's name: one JSON object, passed through."""

    def __init__(self, index: int, name: str) -> None:
        self.index = index
        self.name: str | None = name
        self.raw = ""
        self.has_arguments = False
        self.is_complete = self.is_cut = False
        self._depth = 0
        self._in_string = self._escaped = False

    def feed(self, character: str) -> str:
        """Add a character and return it."""
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
    """Return arguments as an object if a model wrote them as a JSON string, as Granite's models do."""
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
"""Pattern for the beginning of a call of newer Mistral models: a function's name, and marks before its
arguments.
"""


@dataclass(frozen=True, slots=True)
class CallFormat:
    """Format of a model's calls: JSON objects with a name and arguments, between `begin` and `end`.

    `bare` calls need no `begin` at the start of the answer; a call that `is_named` may be a function's name
    followed by arguments. `keeps_special`: `begin` is a special token, which must stay in the text.
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
"""Formats of calls by vLLM's parser names; `hermes` is also Qwen's."""
LISTED = CallFormat(None, bare=True)
"""Format of a required call under a grammar: a JSON list of calls."""


@dataclass(frozen=True, slots=True)
class CallPart:
    """New output of the call `index`: its name, which comes first and once, or more arguments."""

    index: int
    name: str | None
    arguments: str


@dataclass(slots=True)
class ParsedText:
    """Content and parts of calls in a piece of text, in order."""

    said: list[str | CallPart] = field(default_factory=list)

    def add(self, piece: str | CallPart) -> None:
        """Append a piece; consecutive texts are merged."""
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
    """Parser of the calls of one answer."""

    def __init__(self, form: CallFormat) -> None:
        self._form = form
        self._text = ""
        """Undecided text, which may begin a mark."""
        self._between = form.begin is None
        self._opened = ""
        """Text that becomes content if no call follows: a mark and the whitespace behind it."""
        self._blanks = ""
        """Whitespace at the start of content or after a call; content only if more content follows."""
        self._talks = False
        self._may_be_bare = form.bare
        self._object: CallObject | NamedArguments | None = None
        self._num_calls = 0

    @property
    def has_called(self) -> bool:
        return self._num_calls > 0

    @property
    def open_call(self) -> int | None:
        """Index of the call with incomplete arguments, if any."""
        call = self._object
        return None if call is None or call.name is None else call.index

    def feed(self, text: str) -> ParsedText:
        """Return what the new text adds."""
        said, self._text = ParsedText(), self._text + text
        while self._text and self._step(said):
            pass
        return said

    def flush(self) -> ParsedText:
        """Return the rest at the end of the answer."""
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
        """Parse text between calls, or before the first; return True if more can be parsed."""
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
        """Return whether a call begins here with a function's name: None if not, False if more text is
        needed.
        """
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
