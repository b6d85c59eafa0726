"""`sundog plan`: the cheapest fleet that holds the objectives of a workload."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from sundog.fast import one_thread
from sundog.options import AnyText, Real, Switch, Whole, option
from sundog.options.engine import EngineOptions
from sundog.options.simulation import LoadOptions, ReadingOptions, TargetOptions, TermsOptions
from sundog.options.takes import command, takes
from sundog.sweeps.axes import axes

if TYPE_CHECKING:
    pass


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanOptions:
    """Options of the search for a fleet."""

    vary: tuple[str, ...] = option(
        (),
        AnyText("NAME=VALUE,…"),
        "Further settings to try, as in sweep: max_num_seqs=128,256; several make a grid.",
        many=True,
    )
    prices: str | None = option(
        None, AnyText("FILE", is_path=True), "TOML with the price of each GPU an hour. Without it GPUs count."
    )
    max_gpus: int = option(128, Whole(1, 4096), "The largest fleet that is tried.")
    replications: int = option(5, Whole(1, 1000), "Draws of the workload that the fleet must hold.")
    confidence: float = option(0.95, Real(0.5, 0.9999), "Confidence of the intervals.")
    jobs: int | None = option(None, Whole(1, 1024), "Processes; one per core if not given.")
    manifest: str | None = option(
        None, AnyText("FILE"), "Write a Kubernetes Deployment of vLLM servers there, as YAML.", kept=False
    )
    as_json: bool = option(False, Switch(pair=False), "Print the plan as JSON.", flag="--json", kept=False)


@command
@takes(PlanOptions, TargetOptions, ReadingOptions, LoadOptions, TermsOptions, EngineOptions)
@click.argument("source", metavar="TRACE|SPEC.toml")
def plan(
    asked: PlanOptions,
    target: TargetOptions,
    reading: ReadingOptions,
    load: LoadOptions,
    terms: TermsOptions,
    engine: EngineOptions,
    source: str,
) -> None:
    """Find the cheapest fleet that holds the objectives.

    `--gpu h100,b200` names the machines, `--slo 'p95(ttft)<1'` the objectives. Replicas are searched, tensor
    parallelism 1, 2, 4 and 8 unless it is given, and what --vary names (docs/planning.md).
    """
    one_thread()
    from sim.show.console import runs_progress
    from sundog.planning.planner import fleets, planned
    from sundog.planning.prices import read_prices
    from sundog.planning.report import deployment, print_advice, print_commands, to_json

    prices = None if asked.prices is None else read_prices(asked.prices)
    gpus, varied = target.gpu.split(","), axes(asked.vary)
    problem = planned(source, reading, engine, target, load, terms, gpus, varied, prices, asked.max_gpus)
    objectives = problem.objectives
    processes = asked.jobs or os.cpu_count() or 1
    with runs_progress("trials") as progress, fleets(problem.plan, processes, progress) as made:
        advice = problem.advise(made, asked.replications, asked.confidence)
    if asked.manifest is not None and advice.winner is not None:
        Path(asked.manifest).write_text(deployment(advice.winner, target.model), encoding="utf-8")
    if asked.as_json:
        click.echo(to_json(advice, objectives, asked.confidence, prices is not None))
    else:
        print_advice(advice, objectives, asked.confidence, prices is not None)
        print_commands(advice, target.model, source, terms.slo)
