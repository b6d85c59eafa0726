"""Docstrings of public names are sentences that a stranger reads once."""

import ast
import re
from collections.abc import Iterator

import pytest

from tests.test_house import SOURCES, python_files
from tests.test_layers import ROOT

HEADLESS = re.compile(r"(What|How|Whether|Which|Where|Of|As|One|The same|Those)\b")
"""Words that begin a clause without its subject: "What is served.", "Of each rank whether it is ready."."""
AVOIDED = re.compile(r"\b(so many|whoever|nobody|anew|for ever)\b", re.IGNORECASE)
"""Words that make a reader stop."""
FEWEST_WORDS = 5


def docstrings(file: str) -> Iterator[tuple[str, str]]:
    """The public names of a file, its own included, with their docstrings."""
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            name = "" if isinstance(node, ast.Module) else node.name
            text = ast.get_docstring(node)
            if text is not None and not name.startswith("_"):
                yield f"{file}:{name}", text


def is_plain(text: str) -> bool:
    """True if the docstring begins as a sentence, is long enough, and has none of the avoided words."""
    return not HEADLESS.match(text) and len(text.split()) >= FEWEST_WORDS and not AVOIDED.search(text)


@pytest.mark.parametrize("package", SOURCES)
def test_public_docstrings_are_sentences(package: str) -> None:
    """All of them."""
    wrong = [name for file in python_files(package) for name, text in docstrings(file) if not is_plain(text)]
    assert not wrong, "\n".join(wrong)


def test_a_riddle_would_be_found() -> None:
    """Among sentences that say what they mean."""
    assert is_plain("Replace the holes in `blocks` with further free blocks.")
    assert not is_plain("As many more free blocks as there are holes among these.")
    assert not is_plain("One is, until it is answered.")
    assert not is_plain("Its name, in full.")
