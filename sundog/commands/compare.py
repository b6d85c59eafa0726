"""`sundog compare`: two run directories in, differences with confidence out."""

from dataclasses import dataclass
from pathlib import Path

import click

from sundog.options import Switch, option
from sundog.options.takes import command, takes


@dataclass(frozen=True, slots=True, kw_only=True)
class CompareOptions:
    """Options of the form in which differences are shown."""

    as_json: bool = option(False, Switch(pair=False), "Print the same as JSON.", flag="--json")


@command
@takes(CompareOptions)
@click.argument("first", type=click.Path(path_type=Path), metavar="A")
@click.argument("second", type=click.Path(path_type=Path), metavar="B")
def compare(asked: CompareOptions, first: Path, second: Path) -> None:
    """Say what differs between two runs, and how sure that is.

    A and B are folders that `replay --out` wrote.
    """

    from sim.figures.compare import compare as compare_runs
    from sim.record.run_directory import open_run
    from sim.show.comparison import print_comparison, to_json
    from sim.show.console import console_for

    a, b = open_run(first), open_run(second)
    for run in (a, b):
        if run.remark is not None:
            click.echo(run.remark, err=True)
    found = compare_runs(a, b)
    if asked.as_json:
        click.echo(to_json(found))
    else:
        print_comparison(found, (a.name, b.name), console_for())
