"""`sundog report`: folders of runs, or of a sweep, as one page."""

from pathlib import Path

import click

from sundog.actors.config import ConfigError
from sundog.options.takes import command, output, say_where


@command
@click.argument("runs", nargs=-1, required=True, metavar="RUN…|SWEEP", type=click.Path(path_type=Path))
@output("The page to write.", "report.html")
def report(runs: tuple[Path, ...], output: Path) -> None:
    """Show runs side by side, or a sweep, on one HTML page.

    Each RUN is a folder of `replay --out` or `bench --out`. SWEEP is a folder of `sweep --out`: the page has
    its load curves with bands, the Pareto front and the table, each with its data as CSV.
    """
    from sundog.sweeps.sweep_folder import TABLE_JSON

    sweeps = [path for path in runs if (path / TABLE_JSON).exists()]
    if sweeps:
        if len(runs) > 1:
            raise ConfigError(f"{sweeps[0]} is a sweep, which has a page of its own: give it alone")
        from sundog.library.results import SweepResult
        from sundog.library.sweep_page import write_sweep_page

        write_sweep_page(SweepResult.of_json(runs[0] / TABLE_JSON), runs[0].resolve().name, output)
        say_where(output)
        return
    from sundog.sim.record.run_directory import open_run
    from sundog.sim.show.html.page import write_page

    opened = [open_run(path) for path in runs]
    for run in opened:
        if run.remark is not None:
            click.echo(run.remark, err=True)
    write_page(opened, output)
    say_where(output)
