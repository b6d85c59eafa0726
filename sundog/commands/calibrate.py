"""`sundog calibrate`: a cost model from an engine at hand, or from a log of steps or requests."""

from pathlib import Path

import click

from sundog.ends import remark
from sundog.options.clients import ServerLoads
from sundog.options.engine import SIMULATED_ONLY, EngineOptions, MeasuringOptions
from sundog.options.simulation import ReadingOptions
from sundog.options.takes import command, takes


@command
@takes(
    MeasuringOptions, ServerLoads, ReadingOptions, EngineOptions, without=(*SIMULATED_ONLY, "enforce_eager")
)
@click.argument("sources", metavar="MODEL|URL [TRACE]|LOG...", nargs=-1, required=True)
@click.option(
    "-o",
    "--output",
    required=True,
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="The .toml to write, for `--cost FILE`.",
)
def calibrate(
    measuring: MeasuringOptions,
    loads: ServerLoads,
    reading: ReadingOptions,
    engine: EngineOptions,
    sources: tuple[str, ...],
    output: Path,
) -> None:
    """Fit a cost model to an engine, a server, or a log.

    MODEL is a folder, OWNER/NAME on the Hugging Face hub, or sundog-tiny, the embedded model: its engine is
    measured. URL is a server with OpenAI's API: it gets TRACE, or a workload's .toml, at each --request-rate.
    LOG is the folder of a run, a server's requests or `bench --out`, or a file of steps.
    """
    from sundog.calibration.sources import calibrated

    found = calibrated(sources, output, measuring=measuring, loads=loads, reading=reading, engine=engine)
    for text in found.remarks:
        remark(text)
    if found.left_out:
        from sundog.sim.show.comparison import print_figures
        from sundog.sim.show.console import console_for

        figures = [
            figure._replace(name=f"{load}: {figure.name}")
            for load, own in found.left_out.items()
            for figure in own.values()
        ]
        print_figures(figures, console_for(), "each load, predicted by a fit to the other loads alone")
