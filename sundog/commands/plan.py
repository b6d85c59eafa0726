"""`sundog plan`: the cheapest fleet that holds the objectives of a workload."""

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from actors.config import ConfigError
from sundog.fast import one_thread
from sundog.options import AnyText, Real, Switch, Whole, option
from sundog.options.engine import EngineOptions
from sundog.options.simulation import LoadOptions, ReadingOptions, TargetOptions, TermsOptions
from sundog.options.takes import command, takes
from sundog.sweeps.axes import axes
from sundog.sweeps.cell import Plan
from sundog.sweeps.source import check_tenants, workload_of

if TYPE_CHECKING:
    from sundog.planning.search import Candidate

RANKS = (1, 2, 4, 8)
"""Tensor-parallel sizes that are tried where none is given."""


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
    from sim.figures.sweep.cells import grid
    from sundog.planning.planner import advise, candidates, fleets
    from sundog.planning.prices import price_of, read_prices
    from sundog.planning.report import deployment, print_advice, print_commands, to_json

    objectives = terms.service_level.objectives
    if not objectives:
        raise ConfigError(
            "--slo names no objective to plan for: give a percentile, as in --slo 'p95(ttft)<1'"
        )
    if engine.replicas != 1:
        raise ConfigError(f"--replicas is {engine.replicas}, and replicas are what is searched: leave it out")
    varied: dict[str, Any] = axes(asked.vary)
    if "replicas" in varied:
        raise ConfigError("--vary has replicas, and replicas are what is searched: leave it out")
    machines = list(dict.fromkeys(target.gpu.split(",")))
    cells_of: dict[str, Any] = {"gpu": machines, "tensor_parallel_size": list(RANKS)}
    if engine.tensor_parallel_size != 1:
        cells_of["tensor_parallel_size"] = [engine.tensor_parallel_size]
    cells = grid(cells_of | varied)
    prices = None if asked.prices is None else read_prices(asked.prices)
    shared = Plan(workload_of(source, reading), source, engine, replace(target, gpu=machines[0]), load, terms)
    check_tenants(shared, cells, [each.metric for each in objectives])
    num_seeds = 1 if all(shared.is_fixed(settings) for settings in cells) else asked.replications

    def fresh() -> "list[Candidate]":
        return candidates(shared, cells, lambda gpu: price_of(gpu, prices, asked.prices), asked.max_gpus)

    with fleets(shared, asked.jobs or os.cpu_count() or 1) as made:
        advice = advise(made, objectives, fresh, num_seeds, asked.confidence)
    if asked.manifest is not None and advice.winner is not None:
        Path(asked.manifest).write_text(deployment(advice.winner, target.model), encoding="utf-8")
    if asked.as_json:
        click.echo(to_json(advice, objectives, asked.confidence, prices is not None))
    else:
        print_advice(advice, objectives, asked.confidence, prices is not None)
        print_commands(advice, target.model, source, terms.slo)
