"""`sundog replay`: a trace played on simulated hardware."""

from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import click

from sundog.actors.core.records import dataclass
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
        "Give the likely range of figures, from two more runs. Default: up to 5,000 requests, as JSON 500.",
        kept=False,
    )
    decode_runs: bool = option(
        True,
        Switch(),
        "Let one event stand for many decode steps; same results.",
        section=COSTS_FURTHER,
        kept=False,
        rare=True,
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

    Prints the latencies of TRACE's requests: TTFT, TPOT, inter-token latency, queueing; and the use of the KV
    cache. `traces/README.md` lists the formats.
    """
    one_thread()
    from sundog.builds.simulated import deploy

    simulated = deploy(engine, target)
    summary = _played(simulated, asked, logging, reading, load, terms, engine.seed, trace)
    _warn(simulated, summary)
    if asked.as_json:
        click.echo(summary.to_json())
        return
    from sundog.sim.show.summary_table import print_ranges, print_summary

    replicas = f", {engine.replicas} replicas" if engine.replicas > 1 else ""
    title = f"{Path(trace).name} on {simulated.model}, {simulated.machine}{replicas}"
    print_summary(summary, title, doubt=simulated.doubt)
    if summary.ranges_s is not None:
        from sundog.sim.validation.predict import Ranges

        print_ranges(Ranges(**summary.ranges_s))


MOST_RANGED, MOST_RANGED_AS_JSON = 5_000, 500
"""Largest number of requests for which a replay computes ranges by default; fewer for JSON, which programs
often request.
"""


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
            simulated,
            rows,
            load,
            terms,
            seed,
            output,
            on_progress,
            step_logs(logging.step_log),
            again=lambda: list(islice(reading.trace(trace), reading.limit)),
            with_ranges=asked.ranges,
            most_ranged=MOST_RANGED_AS_JSON if asked.as_json else MOST_RANGED,
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
