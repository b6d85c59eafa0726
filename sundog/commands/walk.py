"""`sundog walk`: one request of a recorded run, message by message."""

from dataclasses import dataclass
from pathlib import Path

import click

from sundog.ends import remark
from sundog.options.row import Switch, option
from sundog.options.takes import command, output, say_where, takes


@dataclass(frozen=True, slots=True, kw_only=True)
class WalkOptions:
    """Options of the output of a walk."""

    as_text: bool = option(
        False, Switch(pair=False), "Print the walk as lines, and write no page.", flag="--text"
    )


@command
@takes(WalkOptions)
@click.argument("run", type=click.Path(path_type=Path))
@click.argument("request_id", metavar="REQUEST")
@output("The page to write.", "walk.html")
def walk(asked: WalkOptions, run: Path, request_id: str, output: Path) -> None:
    """Follow one request of a recorded run through the graph.

    RUN is a folder that `replay`, `emulate` or `serve` recorded with --messages. The page shows each message
    about the request with the code that handled it, its batches and the other requests in them, and why it
    waited.
    """
    from sundog.library.questions import walk as walked

    found = walked(run, request_id)
    for path in found.cut_off:
        remark(f"{path} is a part of a run: it breaks off, and what came later is missing here")
    if asked.as_text:
        click.echo(found.text)
        return
    found.save(output)
    say_where(output)
