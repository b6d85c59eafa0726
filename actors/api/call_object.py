"""The JSON object of one call, as it grows: the function's name, and its arguments as they are written."""

import json

NAME = "name"
ARGUMENTS = ("arguments", "parameters")
BLANKS = " \t\r\n"


class CallObject:
    """One JSON object, character by character: its name, and its arguments as they are written."""

    def __init__(self, index: int) -> None:
        self.index = index
        self.name: str | None = None
        self.raw = ""
        self.has_arguments = False
        """Whether any of them was released."""
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
        if self._held or self._in_string or character not in BLANKS or self._depth > 1:
            self._held += character
        return self._released()

    def _released(self) -> str:
        if self.name is None:
            return ""
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
        self.is_complete = False
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
