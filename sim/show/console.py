"""The one console that all tables and pages for people are printed on.

As wide as the terminal, or `PIPED` columns where there is none. Law: no digit is lost. A table that
is wider than that is printed as wide as its numbers need, and the terminal wraps the lines. On a terminal
that is too narrow, names of requests and tenants lose their middle; in a pipe they are whole.
"""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import IO

from rich.cells import cell_len
from rich.console import Console, RenderableType
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

PIPED = 96
WIDEST = 10_000
LONGEST_NAME = 30


def console_for(file: IO[str] | None = None) -> Console:
    """A console on the file, by default standard output."""
    console = Console(file=file, highlight=False)
    return console if console.is_terminal else Console(file=file, highlight=False, width=PIPED)


def print_table(console: Console, table: Table) -> None:
    """Print a table whose numbers stand at the right of their columns, all of them whole."""
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
    """The text with the middle of its longest words left out; their two ends tell them apart."""
    words = [
        word
        if cell_len(word) <= LONGEST_NAME
        else f"{word[: LONGEST_NAME // 2]}…{word[-LONGEST_NAME // 3 :]}"
        for word in text.split(" ")
    ]
    return " ".join(words)


UPDATE_EVERY = 64


@contextmanager
def progress(count: Callable[[], int]) -> Iterator[Callable[[int], None] | None]:
    """A function to call with the number of requests that have arrived; None without a terminal.

    `count` says how many will come, and is called only where there is a terminal.
    """
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    columns = (TextColumn("requests"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("replay", total=count())

        def update(number: int) -> None:
            if number % UPDATE_EVERY == 0:
                bar.update(task, completed=number)

        yield update


LINE_EVERY_S = 60.0


@contextmanager
def runs_progress(
    what: str = "runs", now_s: Callable[[], float] = time.monotonic
) -> Iterator[Callable[[int, int], None]]:
    """A function to call with how many runs (or `what`) are done, of how many as far as one can see.

    A terminal has a bar with the time left; where stderr is a file, or a notebook's cell, a plain line a
    minute says the same.
    """
    if not sys.stderr.isatty():
        begin_s = last_s = now_s()

        def say(done: int, total: int) -> None:
            nonlocal last_s
            if now_s() - last_s >= LINE_EVERY_S:
                last_s = now_s()
                left_s = (last_s - begin_s) * max(total - done, 0) / max(done, 1)
                print(
                    f"{done} of {total} {what}, about {_duration(left_s)} left", file=sys.stderr, flush=True
                )

        yield say
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn(what), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min"
