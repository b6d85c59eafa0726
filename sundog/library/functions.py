"""`import sundog`: what the commands do, as functions whose results are tables and plots.

Options are those of the command line, as keyword arguments: `--max-num-seqs 64` is `max_num_seqs=64`. A wrong
one raises ConfigError with the line that the command would print. docs/python.md has examples.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp
from typing import Any, Literal, TypeVar

import trio

from sundog.actors.config import ConfigError
from sundog.actors.core.names import did_you_mean
from sundog.actors.core.policies import Policy
from sundog.actors.core.routers import RouterPolicy
from sundog.ends import leaves
from sundog.library.results import PlanResult, RunResult, SweepResult
from sundog.options.engine import EngineOptions
from sundog.options.row import OptionRow, Real, Whole, rows
from sundog.options.simulation import LoadOptions, ReadingOptions, TargetOptions, TermsOptions

T = TypeVar("T")
RECORDS = (TargetOptions, ReadingOptions, LoadOptions, TermsOptions, EngineOptions)


def records_of(given: Mapping[str, object], records: Sequence[type] = RECORDS) -> tuple[Any, ...]:
    """The records of options; raises ConfigError for a name or a value that no option has."""
    known = {row.name: row for record in records for row in rows(record)}
    values: dict[str, object] = {}
    for name, value in given.items():
        if name not in known:
            raise ConfigError(f"there is no option {name}.{did_you_mean(name, known)}")
        if value is not None:
            values[name] = _taken(known[name], value)
    found = []
    for record in records:
        make: Any = record
        found.append(make(**{row.name: values[row.name] for row in rows(record) if row.name in values}))
    return tuple(found)


def _taken(row: OptionRow, value: object) -> object:
    """The value as the option takes it; raises ConfigError that names the option as Python spells it.

    An option that may be given often takes a list, or a text with a plus between two values.
    """
    try:
        if row.many:
            several = value if isinstance(value, list | tuple) else str(value).split("+")
            return tuple([row.kind.take(each) for each in several])
        return row.kind.take(value)
    except ValueError as error:
        raise ConfigError(f"{row.name} is {value!r}: {error}") from None


def _varied(vary: Mapping[str, Sequence[Any]], options: Mapping[str, object]) -> dict[str, Sequence[Any]]:
    from sundog.sweeps.axes import VARIED, WORKLOAD, one_text

    if not isinstance(vary, Mapping):
        raise ConfigError(f'vary is {vary!r}: map names to values, as in {{"max_num_seqs": [64, 128]}}')
    varied: dict[str, Sequence[Any]] = {}
    for name, values in vary.items():
        if not name.startswith(WORKLOAD) and name not in VARIED:
            raise ConfigError(f"vary has {name}, which is no option.{did_you_mean(name, VARIED)}")
        if options.get(name) is not None:
            raise ConfigError(f"{name} is given, and vary has it, too: leave one of them out")
        if isinstance(values, str) or not isinstance(values, Iterable) or not (tried := list(values)):
            raise ConfigError(f"vary has {name} = {values!r}: give a list of values to try")
        varied[name] = [v if name.startswith(WORKLOAD) else one_text(_taken(VARIED[name], v)) for v in tried]
    return varied


def _check_draws(replications: int, confidence: float) -> None:
    for name, kind, value in (
        ("replications", Whole(1, 1000), replications),
        ("confidence", Real(0.5, 0.9999), confidence),
    ):
        try:
            kind.take(value)
        except ValueError as error:
            raise ConfigError(f"{name} is {value!r}: {error}") from None


def _outside_of_loops(function: Callable[[], T]) -> T:
    """Call the function, in a thread of its own where Trio runs already: it runs a Trio of its own.

    What went wrong in an actor is raised as it is, without the groups of the nurseries that it passed.
    """
    try:
        try:
            trio.lowlevel.current_task()
        except RuntimeError:
            return function()
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(function).result()
    except BaseExceptionGroup as group:
        raise next(leaves(group)) from None


def replay(
    trace: str | Path,
    *,
    policy: str | Policy | type[Policy] = "fcfs",
    router: str | RouterPolicy | type[RouterPolicy] = "round-robin",
    out: str | Path | None = None,
    **options: Any,
) -> RunResult:
    """Replay a trace on simulated hardware, as `sundog replay` does.

    `policy` and `router` are names, `FILE.py:NAME`, or objects and classes of your own. `out` is a folder for
    the run; without it the run lies in a temporary folder as long as its result lives. Raises ConfigError for
    options and TraceError for rows that are wrong.
    """
    named = {"policy": policy if isinstance(policy, str) else None}
    named["router"] = router if isinstance(router, str) else None
    target, reading, load, terms, engine = records_of({**options, **named})

    def run() -> RunResult:
        from sundog.actors.policy_file import given_policy, given_router
        from sundog.builds.replayed import replayed
        from sundog.builds.simulated import Simulated
        from sundog.options.config_file import recorded
        from sundog.sim.record.journal_rows import Header
        from sundog.sim.record.run_directory import open_run, replay_id
        from sundog.sim.record.run_output import RunOutput, kind_of_replay

        simulated = Simulated.of(engine, target)
        config = replace(simulated.config, decode_runs=True)
        if not isinstance(policy, str):
            config = replace(config, policy=given_policy(policy))
        if not isinstance(router, str):
            config = replace(config, router=given_router(router))
        simulated = replace(simulated, config=config)
        source = reading.trace(str(trace))
        kept = mkdtemp(prefix="sundog-") if out is None else None
        folder = Path(str(out) if kept is None else f"{kept}/run")
        facts = recorded((engine, target, load, terms, reading), str(trace), folder)
        for name, value in (("policy", policy), ("router", router)):
            if not isinstance(value, str):
                facts[name] = f"{(value if isinstance(value, type) else type(value)).__qualname__}, an object"
        header = Header.of(config, simulated.capacity.num_blocks, replay_id(facts, folder))
        with RunOutput(folder, header, facts, False, kind_of_replay(config)) as output:
            replayed(simulated, islice(source, reading.limit), load, terms, engine.seed, output)
        return RunResult(open_run(folder), simulated.remarks, kept)

    return _outside_of_loops(run)


@contextmanager
def serve(model: str | None = None, *, gpu: str | None = None, **options: Any) -> Iterator[str]:
    """Serve a model for as long as a `with` lasts, and give the server's URL, which clients put `/v1` behind.

    `model` is a folder with a model, or nothing for the small embedded one. With `gpu` the server is
    emulated: canned answers at the pace of `model` on that GPU. It is a process of its own on a free port of
    this machine, and ends with the `with` and with this process. Options are those of `sundog serve` and
    `sundog emulate`. Raises ConfigError with the server's last words if it does not start.
    """
    from sundog.child import serving
    from sundog.options.door import ConnectionOptions
    from sundog.options.row import spelled
    from sundog.options.serving import EmulatedServing, RealServing
    from sundog.options.simulation import CostOptions, LoggingOptions

    own: Any = RealServing if gpu is None else EmulatedServing
    shared = (ConnectionOptions, LoggingOptions, EngineOptions)
    records = (own, *shared) if gpu is None else (own, CostOptions, *shared)
    if "port" in options:
        raise ConfigError("port is chosen by the server: leave it out, and use the URL that you are given")
    asked = records_of(options if gpu is None else {**options, "gpu": gpu}, records)
    words = [word for record in asked for word in spelled(record)]
    command: Literal["serve", "emulate"] = "serve" if gpu is None else "emulate"
    if gpu is not None and "--gpu" not in words:
        words += ["--gpu", gpu]
    with (
        TemporaryDirectory(prefix="sundog-") as folder,
        serving(model, Path(folder), *words, command=command) as url,
    ):
        yield url


def read(folder: str | Path) -> RunResult | SweepResult:
    """Read what `replay`, `bench` or `sweep` wrote with --out; raises RunError for another folder."""
    from sundog.sim.record.run_directory import open_run
    from sundog.sweeps.sweep_folder import TABLE_JSON

    table = Path(folder) / TABLE_JSON
    if table.exists():
        return SweepResult.of_json(table)
    return RunResult(open_run(Path(folder)))


def sweep(
    source: str | Path,
    *,
    vary: Mapping[str, Sequence[Any]],
    metrics: Sequence[str] = ("ttft_s.mean", "ttft_s.p99", "tpot_s.mean", "output_tokens_per_s"),
    by: str | None = None,
    replications: int = 5,
    confidence: float = 0.95,
    warmup_s: float | None = None,
    resample: bool = False,
    jobs: int | None = None,
    **options: Any,
) -> SweepResult:
    """Try settings on a trace or a workload and rank them by the first metric, as `sundog sweep` does.

    `vary` maps names of options or `workload.TABLE.KEY` to the values to try. Runs are made in `jobs`
    processes, by default one per core: a script needs `if __name__ == "__main__":`. Raises ConfigError.
    """
    from sundog.sim.figures.named import Metric
    from sundog.sim.figures.sweep.cells import Rule, grid
    from sundog.sim.show.progress import runs_progress
    from sundog.sweeps.axes import with_fields
    from sundog.sweeps.cell import Plan
    from sundog.sweeps.experiment import Experiment
    from sundog.sweeps.source import check_tenants, workload_of

    target, reading, load, terms, engine = records_of(options)
    shown = [Metric.parse(name) for name in metrics]
    if not shown:
        raise ConfigError("metrics is empty: name one at least, as ttft_s.mean")
    _check_draws(replications, confidence)
    varied = _varied(vary, options)
    if by is not None and by not in varied:
        raise ConfigError(f"by is {by}, which vary does not have")
    cells = grid(varied)
    workload = workload_of(str(source), reading, resample)
    for settings in cells:
        with_fields(workload, settings)
    shared = Plan(workload, str(source), engine, target, load, terms, resample)
    check_tenants(shared, cells, [*shown, *(each.metric for each in terms.service_level.objectives)])
    rule = Rule(shown[0].name, replications, replications, None, confidence, resample)
    with runs_progress("runs") as on_progress:
        experiment = Experiment(shared, cells, on_progress)
        found = experiment.run(rule, warmup_s, shown, jobs or os.cpu_count() or 1)
    return SweepResult(found, shown, confidence, by)


def plan(
    source: str | Path,
    *,
    slo: str,
    gpus: str | Sequence[str] = ("h100",),
    prices: Mapping[str, float] | str | Path | None = None,
    vary: Mapping[str, Sequence[Any]] | None = None,
    max_gpus: int = 128,
    survive: int = 0,
    replications: int = 5,
    confidence: float = 0.95,
    tune: bool = True,
    pools: bool = True,
    resize_s: float = 600.0,
    out: str | Path | None = None,
    jobs: int | None = None,
    **options: Any,
) -> PlanResult:
    """Find the cheapest fleet that holds the objectives in `slo`, as `sundog plan` does.

    `prices` maps GPUs to their price an hour, or is a TOML file that does; without it GPUs are counted. With
    `tune` other token budgets and `max_num_seqs` of the cheapest fleet are tried, and with `pools` two pools;
    `resize_s` is how often the perfect autoscaler resizes it. It holds with `survive` replicas lost. Trials
    are kept in the folder `out`.
    Like `sweep` it makes processes.
    Raises ConfigError.
    """
    from sundog.planning.fleets import fleets
    from sundog.planning.planner import planned
    from sundog.planning.prices import checked_prices, read_prices
    from sundog.sim.show.progress import runs_progress

    if "gpu" in options:
        raise ConfigError("gpu is one machine, and a plan compares several: name them in gpus")
    _check_draws(replications, confidence)
    target, reading, load, terms, engine = records_of({**options, "slo": slo})
    machines = gpus.split(",") if isinstance(gpus, str) else list(gpus)
    known = None
    if prices is not None:
        known = checked_prices(prices, "prices") if isinstance(prices, Mapping) else read_prices(str(prices))
    has_ranks = options.get("tensor_parallel_size") is not None
    problem = planned(
        *(str(source), reading, engine, target, load, terms, machines, _varied(vary or {}, options), known),
        *(max_gpus, has_ranks, survive, pools),
    )
    out_folder = None if out is None else str(out)
    with (
        runs_progress("trials") as progress,
        fleets(problem.plan, jobs, progress, None, out_folder, reading, problem.cells) as made,
    ):
        advice = problem.advise(made, replications, confidence, tune, resize_s)
    return PlanResult(advice, problem.objectives, confidence, known is not None)
