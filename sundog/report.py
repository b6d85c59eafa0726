"""`sundog report`: run directories in, one page out."""

from pathlib import Path

import click


@click.command()
@click.argument("runs", nargs=-1, required=True, metavar="DIR…", type=click.Path(path_type=Path))
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    default=Path("report.html"),
    show_default=True,
)
def report(runs: tuple[Path, ...], output: Path) -> None:
    """Show runs that `replay --out` wrote on one HTML page, several side by side."""
    from sim.record.run_directory import open_run
    from sim.show.html.page import write_page

    write_page([open_run(path) for path in runs], output)
    click.echo(output)
