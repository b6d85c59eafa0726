"""The option that says where a command writes its one file, the same in every command; `-` is stdout."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])


class OutputFile(click.Path):
    """A file to write; `-` is standard output, `./-` a file of that name."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        from sim.files.whole_file import STDOUT

        return STDOUT if value == "-" else super().convert(value, param, ctx)


def say_where(path: Path) -> None:
    """The name of what was written, unless it went where the name would go."""
    from sim.files.whole_file import STDOUT

    if path != STDOUT:
        click.echo(path)


def output(what: str, default: str | None = None, *, required: bool = False) -> Callable[[F], F]:
    """`-o FILE`, or `--output FILE`, as the argument `output`; `what` is its help."""
    # A default of None is one, too: an option that has it is never missing.
    given = {"required": True} if required else {"default": default, "show_default": default is not None}
    file = OutputFile(dir_okay=False, path_type=Path)
    return click.option("-o", "--output", type=file, metavar="FILE", help=what, **given)
