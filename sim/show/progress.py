"""Progress of a command on stderr: a bar on a terminal, which alone needs rich."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress

UPDATE_EVERY = 64


@contextmanager
def progress(count: Callable[[], int]) -> Iterator[Callable[[int], None] | None]:
    """Yield a function to call with the number of arrived requests; None without a terminal.

    `count` returns the expected number, and is called only on a terminal.
    """
    if not sys.stderr.isatty():
        yield None
        return
    with _bar("requests") as bar:
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
    """Yield a function to call with the number of finished runs (or `what`) and the expected total.

    The remaining time is estimated from the last call with none done, which restarts it, or from the start. A
    terminal shows a bar; a file, or a notebook's cell, gets a plain line a minute.
    """
    if not sys.stderr.isatty():
        begin_s = last_s = now_s()

        def say(done: int, total: int) -> None:
            nonlocal begin_s, last_s
            if not done:
                begin_s = last_s = now_s()
            elif now_s() - last_s >= LINE_EVERY_S:
                last_s = now_s()
                left_s = (last_s - begin_s) * max(total - done, 0) / done
                print(
                    f"{done} of {total} {what}, about {_duration(left_s)} left", file=sys.stderr, flush=True
                )

        yield say
        return
    with _bar(what) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def _bar(what: str) -> "Progress":
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn(what), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    return Progress(*columns, console=Console(stderr=True), transient=True)


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min"
