"""Console for all tables and pages for people.

It is as wide as the terminal, or `PIPED` columns without one. Law: no digit is lost. A wider table is printed
as wide as its numbers need, and the terminal wraps the lines. On a narrow terminal, names of requests and
tenants lose their middle; in a pipe they are whole.
"""

from typing import IO

from rich import box
from rich.cells import cell_len
from rich.console import Console, RenderableType
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

PIPED = 96
WIDEST = 10_000
LONGEST_NAME = 30


def console_for(file: IO[str] | None = None) -> Console:
    """Return a console on the file, by default standard output."""
    console = Console(file=file, highlight=False)
    return console if console.is_terminal else Console(file=file, highlight=False, width=PIPED)


def table_of(*heads: str, num_names: int = 1) -> Table:
    """Return a table whose first `num_names` columns hold words, and the others numbers."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for number, head in enumerate(heads):
        table.add_column(head, justify="left" if number < num_names else "right")
    return table


def print_table(console: Console, table: Table) -> None:
    """Print a table with complete, right-aligned numbers."""
    natural = Measurement.get(console, console.options.update(width=WIDEST), table).maximum
    if console.is_terminal and natural > console.width:
        for column in table.columns:
            if column.justify != "right":
                column._cells = [_shortened(cell) for cell in column.cells]
    for column in table.columns:
        column.overflow = "fold"
    for column in table.columns:
        column.no_wrap = column.no_wrap or column.justify == "right"
        if column.no_wrap:  # Rich takes the longest word for the least width, and cuts the rest.
            texts = [text for text in (column.header, *column.cells) if isinstance(text, str)]
            column.min_width = max(
                (cell_len(line) for text in texts for line in text.splitlines()), default=0
            )
    options = console.options.update(width=WIDEST)
    least, usual = Measurement.get(console, options, table).minimum, console.width
    console.width = max(least, usual)
    console.print(table)
    console.width = usual


def _shortened(cell: RenderableType) -> RenderableType:
    if isinstance(cell, Text):
        return Text(shortened(cell.plain), cell.style)
    return shortened(cell) if isinstance(cell, str) else cell


def shortened(text: str) -> str:
    """Return the text without the middle of its longest words; both ends identify them."""
    words = [
        word
        if cell_len(word) <= LONGEST_NAME
        else f"{word[: LONGEST_NAME // 2]}…{word[-LONGEST_NAME // 3 :]}"
        for word in text.split(" ")
    ]
    return " ".join(words)
