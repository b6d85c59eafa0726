"""`sundog walk`: one request of a recorded run, message by message."""

from dataclasses import dataclass
from pathlib import Path

import click

from sundog.ends import remark, writing
from sundog.options.row import Switch, option
from sundog.options.takes import command, output, say_where, takes


@dataclass(frozen=True, slots=True, kw_only=True)
class WalkOptions:
    """Options that choose the form of a walk."""

    as_text: bool = option(
        False, Switch(pair=False), "Print the walk as lines, and write no page.", flag="--text"
    )


@command
@takes(WalkOptions)
@click.argument("run", type=click.Path(path_type=Path))
@click.argument("request_id", metavar="REQUEST")
@output("The page to write.", "walk.html")
def walk(asked: WalkOptions, run: Path, request_id: str, output: Path) -> None:
    """Walk one request of a recorded run through the graph.

    RUN is a folder that `replay`, `emulate` or `serve` recorded with --messages. The page shows each
    message about the request, with the code that handled it, the batches it was in, who shared them,
    and why it waited.
    """
    from sundog.sim.explain.walk import walk as walked
    from sundog.sim.files.run_files import write_whole
    from sundog.sim.show.html.walk_page import render, text

    found = walked(run, request_id)
    for path in found.cut_off:
        remark(f"{path} is a part of a run: it breaks off, and what came later is missing here")
    if asked.as_text:
        click.echo(text(found))
        return
    with writing(output):
        write_whole(output, render(found, run.resolve().name))
    say_where(output)
