"""Console output: numbers are never split at any width, and words are wrapped."""

import io

import pytest
from rich.console import Console
from rich.table import Table

from sundog.sim.show.console import PIPED, console_for, print_table, shortened

NUMBERS = ("1,234,567.89", "98,765,432.10", "123,456.78", "0.000123", "45,678,901")


@pytest.mark.parametrize("width", [20, 40, 60, 96])
def test_no_digit_is_lost_on_a_narrow_terminal(width: int) -> None:
    """Nor is the width of what is printed afterwards another one."""
    file = io.StringIO()
    console = Console(file=file, width=width)
    table = Table("what is shown here in words that may be folded as often as it takes", box=None)
    for _ in NUMBERS:
        table.add_column("number", justify="right")
    table.add_row("words", *NUMBERS)
    print_table(console, table)
    assert all(number in file.getvalue() for number in NUMBERS)
    assert console.width == width


def test_where_there_is_no_terminal_words_are_folded_at_one_width() -> None:
    """So that pages in files and pipes are the same everywhere."""
    file = io.StringIO()
    console_for(file).print("word " * 100)
    assert max(map(len, file.getvalue().splitlines())) <= PIPED


@pytest.mark.parametrize("is_terminal", [True, False])
def test_a_long_name_is_cut_on_a_narrow_terminal_alone(is_terminal: bool) -> None:
    """In its middle, so that names which begin alike stay apart; a pipe has it whole."""
    names = [f"{'request-' * 10}{number}" for number in (17, 18)]
    file = io.StringIO()
    console = Console(file=file, width=60, force_terminal=is_terminal, color_system=None)
    table = Table(box=None)
    table.add_column("request", no_wrap=True)
    table.add_column("waited", justify="right")
    for name in names:
        table.add_row(name, "1,234.5 s")
    print_table(console, table)
    lines = file.getvalue().splitlines()[1:]
    assert all("1,234.5 s" in line for line in lines) and lines[0] != lines[1]
    assert (max(map(len, lines)) <= 60) == is_terminal and (names[0] in lines[0]) != is_terminal


def test_only_long_words_are_cut() -> None:
    """Whatever else a cell says is kept."""
    assert shortened(f"{'x' * 90}: TTFT p99 of many words that may be folded").endswith(
        "x: TTFT p99 of many words that may be folded"
    )
    assert shortened("") == "" and shortened("a b") == "a b"
