"""`sundog sweep`: an experiment over settings and seeds, on all cores."""

import os
import signal
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from typing import TYPE_CHECKING

import click

from actors.core.names import unknown
from sundog.axes import axes, with_fields
from sundog.cell import Plan, run_job
from sundog.options import Real, Switch, Text, Whole, option
from sundog.options.engine import Engine
from sundog.options.simulation import Load, Target, Terms
from sundog.options.takes import command, takes

if TYPE_CHECKING:
    from sim.figures.sweep.measure import Measures
    from sim.figures.sweep.sweep import Cell, Job, Rule, Settings

SHOWN = ("ttft_s.mean", "ttft_s.p99", "tpot_s.mean", "output_tokens_per_s")
PRECISION = "Replications"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """What is tried, and how often."""

    vary: tuple[str, ...] = option(
        (),
        Text("NAME=VALUE,…"),
        "Settings to try: an option of engines, targets or clients, or workload.TABLE.KEY; several make a"
        " grid.",
        many=True,
    )
    metric: tuple[str, ...] = option(
        (), Text("NAME"), "What to show; the first is what precision is about.", many=True
    )
    jobs: int | None = option(None, Whole(1, 1024), "Processes; one per core if not given.")
    as_json: bool = option(False, Switch(pair=False), "Every run's figures as JSON.", flag="--json")

    replications: int = option(5, Whole(2, 10_000), "Seeds that every setting is given.", section=PRECISION)
    max_replications: int = option(
        30, Whole(2, 10_000), "At most this many, where precision asks for more.", section=PRECISION
    )
    precision: float | None = option(
        None,
        Real(0, 1, above=True),
        "Replicate until the metric's relative error is at most this.",
        section=PRECISION,
    )
    confidence: float = option(0.95, Real(0.5, 0.9999), "Of the intervals.", section=PRECISION)
    warmup_s: float | None = option(
        None, Real(0, 1e9), "Leave out what arrives before; found by MSER-5 if not given.", section=PRECISION
    )


@command
@takes(Sweep, Target, Load, Terms, Engine)
@click.argument("spec")
def sweep(asked: Sweep, target: Target, load: Load, terms: Terms, engine: Engine, spec: str) -> None:
    """Try settings on a workload, seed by seed.

    SPEC is a TOML file that describes a workload (docs/workloads.md). Every setting is given the same
    requests, so that a difference is that of the settings.
    """
    from sim.figures.sweep.sweep import Rule, grid
    from sim.files.toml import read_toml
    from sim.show.sweep_table import print_cells, to_json
    from sim.workload.spec import parse_spec

    _check_metrics(asked.metric)
    shown = asked.metric or SHOWN
    workload = read_toml(spec)
    cells = grid(axes(asked.vary))
    for settings in cells:  # A mistake is found before any run.
        parse_spec(with_fields(workload, settings), spec)
    most = max(asked.max_replications, asked.replications)
    rule = Rule(shown[0], asked.replications, most, asked.precision, asked.confidence)
    plan = Plan(workload, spec, engine, target, load, terms, asked.warmup_s)
    found = _run(cells, rule, plan, asked.jobs or os.cpu_count() or 1)
    if asked.as_json:
        click.echo(to_json(found, asked.confidence))
    else:
        print_cells(found, shown, asked.confidence)


def _leave_ctrl_c() -> None:
    """Ctrl-C is for the process that started the others: it ends them, and says so once."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _check_metrics(names: Sequence[str]) -> None:
    from sim.figures.sweep.measure import NAMES

    for name in names:
        if name not in NAMES:
            raise unknown("metric", name, NAMES)


def _run(cells: "Sequence[Settings]", rule: "Rule", plan: Plan, num_jobs: int) -> "list[Cell]":
    """All cells, in as many processes."""
    from sim.figures.sweep.sweep import sweep as sweep_cells

    run = partial(run_job, plan)
    if num_jobs == 1:
        return sweep_cells(cells, rule, lambda todo: map(run, todo))
    with ProcessPoolExecutor(num_jobs, get_context("spawn"), _leave_ctrl_c) as pool:

        def run_all(todo: "Sequence[Job]") -> "Iterable[Measures]":
            return pool.map(run, todo)

        return sweep_cells(cells, rule, run_all)
