"""The console: numbers are whole at every width, and words are folded."""

import io

import pytest
from rich.console import Console
from rich.table import Table

from sim.show.console import PIPED, console_for, print_table

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
