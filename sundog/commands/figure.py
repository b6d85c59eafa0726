"""`sundog figure`: a picture of runs or a sweep as vector graphics."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from sundog.actors.config import ConfigError
from sundog.options.row import AnyText, option
from sundog.options.takes import command, takes

if TYPE_CHECKING:
    from sundog.library.plots import Plot

OF_RUNS, OF_SWEEPS = ("cdf", "timeline"), ("load-curve", "pareto")
TAKEN = {"cdf": ("column", "by"), "timeline": (), "load-curve": ("metric", "by"), "pareto": ("metric",)}
"""Options of each picture."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FigureOptions:
    """Options of a picture's contents."""

    column: str = option("ttft_s", AnyText("NAME"), "cdf: the metric, as ttft_s, tpot_s or e2e_s.")
    by: str | None = option(
        None,
        AnyText("NAME"),
        "cdf: draw one line per value of this column, as tenant. load-curve: the axis of load.",
    )
    metric: tuple[str, ...] = option(
        (),
        AnyText("NAME"),
        "load-curve: the metric to draw; pareto: two metrics, named as in sweep.",
        many=True,
    )


@command
@takes(FigureOptions)
@click.option("-o", "--output", required=True, metavar="FILE", help="The .svg, .pdf or .png to write.")
@click.argument("folders", type=click.Path(path_type=Path), metavar="RUN...|SWEEP", nargs=-1, required=True)
@click.argument("kind", type=click.Choice((*OF_RUNS, *OF_SWEEPS)))
def figure(asked: FigureOptions, folders: tuple[Path, ...], kind: str, output: str) -> None:
    """Draw runs or a sweep, as SVG, PDF or PNG.

    RUN is a folder of `replay --out`, for `cdf` and `timeline`; a cdf of several runs has one line for each.
    SWEEP is a folder of `sweep --out`, for `load-curve` and `pareto`.
    """
    for name in ("column", "by", "metric"):
        if name not in TAKEN[kind] and getattr(asked, name) != getattr(FigureOptions(), name):
            others = " and ".join(each for each, names in TAKEN.items() if name in names)
            raise ConfigError(f"--{name} is for {others}: {kind} does not take it")
    plot = _of_runs(asked, folders, kind) if len(folders) > 1 else _of_one(asked, folders[0], kind)
    plot.save(output)


def _of_runs(asked: FigureOptions, folders: tuple[Path, ...], kind: str) -> "Plot":
    from sundog.library.questions import figure as drawn

    if kind != "cdf":
        raise ConfigError(
            f"{kind} is drawn of one folder, and {len(folders)} are given: give one, or draw cdf"
        )
    if asked.by is not None:
        raise ConfigError("--by is for one run: the cdf of several has a line for each run")
    return drawn(folders, asked.column)


def _of_one(asked: FigureOptions, folder: Path, kind: str) -> "Plot":
    from sundog.library.functions import read
    from sundog.library.results import SweepResult

    found = read(folder)
    if isinstance(found, SweepResult):
        if kind not in OF_SWEEPS:
            raise ConfigError(f"{folder} is a sweep: draw {' or '.join(OF_SWEEPS)} of it")
        if kind == "load-curve":
            return found.plot.load_curve(next(iter(asked.metric), None), asked.by)
        first, second = (*asked.metric, None, None)[:2]
        return found.plot.pareto(first, second)
    if kind not in OF_RUNS:
        raise ConfigError(f"{folder} is a run: draw {' or '.join(OF_RUNS)} of it")
    return found.plot.cdf(asked.column, asked.by) if kind == "cdf" else found.plot.timeline()
