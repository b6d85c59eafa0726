"""`sundog schedule`: the scheduler's decisions on a trace, in the golden files' format."""

from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import click

from actors.config import ConfigError
from actors.core.engine_version import decisions_of
from sundog.ends import remark, writing
from sundog.options.engine import EngineOptions
from sundog.options.row import SCHEDULER, Real, Switch, option, refuse, rows
from sundog.options.simulation import ReadingOptions
from sundog.options.takes import command, output, takes

if TYPE_CHECKING:
    from sim.schedule.step_trace import StepTrace

HEEDED = ("policy", "engine_version", "prefix_caching_hash_algo")
"""What is heeded of an engine beside the scheduler's limits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleOptions:
    """Options of how the scheduler's decisions are taken."""

    lockstep: bool = option(True, Switch(), "Touch only what changes; the decisions are the same.")
    step_s: float = option(
        0.05,
        Real(0, 86_400, above=True),
        "Seconds that a step takes, for a trace of arrivals in seconds.",
        flag="--step-seconds",
    )


@command
@takes(ScheduleOptions, ReadingOptions, EngineOptions)
@output("The log to write.", required=True)
@click.argument("trace", type=click.Path(exists=True, path_type=Path))
def schedule(
    asked: ScheduleOptions, reading: ReadingOptions, engine: EngineOptions, trace: Path, output: Path
) -> None:
    """Log every decision of the scheduler on TRACE.

    The log has the format of the golden files, to compare with vLLM's own by a plain diff. TRACE is a trace
    by steps in their format, with its own configuration, or any that replay takes: then every step takes as
    long as any other, and the options say the limits.
    """
    from sim.schedule.decision_log import is_by_steps, log_trace, read_step_trace

    if is_by_steps(trace, reading.tokenizer):
        why = "is given, and the trace has a configuration of its own: leave it out"
        refuse((engine,), why, but=("engine_version",))
        refuse((reading,), why)
        steps = read_step_trace(trace, decisions_of(engine.engine_version))
    else:
        steps = _of_arrivals(asked, reading, engine, trace)
    with writing(output):
        stalled = log_trace(steps, output, asked.lockstep)
    if stalled is not None:
        remark(f"{trace} stalls: {stalled}")


def _of_arrivals(
    asked: ScheduleOptions, reading: ReadingOptions, engine: EngineOptions, trace: Path
) -> "StepTrace":
    from sim.schedule.step_trace import by_steps
    from sim.trace.read import read_trace

    heeded = [row.name for row in rows(EngineOptions) if row.to == SCHEDULER]
    why = "is given, and no decision of one scheduler depends on it: leave it out"
    refuse((engine,), why, but=(*heeded, *HEEDED))
    if engine.num_gpu_blocks is None:
        raise ConfigError(
            "--num-gpu-blocks is not given, and without a GPU nothing says how many there are: give it"
        )
    arrivals = islice(read_trace(str(trace), reading.tokenizer), reading.limit)
    return by_steps(arrivals, engine.simulated().config(None), asked.step_s)
