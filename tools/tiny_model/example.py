"""Examples: a short chat, the texts that its last answer must contain, and the facts needed for it.

The keys of an example name what must be known to answer it: without the wording where the answer follows from
a rule, and with the wording where it is a fact to remember. Whether an example is for training or for
evaluation depends on its keys alone. A kind of question is a function of a random generator that returns one
example; `FORMS` are the ways in which questions are put.
"""

import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random

Turn = tuple[str, str]
Kind = Callable[[Random], "Example"]
FORMS: dict[str, list[str]] = tomllib.loads((Path(__file__).parent / "forms.toml").read_text("utf-8"))


@dataclass(frozen=True, slots=True)
class Example:
    """Chat that ends with the assistant; a right last answer contains all of `needles`."""

    kind: str
    keys: tuple[str, ...]
    turns: tuple[Turn, ...]
    needles: tuple[str, ...]


def ask(kind: str, key: str, question: str, answer: str, *needles: str) -> Example:
    """Return an example with one question; without needles the answer must contain all of `answer`."""
    turns = (("user", question), ("assistant", answer))
    return Example(kind, (key,), turns, needles or (answer,))
