"""Docstrings, those of attributes and private names too, are sentences that a stranger reads once."""

import ast
import re
from collections.abc import Iterator

import pytest

from tests.test_house import SOURCES, python_files
from tests.test_layers import ROOT

HEADLESS = re.compile(
    r"(What|How|Whether|Which|Where|When|Why|If|Who|Whose|Whom|Of|As|One|So many|The same|Those)\b"
)
"""Words that begin a clause without its subject: "What is served.", "Of each rank whether it is ready."."""
AVOIDED = re.compile(r"\b(so many|whoever|nobody|anew|for ever)\b", re.IGNORECASE)
"""Words that make a reader stop."""
FEWEST_WORDS = 5


def docstrings(file: str) -> Iterator[tuple[str, str]]:
    """The docstrings of a file, of its classes and functions, and of attributes, with their places."""
    for node in ast.walk(ast.parse((ROOT / file).read_text(encoding="utf-8"))):
        match node:
            case ast.Expr(value=ast.Constant(value=str(text))):
                yield f"{file}:{node.lineno}", text


def is_plain(text: str) -> bool:
    """True if the docstring begins as a sentence, is long enough, and has none of the avoided words."""
    return not HEADLESS.match(text) and len(text.split()) >= FEWEST_WORDS and not AVOIDED.search(text)


@pytest.mark.parametrize("package", SOURCES)
def test_docstrings_are_sentences(package: str) -> None:
    """All of them."""
    wrong = [at for file in python_files(package) for at, text in docstrings(file) if not is_plain(text)]
    assert not wrong, "\n".join(wrong)


def test_a_riddle_would_be_found() -> None:
    """Among sentences that say what they mean."""
    assert is_plain("Replace the holes in `blocks` with further free blocks.")
    assert not is_plain("As many more free blocks as there are holes among these.")
    assert not is_plain("One is, until it is answered.")
    assert not is_plain("When its first and its latest token came.")
    assert not is_plain("Its name, in full.")
