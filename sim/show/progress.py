"""A progress bar on stderr for a long run; none without a terminal."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

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


@contextmanager
def runs_progress(what: str = "runs") -> Iterator[Callable[[int, int], None] | None]:
    """A function to call with how many runs (or `what`) are done, of how many; None without a terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn(what), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
