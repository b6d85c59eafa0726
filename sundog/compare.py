"""`sundog compare`: two run directories in, differences with confidence out."""

from pathlib import Path

import click


@click.command()
@click.argument("first", type=click.Path(path_type=Path), metavar="A")
@click.argument("second", type=click.Path(path_type=Path), metavar="B")
@click.option("--json", "as_json", is_flag=True, help="Print the same as JSON.")
def compare(first: Path, second: Path, as_json: bool) -> None:
    """Say what differs between two runs that `replay --out` wrote, and how sure that is."""
    from rich.console import Console

    from sim.figures.compare import compare as compare_runs
    from sim.record.run_directory import open_run
    from sim.show.comparison import print_comparison, to_json

    a, b = open_run(first), open_run(second)
    found = compare_runs(a, b)
    if as_json:
        click.echo(to_json(found))
    else:
        console = Console(highlight=False)
        print_comparison(found, (a.name, b.name), console if console.is_terminal else Console(width=100))
