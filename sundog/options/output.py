"""The option that says where a command writes its one file: the same in every command."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])


def output(what: str, default: str | None = None, *, required: bool = False) -> Callable[[F], F]:
    """`-o FILE`, or `--output FILE`, as the argument `output`; `what` is its help."""
    return click.option(
        "-o",
        "--output",
        type=click.Path(dir_okay=False, path_type=Path),
        default=default,
        show_default=default is not None,
        required=required,
        metavar="FILE",
        help=what,
    )
