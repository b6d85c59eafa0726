"""`sundog perfetto`: a recorded run for a trace viewer."""

import math
from dataclasses import dataclass
from pathlib import Path

import click

from sundog.actors.config import ConfigError
from sundog.ends import remark
from sundog.options.row import Real, Whole, option
from sundog.options.takes import command, output, takes


@dataclass(frozen=True, slots=True, kw_only=True)
class PerfettoOptions:
    """Options that select the part of a run to draw."""

    from_s: float = option(0.0, Real(0, 1e12), "Draw what happens from this second on.", flag="--from")
    to_s: float | None = option(None, Real(0, 1e12), "Draw what happens until this second.", flag="--to")
    num_requests: int = option(
        2000,
        Whole(0, 2**30),
        "Draw at most this many requests: the slowest, and some of all others.",
        flag="--requests",
    )


@command
@takes(PerfettoOptions)
@click.argument("run", type=click.Path(path_type=Path))
@output("The .json or .json.gz to write; by default in the run's folder.")
def perfetto(asked: PerfettoOptions, run: Path, output: Path | None) -> None:
    """Export a recorded run for Perfetto.

    RUN is a folder of `replay --out` or `serve --record`; open the result at ui.perfetto.dev. Of a long run
    only a part is exported, as a remark says: --from and --to select seconds to export in full.
    """
    from sundog.sim.explain.journal_reader import find_record
    from sundog.sim.show.perfetto import Detail, export

    to_s = math.inf if asked.to_s is None else asked.to_s
    if to_s < asked.from_s:
        raise ConfigError(f"--to is {to_s:g}, before --from {asked.from_s:g}: give a later second")
    path = output or find_record(run).parent / "perfetto.json.gz"
    exported = export(run, path, Detail(asked.from_s, to_s, asked.num_requests))
    if exported.left_out:
        remark(f"left out: {'; '.join(exported.left_out)}. Give --from, --to or --requests for more of them")
    remark(f"{path}: {exported.num_events:,} events; open it at ui.perfetto.dev")
