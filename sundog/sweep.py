"""`sundog sweep`: an experiment over settings and seeds, on all cores."""

import difflib
import os
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from multiprocessing import get_context
from typing import TYPE_CHECKING, Any

import click

from actors.config import ConfigError
from sundog.options import ENGINE_OPTIONS, Engine, Simulated, engine_options, parse_slo

if TYPE_CHECKING:
    from sim.figures.sweep.measure import Measures
    from sim.figures.sweep.sweep import Job, Settings

SHOWN = ("ttft_s.mean", "ttft_s.p99", "tpot_s.mean", "output_tokens_per_s")
WORKLOAD = "workload."


def _axes(context: click.Context, _option: click.Parameter, texts: Sequence[str]) -> dict[str, list[Any]]:
    """`policy=fcfs,priority` and so on, each value as the option of that name would take it."""
    known = {str(p.name): p for p in context.command.params if p.name in VARIED}
    axes: dict[str, list[Any]] = {}
    for text in texts:
        name, equals, values = text.partition("=")
        name = name.removeprefix("--").replace("-", "_") if not name.startswith(WORKLOAD) else name
        if not equals or not values:
            raise ConfigError(f"vary is {text!r}: give NAME=VALUE,VALUE,…")
        if name.startswith(WORKLOAD):
            axes[name] = [_plain(value) for value in values.split(",")]
            continue
        if name not in known:
            near = difflib.get_close_matches(name, known, 1)
            hint = f": did you mean {near[0]}?" if near else ", nor a field `workload.…`"
            raise ConfigError(f"vary has {name}, which is no option of an engine{hint}")
        parameter = known[name]
        axes[name] = [parameter.type_cast_value(context, value) for value in values.split(",")]
    return axes


def _plain(text: str) -> Any:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def run_job(workload: dict[str, Any], where: str, options: dict[str, Any], job: "Job") -> "Measures":
    """One replication: the requests of its seed under the cell's settings."""
    from sim.figures.metrics import summarize
    from sim.figures.sweep.measure import measure
    from sim.replay import replay
    from sim.workload.spec import parse_spec

    settings, seed = job
    chosen = {**options, **{n: v for n, v in settings.items() if not n.startswith(WORKLOAD)}}
    source = parse_spec(_with_fields(workload, settings), where)
    requests = source.requests(seed)
    if not requests:
        raise ConfigError(f"{where} gives no request with seed {seed}")
    model, gpu, cost, overhead, most, slo, warmup_s, price = (
        chosen.pop(name)
        for name in (
            "model",
            "gpu",
            "cost",
            "host_overhead",
            "max_concurrency",
            "slo",
            "warmup_s",
            "gpu_price_per_h",
        )
    )
    simulated = Simulated.of(Engine(**chosen), model, gpu, overhead, cost)
    recorder = replay(
        requests,
        replace(simulated.config, decode_runs=True),
        simulated.cost,
        simulated.capacity,
        front_end_s=simulated.front_end_s,
        max_concurrency=most,
    )
    terms = simulated.terms(slo, price)
    return measure(recorder, summarize(recorder, terms), warmup_s)


def _with_fields(workload: dict[str, Any], settings: "Settings") -> dict[str, Any]:
    """The description with the cell's `workload.a.b` in it."""
    for name, value in settings.items():
        if name.startswith(WORKLOAD):
            *path, last = name.removeprefix(WORKLOAD).split(".")
            workload = dict(workload)
            table = workload
            for part in path:
                if not isinstance(table.get(part), dict):
                    raise ConfigError(f"vary has {name}, but the workload has no table {part}")
                table[part] = dict(table[part])
                table = table[part]
            table[last] = value
    return workload


@click.command()
@click.argument("spec")
@click.option(
    "--vary",
    multiple=True,
    callback=_axes,
    metavar="NAME=VALUE,…",
    help="Settings to try: an engine's option, model, gpu, max_concurrency, or"
    " workload.TABLE.KEY; several make a grid.",
)
@click.option("--model", default="llama-3.1-8b", show_default=True)
@click.option("--gpu", default="h100", show_default=True)
@click.option("--cost", default="auto", show_default=True)
@click.option("--host-overhead/--no-host-overhead", default=True, show_default=True)
@click.option("--max-concurrency", type=click.IntRange(min=1))
@click.option("--slo", callback=parse_slo, metavar="NAME=S,…", help="As of replay.")
@click.option("--gpu-price-per-h", type=float, help="What a GPU costs an hour.")
@click.option(
    "--warmup-s",
    type=click.FloatRange(min=0),
    help="Leave out what arrives before; found by MSER-5 if not given.",
)
@click.option("--replications", type=click.IntRange(min=2), default=5, show_default=True)
@click.option("--max-replications", type=click.IntRange(min=2), default=30, show_default=True)
@click.option(
    "--precision",
    type=click.FloatRange(min=0, max=1, min_open=True),
    help="Replicate until the metric's relative error is at most this.",
)
@click.option(
    "--metric",
    "metrics",
    multiple=True,
    metavar="NAME",
    help="What to show; the first is what precision is about.",
)
@click.option("--confidence", type=click.FloatRange(0.5, 0.9999), default=0.95, show_default=True)
@click.option("--jobs", type=click.IntRange(min=1), help="Processes; one per core.")
@click.option("--json", "as_json", is_flag=True, help="Every run's figures as JSON.")
@engine_options
def sweep(
    spec: str,
    vary: dict[str, list[Any]],
    replications: int,
    max_replications: int,
    precision: float | None,
    metrics: tuple[str, ...],
    confidence: float,
    jobs: int | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Try settings on the workload of SPEC (a TOML file), the same requests for each."""
    from sim.figures.sweep.measure import NAMES
    from sim.figures.sweep.sweep import Rule, grid
    from sim.figures.sweep.sweep import sweep as sweep_cells
    from sim.files.toml import read_toml
    from sim.show.sweep_table import print_cells, to_json
    from sim.workload.spec import parse_spec

    for name in metrics:
        if name not in NAMES:
            near = difflib.get_close_matches(name, NAMES, 1)
            hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(NAMES)}"
            raise ConfigError(f"metric is {name!r}: {hint}")
    shown = metrics or SHOWN
    values = read_toml(spec)
    cells = grid(vary)
    for settings in cells:  # A mistake is found before any run.
        parse_spec(_with_fields(values, settings), spec)
    rule = Rule(shown[0], replications, max(max_replications, replications), precision, confidence)
    run = partial(run_job, values, spec, options)
    num_jobs = jobs or os.cpu_count() or 1
    if num_jobs == 1:
        found = sweep_cells(cells, rule, lambda todo: map(run, todo))
    else:
        with ProcessPoolExecutor(num_jobs, get_context("spawn")) as pool:

            def run_all(todo: Sequence["Job"]) -> Iterable["Measures"]:
                return pool.map(run, todo)

            found = sweep_cells(cells, rule, run_all)
    if as_json:
        click.echo(to_json(found, confidence))
    else:
        print_cells(found, shown, confidence)


def _option_names() -> set[str]:
    probe = click.Command("probe")
    for option in ENGINE_OPTIONS:
        option(probe)
    return {str(parameter.name) for parameter in probe.params}


VARIED = _option_names() | {"model", "gpu", "cost", "host_overhead", "max_concurrency"}
