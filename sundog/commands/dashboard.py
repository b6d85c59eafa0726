"""`sundog dashboard`: the live page of a recorded run, with a time slider."""

from dataclasses import dataclass
from pathlib import Path

import click

from sundog.actors.config import ConfigError
from sundog.ends import remark, writing
from sundog.options.row import Real, Whole, option
from sundog.options.takes import command, output, say_where, takes


@dataclass(frozen=True, slots=True, kw_only=True)
class DashboardOptions:
    """Options that select the instants of a run to show."""

    from_s: float | None = option(None, Real(0, 1e12), "Begin at this second.", flag="--from")
    to_s: float | None = option(None, Real(0, 1e12), "End at this second.", flag="--to")
    num_instants: int = option(600, Whole(2, 10_000), "Number of instants on the slider.", flag="--instants")


@command
@takes(DashboardOptions)
@click.argument("run", type=click.Path(path_type=Path))
@output("The page to write.", "dashboard.html")
def dashboard(asked: DashboardOptions, run: Path, output: Path) -> None:
    """Write the live page of a recorded run.

    RUN is a folder of `replay --out` or `serve --record`. The page is one file, and needs no server.
    """
    from sundog.sim.explain.load import load
    from sundog.sim.show.html.page import replayed_page, write_replayed

    history = load(run)
    arrivals_s = [request.arrival.time_s for request in history.requests.values()]
    if not arrivals_s:
        raise ConfigError(f"{run} has no requests: there is nothing to show")
    from_s = min(arrivals_s) if asked.from_s is None else asked.from_s
    to_s = max(history.until_s, max(arrivals_s)) if asked.to_s is None else asked.to_s
    if to_s < from_s:
        raise ConfigError(f"--to is {to_s:g}, before {from_s:g}: give a later second")
    if history.cut_off:
        remark(f"{run} is a part of a run: it breaks off at {history.until_s:,.3f} s")
    page = replayed_page(history, run.resolve().name, asked.num_instants, from_s, to_s)
    with writing(output):
        write_replayed(output, page)
    say_where(output)
