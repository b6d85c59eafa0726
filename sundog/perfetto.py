"""`sundog perfetto`: a recorded run for a trace viewer."""

from pathlib import Path

import click


@click.command()
@click.argument("run", type=click.Path(path_type=Path))
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="A .json or .json.gz; in the run's folder if not given.",
)
def perfetto(run: Path, output: Path | None) -> None:
    """Write RUN, a folder of `replay --out` or `serve --record`, for Perfetto (ui.perfetto.dev)."""
    from sim.explain.record import find_record
    from sim.show.perfetto import export

    path = output or find_record(run).parent / "perfetto.json.gz"
    click.echo(f"{path}: {export(run, path):,} events; open it at ui.perfetto.dev", err=True)
