"""Calls of tools in the text of an answer, as it grows: content, functions, arguments.

Law: whatever way the text is cut into deltas, names and arguments are the same. What looks like a call and
names no function is content.
"""

import json
from dataclasses import dataclass, field

from actors.api.reasoning import overlap

NAME = "name"
ARGUMENTS = ("arguments", "parameters")
BLANKS = " \t\r\n"
BETWEEN_CALLS = BLANKS + "[],;"


@dataclass(frozen=True, slots=True)
class CallFormat:
    """How models write calls: JSON objects with a name and arguments, after `begin`, before `end`.

    `bare` calls need no `begin` where the answer starts with them. `keeps_special`: `begin` is a special
    token, which must not be left out of the text.
    """

    begin: str | None
    end: str | None = None
    bare: bool = False
    keeps_special: bool = False


FORMATS = {
    "hermes": CallFormat("<tool_call>", "</tool_call>"),
    "llama3_json": CallFormat("<|python_tag|>", bare=True, keeps_special=True),
    "mistral": CallFormat("[TOOL_CALLS]", keeps_special=True),
}
"""By the names that vLLM gives its parsers; `hermes` is Qwen's, too."""
LISTED = CallFormat(None, bare=True)
"""What a grammar makes of a required call: a JSON list of calls."""


@dataclass(frozen=True, slots=True)
class CallPart:
    """Something new of the call `index`: its name, which comes first and once, or more of its arguments."""

    index: int
    name: str | None
    arguments: str


@dataclass(slots=True)
class Said:
    """What a piece of text says."""

    content: str = ""
    parts: list[CallPart] = field(default_factory=list)


class CallObject:
    """One JSON object, character by character: its name, and its arguments as they are written."""

    def __init__(self, index: int) -> None:
        self.index = index
        self.name: str | None = None
        self.raw = ""
        self.is_complete = False
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
        if self._depth == 1 and character in ":,}":
            return self._punctuation(character)
        self._depth += (character in "{[") - (character in "}]")
        return "" if self._depth == 1 and self.raw == character else self._argument(character)

    def _punctuation(self, character: str) -> str:
        """A key ends, or a value does."""
        if character == ":" and self._key is None:
            self._key, self._token = _text(self._token), ""
            return ""
        if character in ",}":
            if self._key == NAME:
                self.name = _text(self._token)
            if self._key in ARGUMENTS:
                self._held = self._held.rstrip(BLANKS)
            self._key = None
        self.is_complete = character == "}"
        return self._released()

    def _argument(self, character: str) -> str:
        if self._key not in ARGUMENTS:
            return ""
        if self._held or character not in BLANKS or self._depth > 1:
            self._held += character
        return self._released()

    def _released(self) -> str:
        if self.name is None:
            return ""
        kept = self._held.rstrip(BLANKS) if self._depth == 1 and not self._in_string else self._held
        self._held = self._held[len(kept) :]
        return kept


def _text(token: str) -> str | None:
    try:
        value = json.loads(token)
    except ValueError:
        return None
    return value if isinstance(value, str) else None


class CallParser:
    """The calls of one answer."""

    def __init__(self, form: CallFormat) -> None:
        self._form = form
        self._text = ""
        """What has not been decided on: perhaps the beginning of a mark."""
        self._between = form.begin is None
        self._may_be_bare = form.bare
        self._object: CallObject | None = None
        self._num_calls = 0

    @property
    def has_called(self) -> bool:
        return self._num_calls > 0

    def feed(self, text: str) -> Said:
        """What the new text adds."""
        said, self._text = Said(), self._text + text
        while self._text and self._step(said):
            pass
        return said

    def flush(self) -> Said:
        """What is left at the end of the answer."""
        text, self._text = self._text, ""
        if self._object is not None and self._object.name is None:
            text = self._object.raw + text
        return Said("" if self._form.begin is None else text)

    def _step(self, said: Said) -> bool:
        """Decide on some of the text; False if more is needed."""
        if self._object is not None:
            self._in_object(self._object, said)
            return True
        return self._outside(said) if self._between else self._in_content(said)

    def _in_object(self, call: CallObject, said: Said) -> None:
        fresh, had_name = "", call.name is not None
        for at, character in enumerate(self._text):
            fresh += call.feed(character)
            if call.is_complete:
                self._text, self._object = self._text[at + 1 :], None
                break
        else:
            self._text = ""
        if call.name is None:
            if call.is_complete:
                said.content += call.raw
            return
        if not had_name:
            self._num_calls = call.index + 1
        if fresh or not had_name:
            said.parts.append(CallPart(call.index, None if had_name else call.name, fresh))

    def _outside(self, said: Said) -> bool:
        """Between calls, or before the first."""
        self._text = self._text.lstrip(BETWEEN_CALLS)
        if self._text.startswith("{"):
            self._object = CallObject(self._num_calls)
            return True
        for mark in filter(None, (self._form.end, self._form.begin)):
            if self._text.startswith(mark):
                self._text = self._text[len(mark) :]
                self._between = mark == self._form.begin
                return True
            if mark.startswith(self._text):
                return False
        if self._form.begin is None:
            self._text = ""
            return False
        self._between = False
        return True

    def _in_content(self, said: Said) -> bool:
        mark = self._form.begin
        assert mark is not None
        if self._may_be_bare and (start := self._text.lstrip(BLANKS)):
            self._may_be_bare = False
            if start.startswith("{"):
                self._text, self._between = start, True
                return True
        found = self._text.find(mark)
        if found >= 0:
            said.content += self._text[:found]
            self._text, self._between = self._text[found + len(mark) :], True
            self._may_be_bare = False
            return True
        kept = overlap(self._text, mark)
        if self._may_be_bare:  # nothing but blanks
            return False
        said.content += self._text[: len(self._text) - kept]
        self._text = self._text[len(self._text) - kept :]
        return False
