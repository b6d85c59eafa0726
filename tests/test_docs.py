"""Tests, files and commands named in the project's pages exist."""

import re
import shlex
from functools import cache

import click
import pytest

from sundog.actors.config import ConfigError
from sundog.cli import cli
from tests.test_layers import ROOT

LAWS = ("docs/laws.md", "docs/kernel.md", "docs/fates.md")
PAGES = ("README.md", "CONTRIBUTING.md", "docs/house.md", "docs/walk.md", *LAWS)
ROOMS_OF_TESTS = ("", "tests/", "tests/actors/")
"""A page may leave out the folder that it is about."""


@cache
def found_in(file: str) -> frozenset[str]:
    text = (ROOT / file).read_text(encoding="utf-8")
    return frozenset(re.findall(r"^ *(?:async )?def (test_\w+)", text, re.MULTILINE))


@cache
def every_test() -> frozenset[str]:
    files = (ROOT / "tests").rglob("test_*.py")
    return frozenset().union(*(found_in(str(file.relative_to(ROOT))) for file in files))


def is_there(word: str) -> bool:
    """Whether a file of tests, one of its tests, or a test by the beginning of its name exists."""
    file, _, name = word.rpartition("::") if "::" in word else ("", "", word)
    if name.endswith(".py"):
        return any((ROOT / room / name).is_file() for room in ROOMS_OF_TESTS)
    known = found_in(file) if file and (ROOT / file).is_file() else frozenset[str]() if file else every_test()
    start = name.removesuffix("…")
    return name in known or (name != start and any(test.startswith(start) for test in known))


@pytest.mark.parametrize("page", LAWS)
def test_every_test_that_a_page_of_laws_names_exists(page: str) -> None:
    words = re.findall(r"`([\w/.:…]*\btest_[\w.:/…]+)`", (ROOT / page).read_text(encoding="utf-8"))
    assert words
    assert not [word for word in words if not is_there(word)]


def test_a_test_that_is_not_there_would_be_found() -> None:
    assert is_there("tests/test_laws.py::test_time_never_goes_back")
    assert is_there("test_kernel_laws.py")
    assert is_there("test_1_…")
    assert not is_there("tests/test_laws.py::test_time_goes_back")
    assert not is_there("tests/test_none.py::test_time_never_goes_back")
    assert not is_there("test_none.py")
    assert not is_there("test_0_…")


def test_every_law_has_a_number_of_its_own_and_a_test() -> None:
    rows = re.findall(
        r"^\| ([A-Z]\d+) \|.*?\|(.*?)\|", (ROOT / "docs/laws.md").read_text(encoding="utf-8"), re.M
    )
    numbers = [number for number, _ in rows]
    assert len(numbers) == len(set(numbers)) > 30
    assert not [number for number, tests in rows if "::test_" not in tests]


@pytest.mark.parametrize("page", PAGES)
def test_every_file_that_a_page_names_exists(page: str) -> None:
    """By its path from the root; a bare name is the page's own shorthand."""
    text = (ROOT / page).read_text(encoding="utf-8")
    rooms = r"actors|runtime|sim|sundog|tests|tools|docs|traces"
    paths = re.findall(rf"`((?:{rooms})/[\w/.-]*\w/?)`", text)
    assert not [path for path in paths if not (ROOT / path).exists()]


def commands_of(page: str) -> list[list[str]]:
    """The words after `sundog` of every command line in a page's blocks; those with … are not whole."""
    text = (ROOT / page).read_text(encoding="utf-8").replace("\\\n", " ")
    fenced = re.findall(r"^```\w*\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    lines = [line for block in fenced for line in block.splitlines()]
    lines += [line.strip() for line in text.splitlines() if line.startswith("    ")]
    found = [re.match(r"(?:\S*/)?sundog (.*)", line) for line in lines]
    return [shlex.split(each[1], comments=True) for each in found if each and "…" not in each[1]]


PAGES_WITH_COMMANDS = (
    "README.md",
    *(str(page.relative_to(ROOT)) for page in sorted((ROOT / "docs").rglob("*.md"))),
)


@pytest.mark.parametrize("page", [page for page in PAGES_WITH_COMMANDS if commands_of(page)])
def test_every_command_that_a_page_shows_is_one(page: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its name, its options and their values are taken as they stand; nothing is run."""
    monkeypatch.chdir(ROOT)
    for name, *words in commands_of(page):
        if "--config" in words:  # of a run that an earlier line makes, and that knows its trace
            at = words.index("--config")
            words[at : at + 2] = ["TRACE"]
        parsed(name, words)


def parsed(name: str, words: list[str]) -> None:
    command = cli.get_command(click.Context(cli), name)
    assert command is not None, f"{name} is no command"
    command.make_context(name, words)


@pytest.mark.parametrize(
    ("name", "words", "says"),
    [("repaly", [], "is no command"), ("replay", ["TRACE", "--max-num-seq", "8"], "max-num-seq")],
)
def test_a_command_that_is_none_would_be_found(name: str, words: list[str], says: str) -> None:
    """By its name or its options."""
    with pytest.raises((AssertionError, click.ClickException, ConfigError), match=says):
        parsed(name, words)
