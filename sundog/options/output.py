"""The option that says where a command writes its one file: the same in every command."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])


def output(what: str, default: str | None = None, *, required: bool = False) -> Callable[[F], F]:
    """`-o FILE`, or `--output FILE`, as the argument `output`; `what` is its help."""
    # A default of None is one, too: an option that has it is never missing.
    given = {"required": True} if required else {"default": default, "show_default": default is not None}
    file = click.Path(dir_okay=False, path_type=Path)
    return click.option("-o", "--output", type=file, metavar="FILE", help=what, **given)
