"""`sundog figure`: a picture of a run or a sweep, as a vector."""

from dataclasses import dataclass
from pathlib import Path

import click

from sundog.actors.config import ConfigError
from sundog.options.row import AnyText, option
from sundog.options.takes import command, takes

OF_RUNS, OF_SWEEPS = ("cdf", "timeline"), ("load-curve", "pareto")
TAKEN = {"cdf": ("column", "by"), "timeline": (), "load-curve": ("metric", "by"), "pareto": ("metric",)}
"""The options of each picture."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FigureOptions:
    """Options of what a picture shows."""

    column: str = option("ttft_s", AnyText("NAME"), "cdf: what is distributed: ttft_s, tpot_s, e2e_s, ….")
    by: str | None = option(
        None,
        AnyText("NAME"),
        "cdf: a line for each value of a column, as tenant. load-curve: the axis of load.",
    )
    metric: tuple[str, ...] = option(
        (), AnyText("NAME"), "load-curve: what is drawn. pareto: two of them. As in sweep.", many=True
    )


@command
@takes(FigureOptions)
@click.option("-o", "--output", required=True, metavar="FILE", help="The .svg, .pdf or .png to write.")
@click.argument("folder", type=click.Path(path_type=Path), metavar="RUN|SWEEP")
@click.argument("kind", type=click.Choice((*OF_RUNS, *OF_SWEEPS)))
def figure(asked: FigureOptions, folder: Path, kind: str, output: str) -> None:
    """Draw a run or a sweep, as SVG, PDF or PNG.

    RUN is a folder of `replay --out`, of which cdf and timeline are drawn; SWEEP one of `sweep --out`, of
    which load-curve and pareto are.
    """
    from sundog.library.functions import read
    from sundog.library.results import SweepResult

    for name in ("column", "by", "metric"):
        if name not in TAKEN[kind] and getattr(asked, name) != getattr(FigureOptions(), name):
            others = " and ".join(each for each, names in TAKEN.items() if name in names)
            raise ConfigError(f"--{name} is for {others}: {kind} does not take it")
    found = read(folder)
    if isinstance(found, SweepResult):
        if kind not in OF_SWEEPS:
            raise ConfigError(f"{folder} is a sweep: draw {' or '.join(OF_SWEEPS)} of it")
        first, second = (*asked.metric, None, None)[:2]
        plot = (
            found.plot.load_curve(first, asked.by)
            if kind == "load-curve"
            else found.plot.pareto(first, second)
        )
    elif kind not in OF_RUNS:
        raise ConfigError(f"{folder} is a run: draw {' or '.join(OF_RUNS)} of it")
    else:
        plot = found.plot.cdf(asked.column, asked.by) if kind == "cdf" else found.plot.timeline()
    plot.save(output)
