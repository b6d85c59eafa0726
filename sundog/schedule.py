"""`sundog schedule`: the scheduler's decisions on a trace, in the golden files' format."""

from dataclasses import dataclass
from pathlib import Path

import click

from actors.config import ConfigError
from sundog.ends import remark
from sundog.options import Choice, Switch, option
from sundog.options.takes import command, takes


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """How decisions are taken."""

    engine_version: str = option("0.33", Choice(("0.32", "0.33")), "The vLLM whose decisions are taken.")
    lockstep: bool = option(True, Switch(), "Touch only what changes; the decisions are the same.")


@command
@takes(Schedule)
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    required=True,
    metavar="FILE",
    help="The log to write.",
)
@click.argument("trace", type=click.Path(exists=True, dir_okay=False, path_type=Path))
def schedule(asked: Schedule, trace: Path, output: Path) -> None:
    """Log every decision of the scheduler on TRACE.

    The log has the format of the golden files, to compare with vLLM's own by a plain diff.
    """
    from sim.schedule.decision_log import log_trace

    try:
        stalled = log_trace(trace, output, asked.engine_version, asked.lockstep)
    except OSError as error:
        raise ConfigError(f"{output} cannot be written: {error.strerror or error}") from None
    if stalled is not None:
        remark(f"{trace} stalls: {stalled}")
