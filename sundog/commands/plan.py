"""`sundog plan`: the cheapest fleet that holds the objectives of a workload."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from sundog.ends import Stopped, check_can_draw, interrupted, writing
from sundog.fast import one_thread
from sundog.options.engine import EngineOptions
from sundog.options.row import AnyText, Parsed, Real, Switch, Whole, option, picture_format
from sundog.options.serving import on_ray
from sundog.options.simulation import LoadOptions, ReadingOptions, TargetOptions, TermsOptions
from sundog.options.takes import command, given_once, takes
from sundog.sweeps.axes import axes

if TYPE_CHECKING:
    from sundog.planning.fleets import Fleets


SEARCH, FILES = "Search, further", "Files to write"


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
        None,
        AnyText("FILE", is_path=True),
        "TOML file with the price of each GPU per hour. Without it GPUs are counted.",
    )
    max_gpus: int = option(128, Whole(1, 4096), "Largest number of GPUs to try.")
    survive: int = option(0, Whole(0, 64), "Replicas that may be lost: this many are bought in addition.")
    replications: int = option(
        5,
        Whole(1, 1000),
        "Samples of the workload for which the fleet must meet the objectives.",
        section=SEARCH,
    )
    confidence: float = option(0.95, Real(0.5, 0.9999), "Confidence of the intervals.", section=SEARCH)
    tune: bool = option(
        True,
        Switch(),
        "Try other token budgets and max_num_seqs with fewer replicas of the cheapest fleet.",
        section=SEARCH,
    )
    pools: bool = option(
        True, Switch(), "Try pools for prefill and decode beside equal replicas.", section=SEARCH
    )
    resize_s: float = option(
        600.0, Real(1, 1e7), "Seconds between two resizings by the perfect autoscaler.", section=SEARCH
    )
    jobs: int | None = option(None, Whole(1, 1024), "Processes; one per core if not given.", section=SEARCH)
    on: str | None = on_ray("Run on a cluster: ray begins one here, ray:HOST:PORT is there.", kept=False)
    out: str | None = option(
        None,
        AnyText("DIR"),
        "Folder to keep every trial in; the same command resumes after a break.",
        names=("-o",),
        kept=False,
    )
    manifest: str | None = option(
        None,
        AnyText("FILE"),
        "Write a Kubernetes Deployment of vLLM servers there, as YAML.",
        section=FILES,
        kept=False,
    )
    llm_d: str | None = option(
        None,
        AnyText("FILE"),
        "Write values for llm-d's chart llm-d-modelservice there, as YAML.",
        section=FILES,
        kept=False,
    )
    figure: str | None = option(
        None,
        Parsed(picture_format, "FILE"),
        "File to draw the prices of fleets to, as .svg, .pdf or .png.",
        section=FILES,
        kept=False,
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
    """Find the cheapest fleet that meets the objectives.

    `--gpu h100,b200` names the machines, `--slo 'p95(ttft)<1'` the objectives. Replicas are searched, tensor
    parallelism 1, 2, 4 and 8 unless it is given, and what --vary names (docs/planning.md).
    """
    one_thread()
    check_can_draw(asked.figure)
    from sundog.library.results import PlanResult
    from sundog.planning.fleets import fleets
    from sundog.planning.planner import planned
    from sundog.planning.prices import read_prices
    from sundog.planning.report import print_advice, to_json
    from sundog.planning.serving import commands, deployment, llm_d_values
    from sundog.sim.show.progress import runs_progress

    prices = None if asked.prices is None else read_prices(asked.prices)
    gpus, varied = target.gpu.split(","), given_once(axes(asked.vary))
    given = click.get_current_context().get_parameter_source("tensor_parallel_size")
    has_ranks = given is not ParameterSource.DEFAULT
    problem = planned(
        *(source, reading, engine, target, load, terms, gpus, varied, prices, asked.max_gpus, has_ranks),
        asked.survive,
        asked.pools,
    )
    with (
        runs_progress("trials") as progress,
        fleets(problem.plan, asked.jobs, progress, asked.on, asked.out, reading, problem.cells) as made,
        resumable(made, asked.out),
    ):
        advice = problem.advise(made, asked.replications, asked.confidence, asked.tune, asked.resize_s)
    objectives, winner = problem.objectives, advice.winner
    if asked.as_json:
        click.echo(to_json(advice, objectives, asked.confidence, prices is not None))
    else:
        print_advice(advice, objectives, asked.confidence, prices is not None)
        for line in () if winner is None else commands(winner, problem.plan, reading):
            click.echo(f"  {line}")
    if winner is not None:  # A file that cannot be written loses nothing: the plan stands above.
        for file, text in ((asked.manifest, deployment), (asked.llm_d, llm_d_values)):
            if file is not None:
                with writing(file):
                    Path(file).write_text(text(winner, problem.plan), encoding="utf-8")
    if asked.figure is not None:
        PlanResult(advice, objectives, asked.confidence, prices is not None).plot.costs().save(asked.figure)


@contextmanager
def resumable(made: "Fleets", out: str | None) -> Iterator[None]:
    """Say how far a plan came when Ctrl-C or SIGTERM ends it."""
    try:
        yield
    except KeyboardInterrupt as error:
        kept = f"; they are in {out}, and the same command goes on" if out else ""
        raise Stopped(f"interrupted after {made.num_done} trials{kept}", interrupted(error)) from None
