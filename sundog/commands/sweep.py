"""`sundog sweep`: an experiment over settings and seeds, on all cores."""

import os
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sundog.actors.config import ConfigError
from sundog.ends import Stopped, check_can_draw, interrupted, remark
from sundog.fast import one_thread
from sundog.options.engine import EngineOptions
from sundog.options.row import RECORDING, AnyText, Parsed, Real, Switch, Whole, option, picture_format
from sundog.options.serving import on_ray
from sundog.options.simulation import LoadOptions, ReadingOptions, TargetOptions, TermsOptions
from sundog.options.takes import command, given_once, takes
from sundog.sweeps.axes import axes, with_fields
from sundog.sweeps.cell import Plan
from sundog.sweeps.experiment import Experiment, remarks_of
from sundog.sweeps.source import check_tenants, identity, workload_of
from sundog.sweeps.sweep_folder import SweepFolder

if TYPE_CHECKING:
    from sundog.library.results import SweepResult
    from sundog.sim.figures.named import Metric
    from sundog.sim.figures.sweep.cells import Cell, Rule, Settings

SHOWN = ("ttft_s.mean", "ttft_s.p99", "tpot_s.mean", "output_tokens_per_s")
PRECISION = "Replications"


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepOptions:
    """Options of an experiment: the settings to try, and how often."""

    vary: tuple[str, ...] = option(
        (),
        AnyText("NAME=VALUE,…"),
        "Settings to try: an option of engines, targets or clients, or workload.TABLE.KEY; several make a"
        " grid.",
        many=True,
    )
    metric: tuple[str, ...] = option(
        (), AnyText("NAME"), "Metrics to show; the first ranks, and --precision applies to it.", many=True
    )
    by: str | None = option(
        None,
        AnyText("NAME"),
        "An axis of --vary, such as a rate: settings are compared at each of its values.",
    )
    jobs: int | None = option(None, Whole(1, 1024), "Processes; one per core if not given.")
    on: str | None = on_ray(
        "Ray cluster to run on: ray starts one here; ray:HOST:PORT joins one.", kept=False
    )
    figure: str | None = option(
        None,
        Parsed(picture_format, "FILE"),
        "Draw load curves (--by) or the Pareto front, as .svg, .pdf or .png.",
        section=RECORDING,
        kept=False,
    )
    as_json: bool = option(
        False, Switch(pair=False), "Every run's figures as JSON.", flag="--json", kept=False
    )
    out: str | None = option(
        None,
        AnyText("DIR"),
        "Folder to keep the runs and the table in; the same command resumes after a break.",
        names=("-o",),
        kept=False,
    )
    messages: bool = option(
        False,
        Switch(pair=False),
        "With --out: also record every message between actors.",
        section=RECORDING,
        kept=False,
    )

    resample: bool = option(
        False,
        Switch(pair=False),
        "Sample blocks of the recorded trace for each seed, to get intervals.",
        section=PRECISION,
    )
    replications: int = option(5, Whole(2, 10_000), "Number of seeds of every setting.", section=PRECISION)
    max_replications: int = option(
        30, Whole(2, 10_000), "Largest number of seeds if --precision needs more.", section=PRECISION
    )
    precision: float | None = option(
        None,
        Real(0, 1, above=True),
        "Replicate until the metric's relative error is at most this.",
        section=PRECISION,
    )
    confidence: float = option(0.95, Real(0.5, 0.9999), "Confidence of the intervals.", section=PRECISION)
    warmup_s: float | None = option(
        None,
        Real(0, 1e9),
        "Seconds at the beginning that are not counted; found by MSER-5 if not given.",
        section=PRECISION,
    )


@command
@takes(SweepOptions, TargetOptions, ReadingOptions, LoadOptions, TermsOptions, EngineOptions)
@click.argument("source", metavar="TRACE|SPEC.toml")
def sweep(
    asked: SweepOptions,
    target: TargetOptions,
    reading: ReadingOptions,
    load: LoadOptions,
    terms: TermsOptions,
    engine: EngineOptions,
    source: str,
) -> None:
    """Try settings on a trace or a workload, and rank them.

    A trace is replayed once for each setting, or resampled for each seed (--resample); a workload (SPEC.toml,
    docs/workloads.md) is sampled for each seed. All settings get the same requests, so that differences are
    due to the settings. docs/experiments.md explains the table.
    """
    one_thread()
    check_can_draw(asked.figure)
    from sundog.library.results import SweepResult
    from sundog.sim.figures.named import Metric
    from sundog.sim.figures.sweep.cells import Rule, grid
    from sundog.sim.show.sweep_table import as_rows, print_cells, to_json

    shown = [Metric.parse(name) for name in asked.metric or SHOWN]
    workload = workload_of(source, reading, asked.resample)
    varied = given_once(axes(asked.vary))
    by, cells = _by(asked.by, varied), grid(varied)
    for settings in cells:  # A misspelt table is found before any run.
        with_fields(workload, settings)
    most = max(asked.max_replications, asked.replications)
    if asked.resample and asked.precision is not None:
        raise ConfigError(
            "--precision cannot be combined with --resample, since more samples of one trace add no "
            "information: leave it out,"
            " or describe the workload (docs/workloads.md)"
        )
    rule = Rule(
        shown[0].name,
        asked.replications,
        num_most=most,
        precision=asked.precision,
        confidence=asked.confidence,
        is_one_recording=asked.resample,
    )
    plan = Plan(
        workload,
        source,
        engine=engine,
        target=target,
        load=load,
        terms=terms,
        resample=asked.resample,
        folder=_folder(asked, cells),
        messages=asked.messages,
    )
    check_tenants(plan, cells, [*shown, *(each.metric for each in terms.service_level.objectives)])
    trouble: ConfigError | None = None
    with ExitStack() as stack:
        if plan.folder is not None:
            stack.enter_context(plan.folder.kept.alone())
            asked_of = identity(plan, reading, plan.folder.path, cells)
            plan.folder.kept.begin({**asked_of, "resample": plan.resample, "vary": cells})
        found = _run(plan, cells, rule, asked, shown)
        for text in remarks_of(plan, cells):
            remark(text)
        if plan.folder is not None:
            text = to_json(found, shown, asked.confidence, by)
            try:
                plan.folder.write_table(text, as_rows(found, shown[0], asked.confidence, by))
            except ConfigError as error:
                trouble = error  # What hours gave is shown all the same.
    _check_any(found)
    if asked.as_json:
        click.echo(to_json(found, shown, asked.confidence, by))
    else:
        print_cells(found, shown, asked.confidence, by)
    _draw(SweepResult(found, shown, asked.confidence, by), asked.figure)
    if trouble is not None:
        raise trouble


def _draw(found: "SweepResult", file: str | None) -> None:
    if file is not None:
        (found.plot.pareto() if found.by is None else found.plot.load_curve()).save(file)


def _by(name: str | None, varied: dict[str, Sequence[Any]]) -> str | None:
    if name is None:
        return None
    name = name if name in varied else name.removeprefix("--").replace("-", "_")
    if name not in varied:
        raise ConfigError(
            f"--by is {name}, which --vary does not have: it has {', '.join(varied) or 'nothing'}"
        )
    return name


def _run(
    plan: Plan, cells: "Sequence[Settings]", rule: "Rule", asked: SweepOptions, metrics: "Sequence[Metric]"
) -> "list[Cell]":
    from sundog.sim.show.progress import runs_progress

    with runs_progress() as on_progress:
        experiment = Experiment(plan, cells, on_progress)
        try:
            here = os.cpu_count() or 1 if asked.on is None else 0
            found = experiment.run(rule, asked.warmup_s, metrics, asked.jobs or here, asked.on)
        except KeyboardInterrupt as error:
            done = f"{experiment.num_done} of {experiment.num_asked} runs"
            kept = f"; they are in {asked.out}, and the same command resumes" if asked.out else ""
            raise Stopped(f"interrupted after {done}{kept}", interrupted(error)) from None
    for text in experiment.remarks:
        remark(text)
    return found


def _folder(asked: SweepOptions, cells: "Sequence[Settings]") -> SweepFolder | None:
    if asked.out is None:
        if asked.messages:
            raise ConfigError("--messages needs a folder to write them to: give --out DIR")
        return None
    return SweepFolder(Path(asked.out), tuple(cells))


def _check_any(cells: "Sequence[Cell]") -> None:
    failures = [cell.failed for cell in cells if cell.failed is not None]
    for failed in failures:
        if failed.traceback is not None:
            remark(f"sundog: please report this bug of a cell\n{failed.traceback.rstrip()}")
            break
    if len(failures) == len(cells):
        raise ConfigError(f"no setting can run: {failures[0].reason}")
