"""`sundog replay`: a trace on simulated hardware."""

from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import click

from sundog.ends import remark
from sundog.fast import one_thread
from sundog.options.config_file import config_option
from sundog.options.engine import EngineOptions
from sundog.options.row import RECORDING, AnyText, Switch, option
from sundog.options.simulation import (
    COSTS_FURTHER,
    LoadOptions,
    LoggingOptions,
    ReadingOptions,
    TargetOptions,
    TermsOptions,
)
from sundog.options.takes import command, takes
from sundog.outputs import run_output, step_logs

if TYPE_CHECKING:
    from sundog.sim.deployment.record import Simulated
    from sundog.sim.figures.metrics import Summary
    from sundog.sim.figures.validate.predict import Ranges


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayOptions:
    """Options of a replay: how it runs, and what it leaves."""

    as_json: bool = option(False, Switch(pair=False), "Print the results as JSON.", flag="--json", kept=False)
    out: str | None = option(
        None, AnyText("DIR"), "Folder to write the run to, for report and explain.", names=("-o",), kept=False
    )
    messages: bool = option(
        False,
        Switch(pair=False),
        "With --out: also record every message between actors.",
        section=RECORDING,
        kept=False,
    )
    journal: bool | None = option(
        None,
        Switch(),
        "With --out: keep a journal for explain and perfetto. Default: up to 100,000 requests.",
        kept=False,
    )
    ranges: bool | None = option(
        None,
        Switch(),
        "Print the likely range of figures, from two more runs. Default: up to 10,000 requests.",
        kept=False,
    )
    decode_runs: bool = option(
        True,
        Switch(),
        "Let one event stand for many decode steps; same results.",
        section=COSTS_FURTHER,
        kept=False,
    )


@command
@config_option
@takes(TargetOptions, ReplayOptions, LoggingOptions, ReadingOptions, LoadOptions, TermsOptions, EngineOptions)
@click.argument("trace")
def replay(
    target: TargetOptions,
    asked: ReplayOptions,
    logging: LoggingOptions,
    reading: ReadingOptions,
    load: LoadOptions,
    terms: TermsOptions,
    engine: EngineOptions,
    trace: str,
) -> None:
    """Replay a trace on simulated hardware.

    Prints what the requests of TRACE would have seen: TTFT, TPOT, inter-token latency, queueing, use of
    the KV cache. `traces/README.md` lists the formats.
    """
    one_thread()
    from sundog.builds.simulated import deploy

    simulated = deploy(engine, target)
    summary = _played(simulated, asked, logging, reading, load, terms, engine.seed, trace)
    _warn(simulated, summary)
    if asked.as_json:
        ranges = _ranges(simulated, reading, load, engine.seed, trace) if asked.ranges else None
        click.echo(_json(summary, ranges))
        return
    from sundog.sim.show.summary_table import print_ranges, print_summary

    replicas = f", {engine.replicas} replicas" if engine.replicas > 1 else ""
    title = f"{Path(trace).name} on {simulated.model}, {simulated.machine}{replicas}"
    print_summary(summary, title, doubt=simulated.doubt)
    is_small = summary.num_requests <= MOST_RANGED and summary.num_finished > 1
    if is_small if asked.ranges is None else asked.ranges:
        print_ranges(_ranges(simulated, reading, load, engine.seed, trace))


MOST_RANGED = 10_000
"""Requests of a replay whose ranges are told without being asked for."""


def _ranges(
    simulated: "Simulated", reading: ReadingOptions, load: LoadOptions, seed: int, trace: str
) -> "Ranges":
    from sundog.builds.replayed import ranged

    rows = list(islice(reading.trace(trace), reading.limit))
    return ranged(simulated, rows, load, seed)


def _json(summary: "Summary", ranges: "Ranges | None") -> str:
    if ranges is None:
        return summary.to_json()
    from dataclasses import asdict
    from json import dumps, loads

    return dumps({**loads(summary.to_json()), "ranges_s": asdict(ranges)}, indent=2)


def _played(
    simulated: "Simulated",
    asked: ReplayOptions,
    logging: LoggingOptions,
    reading: ReadingOptions,
    load: LoadOptions,
    terms: TermsOptions,
    seed: int,
    trace: str,
) -> "Summary":
    from dataclasses import replace

    from sundog.builds.replayed import replayed
    from sundog.sim.show.progress import progress

    source = reading.trace(trace)
    for text in source.remarks:
        remark(text)
    simulated = replace(simulated, config=replace(simulated.config, decode_runs=asked.decode_runs))
    blocks = simulated.capacity.num_blocks
    with (
        run_output(asked.out, asked.messages, asked.journal, simulated.config, blocks) as output,
        progress(lambda: sum(1 for _ in islice(source, reading.limit))) as on_progress,
    ):
        rows = islice(source, reading.limit)
        summary = replayed(
            simulated, rows, load, terms, seed, output, on_progress, step_logs(logging.step_log)
        )
    if output.has_left_out_journal:
        from sundog.sim.record.run_output import MOST_JOURNALLED

        what = "no journal was kept for explain and perfetto; --journal keeps it"
        remark(f"more than {MOST_JOURNALLED:,} requests: {what}")
    return summary


def _warn(simulated: "Simulated", summary: "Summary") -> None:
    from sundog.sim.cost.doubt import outside_measured
    from sundog.sim.figures.load import KNEE, of_capacity

    for text in simulated.remarks:
        remark(text)
    for operator, factor in outside_measured(*simulated.kernels).items():
        remark(f"{operator}: {factor:.1f} times outside the measured range; step times are extrapolated")
    scaling = None if summary.fleet is None else summary.fleet.scaling
    if scaling is not None and scaling.missed_alone is not None:
        remark(f"--scaler: {scaling.missed_alone}")
    if summary.num_cut:
        longest = simulated.config.with_blocks(simulated.capacity.num_blocks).max_model_len
        remark(
            f"{summary.num_cut:,} of {summary.num_finished:,} finished answers are cut short: with their"
            f" prompts they need more than the {longest:,} tokens that the context and the KV cache allow"
        )
    if summary.saturation is not None and summary.saturation >= KNEE:
        share = of_capacity(summary.saturation)
        grows = "overloaded, the queue grows" if summary.saturation >= 1 else "nearly full"
        remark(f"the load is {share}: {grows}, and a small error in step times changes waiting times a lot")
