"""`sundog perfetto`: a recorded run for a trace viewer."""

from pathlib import Path

import click

from sundog.ends import remark
from sundog.options.takes import command


@command
@click.argument("run", type=click.Path(path_type=Path))
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="The .json or .json.gz to write; by default in the run's folder.",
)
def perfetto(run: Path, output: Path | None) -> None:
    """Write a recorded run for Perfetto.

    RUN is a folder of `replay --out` or `serve --record`; open the result at ui.perfetto.dev.
    """
    from sim.explain.journal_reader import find_record
    from sim.show.perfetto import export

    path = output or find_record(run).parent / "perfetto.json.gz"
    remark(f"{path}: {export(run, path):,} events; open it at ui.perfetto.dev")
