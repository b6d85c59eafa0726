"""What an option may be: each kind takes a text or a value of TOML, and refuses by its range.

Law: what a kind gives back is finite, within its bounds and of its type. It refuses with a
ValueError that says what would be right ("give a whole number from 1 to 64"); the caller knows the
option's name and puts it in front.
"""

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol


class Kind(Protocol):
    """The values of an option."""

    @property
    def metavar(self) -> str:
        """What stands behind the option in `--help`."""
        ...

    def take(self, value: object) -> object:
        """The value that `value` stands for; ValueError says what would be right."""
        ...


@dataclass(frozen=True, slots=True)
class Whole:
    """A whole number from `least` to `most`, both included."""

    least: int
    most: int
    metavar: str = "N"

    def take(self, value: object) -> int:
        number = None
        if isinstance(value, int) and not isinstance(value, bool):
            number = value
        elif isinstance(value, str):
            with suppress(ValueError):
                number = int(value)
        if number is None or not self.least <= number <= self.most:
            raise ValueError(f"give a whole number from {self.least:,} to {self.most:,}")
        return number


@dataclass(frozen=True, slots=True)
class Real:
    """A finite number from `least` to `most`; `above` and `below` leave the bound itself out."""

    least: float
    most: float
    above: bool = False
    below: bool = False
    metavar: str = "X"

    def take(self, value: object) -> float:
        number = math.nan
        if isinstance(value, int | float | str) and not isinstance(value, bool):
            with suppress(ValueError, OverflowError):
                number = float(value)
        large_enough = number > self.least if self.above else number >= self.least
        small_enough = number < self.most if self.below else number <= self.most
        if not (large_enough and small_enough):
            first = f"above {self.least:,.12g}" if self.above else f"from {self.least:,.12g}"
            last = f"to below {self.most:,.12g}" if self.below else f"to {self.most:,.12g}"
            raise ValueError(f"give a number {first} {last}")
        return number


@dataclass(frozen=True, slots=True)
class Choice:
    """One of a few words."""

    words: Sequence[str]

    @property
    def metavar(self) -> str:
        return "|".join(self.words)

    def take(self, value: object) -> str:
        if value not in self.words:
            raise ValueError(f"give one of {', '.join(self.words)}")
        return str(value)


@dataclass(frozen=True, slots=True)
class Text:
    """A text that is not empty; `is_path` if it may name a file (see `sundog.options.config_file`)."""

    metavar: str = "TEXT"
    is_path: bool = False

    def take(self, value: object) -> str:
        if not isinstance(value, str) or not value.strip() or "\0" in value:
            raise ValueError("give a text that is not empty")
        return value


@dataclass(frozen=True, slots=True)
class Parsed:
    """A text that `parse` can read; `parse` raises ValueError for others."""

    parse: Callable[[str], object]
    metavar: str

    def take(self, value: object) -> str:
        if not isinstance(value, str):
            raise ValueError(f"give a text like {self.metavar!r}")
        self.parse(value)
        return value


@dataclass(frozen=True, slots=True)
class Switch:
    """On or off: `--name`, and with `pair` also `--no-name`."""

    pair: bool = True
    metavar: str = ""

    def take(self, value: object) -> bool:
        if isinstance(value, bool):
            return value
        words = {"true": True, "false": False, "on": True, "off": False, "yes": True, "no": False}
        if not isinstance(value, str) or value.lower() not in words:
            raise ValueError("give true or false")
        return words[value.lower()]
