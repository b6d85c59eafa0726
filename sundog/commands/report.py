"""`sundog report`: run directories in, one page out."""

from pathlib import Path

import click

from sundog.options.takes import command, output, say_where


@command
@click.argument("runs", nargs=-1, required=True, metavar="DIR…", type=click.Path(path_type=Path))
@output("The page to write.", "report.html")
def report(runs: tuple[Path, ...], output: Path) -> None:
    """Show runs on one HTML page, side by side.

    Each DIR is a folder that `replay --out` wrote.
    """
    from sim.record.run_directory import open_run
    from sim.show.html.page import write_page

    opened = [open_run(path) for path in runs]
    for run in opened:
        if run.remark is not None:
            click.echo(run.remark, err=True)
    write_page(opened, output)
    say_where(output)
