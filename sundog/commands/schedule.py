"""`sundog schedule`: the scheduler's decisions on a trace, in the golden files' format."""

from dataclasses import dataclass
from pathlib import Path

import click

from sundog.actors.core.engine_version import decisions_of
from sundog.ends import remark, writing
from sundog.options.engine import EngineOptions
from sundog.options.row import Switch, option, rows
from sundog.options.takes import command, output, takes

OF_THE_TRACE = {row.name for row in rows(EngineOptions)} - {"engine_version"}
"""Options of an engine that a trace by steps sets itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleOptions:
    """Options that choose the scheduler and its algorithm."""

    lockstep: bool = option(True, Switch(), "Update only requests that change; the decisions are the same.")


@command
@takes(ScheduleOptions, EngineOptions, without=OF_THE_TRACE)
@output("The log to write.", required=True)
@click.argument("trace", type=click.Path(exists=True, path_type=Path))
def schedule(asked: ScheduleOptions, engine: EngineOptions, trace: Path, output: Path) -> None:
    """Log every decision of the scheduler on TRACE.

    The log has the format of the golden files, to compare with vLLM's by a plain diff. TRACE has their format
    for traces by steps, with its own configuration (tests/golden/README.md).
    """
    from sundog.sim.schedule.decision_log import log_trace, read_step_trace

    steps = read_step_trace(trace, decisions_of(engine.engine_version))
    with writing(output):
        stalled = log_trace(steps, output, asked.lockstep)
    if stalled is not None:
        remark(f"{trace} stalls: {stalled}")
