"""Names that are said often travel as numbers: both ends number them as they are first said.

Ids of requests stand in nearly every message, are 37 characters long, and are the same for hundreds of steps.
Frames come whole and in order, so that both ends of a link know what the other has said.
"""

MOST_NAMES = 4096
MOST_CHARACTERS = 80
"""A longer text is no name, and is said in full."""


class Spoken:
    """The sending end: a name's number, or the name itself when it is said for the first time."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}
        self._names: list[str] = []
        self._next = 0

    def pack(self, name: str) -> str | int:
        """Return what is sent for it. The name that was numbered longest ago is forgotten for a new one."""
        number = self._numbers.get(name)
        if number is not None:
            return number
        if len(name) <= MOST_CHARACTERS:
            if len(self._names) < MOST_NAMES:
                self._names.append(name)
            else:
                del self._numbers[self._names[self._next]]
                self._names[self._next] = name
            self._numbers[name] = self._next
            self._next = (self._next + 1) % MOST_NAMES
        return name

    def forget(self) -> None:
        """Forget all names, as the other end does when it is told."""
        self._numbers, self._names, self._next = {}, [], 0


class Heard:
    """The receiving end of it."""

    def __init__(self) -> None:
        self._names: list[str] = []
        self._next = 0

    def unpack(self, said: str | int) -> str:
        """The name that is meant; IndexError for a number that was never given."""
        if isinstance(said, int):
            return self._names[said] if said >= 0 else self._names[len(self._names)]
        if len(said) <= MOST_CHARACTERS:
            if len(self._names) < MOST_NAMES:
                self._names.append(said)
            else:
                self._names[self._next] = said
            self._next = (self._next + 1) % MOST_NAMES
        return said

    def forget(self) -> None:
        """Forget all names that were heard."""
        self._names, self._next = [], 0
