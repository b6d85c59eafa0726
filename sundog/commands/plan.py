"""`sundog plan`: the cheapest fleet that meets the objectives of a workload."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from sundog.ends import Stopped, check_can_draw, check_folder, check_writable, interrupted, writing
from sundog.fast import one_thread
from sundog.options.engine import EngineOptions
from sundog.options.row import AnyText, Parsed, Real, Switch, Whole, option, picture_format
from sundog.options.serving import on_ray
from sundog.options.simulation import LoadOptions, ReadingOptions, TargetOptions, TermsOptions
from sundog.options.takes import command, given_once, takes
from sundog.sweeps.axes import axes

if TYPE_CHECKING:
    from sundog.planning.fleets import Fleets
    from sundog.planning.search import Candidate
    from sundog.sweeps.cell import Plan


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
    survive: int = option(0, Whole(0, 64), "Spare replicas to buy, so that this many may fail.")
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
    judge_s: float = option(
        300.0,
        Real(0, 1e7),
        "Least seconds of steady traffic to judge, after a lead-in. 0: judge a description's own requests.",
        section=SEARCH,
    )
    jobs: int | None = option(None, Whole(1, 1024), "Processes; one per core if not given.", section=SEARCH)
    on: str | None = on_ray(
        "Ray cluster to run on: ray starts one here; ray:HOST:PORT joins one.", kept=False
    )
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
    kustomize: str | None = option(
        None,
        AnyText("DIR"),
        "Write a kustomization.yaml of llm-d's model servers into this folder.",
        section=FILES,
        kept=False,
    )
    dynamo: str | None = option(
        None, AnyText("FILE"), "Write a DynamoGraphDeployment there, as YAML.", section=FILES, kept=False
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

    `--gpu h100,b200` names the machines, `--slo 'p95(ttft)<1'` the objectives. The search tries numbers of
    replicas, tensor parallelism 1, 2, 4 and 8 unless given, and the values of --vary (docs/planning.md).
    """
    one_thread()
    check_can_draw(asked.figure)
    for file in (asked.manifest, asked.llm_d, asked.dynamo):
        if file is not None:
            check_writable(file)
    if asked.kustomize is not None:
        check_folder(asked.kustomize)
    from sundog.library.results import PlanResult
    from sundog.planning.dynamo import check_gpus
    from sundog.planning.fleets import fleets
    from sundog.planning.planner import planned
    from sundog.planning.prices import read_prices
    from sundog.planning.report import print_advice, to_json
    from sundog.planning.serving import commands
    from sundog.sim.show.progress import runs_progress

    prices = None if asked.prices is None else read_prices(asked.prices)
    gpus, varied = target.gpu.split(","), given_once(axes(asked.vary))
    if asked.dynamo is not None:
        check_gpus(gpus)
    given = click.get_current_context().get_parameter_source("tensor_parallel_size")
    has_ranks = given is not ParameterSource.DEFAULT
    problem = planned(
        *(source, reading, engine, target, load, terms, gpus, varied, prices, asked.max_gpus, has_ranks),
        asked.survive,
        asked.pools,
        asked.judge_s,
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
    if winner is not None:
        _write_files(asked, winner, problem.plan)
    if asked.figure is not None:
        PlanResult(advice, objectives, asked.confidence, prices is not None).plot.costs().save(asked.figure)


def _write_files(asked: PlanOptions, winner: "Candidate", plan: "Plan") -> None:
    """Write the files for clusters. One that cannot be written loses nothing: the plan is printed."""
    from sundog.planning.cluster import deployment
    from sundog.planning.dynamo import dynamo_graph
    from sundog.planning.llm_d import kustomization, llm_d_values
    from sundog.sim.files.run_files import write_whole

    folder = None if asked.kustomize is None else str(Path(asked.kustomize, "kustomization.yaml"))
    for file, text in (
        (asked.manifest, deployment),
        (asked.llm_d, llm_d_values),
        (folder, kustomization),
        (asked.dynamo, dynamo_graph),
    ):
        if file is not None:
            with writing(file):
                if file is folder:
                    Path(file).parent.mkdir(parents=True, exist_ok=True)
                write_whole(file, text(winner, plan))


@contextmanager
def resumable(made: "Fleets", out: str | None) -> Iterator[None]:
    """Report the progress of a plan that Ctrl-C or SIGTERM ends."""
    try:
        yield
    except KeyboardInterrupt as error:
        kept = f"; they are in {out}, and the same command resumes" if out else ""
        raise Stopped(f"interrupted after {made.num_done} trials{kept}", interrupted(error)) from None
