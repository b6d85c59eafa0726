"""Functions of `import sundog`: the commands' work, with tables and plots as results.

Options are those of the command line as keyword arguments: `--max-num-seqs 64` is `max_num_seqs=64`. A wrong
option raises ConfigError with the line that the command would print. docs/python.md has more examples.
"""

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from hashlib import sha256
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from sundog.actors.config import ConfigError
from sundog.actors.core.names import did_you_mean
from sundog.actors.core.policies import Policy
from sundog.actors.core.routers import RouterPolicy
from sundog.library.arguments import path_of, records_of, taken
from sundog.library.loops import outside_of_loops
from sundog.library.results import PlanResult, RunResult, SweepResult
from sundog.options.engine import EngineOptions
from sundog.options.row import Real, Whole
from sundog.sim.files.run_files import write_whole

if TYPE_CHECKING:
    import pyarrow as pa

    Requests: TypeAlias = pa.Table | Sequence[Mapping[str, Any]] | Any
    """Rows; the last is a DataFrame of pandas, which is not installed with Sundog."""
    Source: TypeAlias = str | Path | Mapping[str, Any] | Requests

NAMES = {"num_prompt_tokens": "prompt_tokens", "num_output_tokens": "output_tokens"}
"""Names of columns of a result, and the names of the same columns in a trace."""


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
        varied[name] = [v if name.startswith(WORKLOAD) else one_text(taken(VARIED[name], v)) for v in tried]
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


def replay(
    trace: "Source",
    *,
    policy: str | Policy | type[Policy] = "fcfs",
    router: str | RouterPolicy | type[RouterPolicy] = "round-robin",
    out: str | Path | None = None,
    messages: bool = False,
    ranges: bool | None = None,
    **options: Any,
) -> RunResult:
    """Replay a trace on simulated hardware, as `sundog replay` does.

    Args:
        trace: A file in any format of traces/README.md, the description of a workload as a file or a
            mapping, or requests as a table of pandas or pyarrow, or as a list of mappings.
        policy: The name of a scheduling policy, `FILE.py:NAME`, or an object or class of your own.
        router: The name of a router, `FILE.py:NAME`, or an object or class of your own.
        out: Folder for the run. Without it the run lies in a temporary folder until the result is deleted.
        messages: Whether to record every message between actors, which `sundog.walk` follows.
        ranges: Whether to find the ranges of figures, by two more replays (`figures["ranges_s"]`). By default
            up to 500 requests, if policy and router are given by name.
        **options: Options of `sundog replay`, such as `model`, `gpu`, `max_num_seqs`, `replicas`, `limit`.

    Returns:
        The run: its requests, its steps and its figures.

    Raises:
        ConfigError: An option is wrong, or options contradict each other.
        TraceError: A row of the trace cannot be read.
        PolicyError: A policy or router of your own failed.

    Example:
        >>> import sundog
        >>> run = sundog.replay("traces/chat-poisson-2rps-5min.jsonl.gz", gpu="h100", limit=20)
        >>> run.figures["num_finished"]
        20
        >>> run.requests.num_rows
        20
    """
    named = {"policy": policy if isinstance(policy, str) else None}
    named["router"] = router if isinstance(router, str) else None
    target, reading, load, terms, engine = records_of({**options, **named})
    asked = None if out is None else path_of("out", out)

    def run() -> RunResult:
        from sundog.actors.policy_file import given_policy, given_router
        from sundog.builds.replayed import replayed
        from sundog.builds.simulated import deploy
        from sundog.options.config_file import recorded
        from sundog.sim.record.journal_rows import Header
        from sundog.sim.record.run_directory import open_run, replay_id
        from sundog.sim.record.run_output import RunOutput, kind_of_replay

        simulated = deploy(engine, target)
        config = replace(simulated.config, decode_runs=True)
        if not isinstance(policy, str):
            config = replace(config, policy=given_policy(policy))
        if not isinstance(router, str):
            config = replace(config, router=given_router(router))
        simulated = replace(simulated, config=config)
        kept = mkdtemp(prefix="sundog-") if asked is None else None
        folder = Path(f"{kept}/run" if asked is None else asked)
        place = as_file(trace, folder, engine.seed)
        source = reading.trace(place)
        facts = recorded((engine, target, load, terms, reading), place, folder)
        for name, value in (("policy", policy), ("router", router)):
            if not isinstance(value, str):
                facts[name] = f"{(value if isinstance(value, type) else type(value)).__qualname__}, an object"
        header = Header.of(config, simulated.capacity.num_blocks, replay_id(facts, folder))
        with RunOutput(
            folder, header, options=facts, messages=messages, kind=kind_of_replay(config)
        ) as output:
            replayed(
                simulated,
                islice(source, reading.limit),
                load,
                terms,
                engine.seed,
                output,
                again=lambda: list(islice(reading.trace(place), reading.limit)),
                with_ranges=ranges if isinstance(policy, str) and isinstance(router, str) else bool(ranges),
            )
        return RunResult(open_run(folder), simulated.remarks, kept)

    return outside_of_loops(run)


def as_file(source: "Source", folder: Path, seed: int) -> str:
    """Return the file of a trace; other sources are first written to a file beside the folder of a run.

    The file's name is a hash of its contents, so that no earlier run loses its trace.

    Raises:
        ConfigError: The source is neither a workload nor a table, has no row, or cannot be written.
    """
    if isinstance(source, str | Path) and Path(source).suffix != ".toml":
        return str(source)
    from sundog.library.questions import workload
    from sundog.sim.trace.jsonl_rows import OWN_FORMAT, OWN_VERSION, UNITS

    if isinstance(source, str | Path | Mapping):
        with TemporaryDirectory(prefix="sundog-") as scratch:
            made = Path(scratch) / "trace.jsonl"
            workload(source, seed=seed, out=made)
            data = made.read_bytes()
    else:
        rows = source if isinstance(source, list | tuple) else _records(source)
        if not rows or not all(isinstance(row, Mapping) for row in rows):
            raise ConfigError("the trace must be a list of mappings, one for each request")
        lines = [_plain(number, row) for number, row in enumerate(rows)]
        if any(UNITS.keys() <= line.keys() for line in lines):  # else another format, or `columns` names them
            lines.insert(0, {"format": OWN_FORMAT, "version": OWN_VERSION, "units": UNITS})
        data = "".join(json.dumps(line) + "\n" for line in lines).encode()
    file = folder.with_name(f"{folder.name}-trace-{sha256(data).hexdigest()[:8]}.jsonl")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        write_whole(file, data)
    except OSError as error:
        raise ConfigError(f"cannot write {file}: {error.strerror or error}") from None
    return str(file)


def _records(table: Any) -> list[Mapping[str, Any]]:
    """Return the rows of a table of pandas, or of pyarrow."""
    if hasattr(table, "to_pylist"):
        found: list[Mapping[str, Any]] = table.to_pylist()
    elif hasattr(table, "to_dict"):
        found = table.to_dict("records")
    else:
        raise ConfigError(
            f"the trace is a {type(table).__name__}: give a file, a mapping, a table or a list of mappings"
        )
    return found


def _plain(number: int, row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row as plain Python values, without missing ones (None or NaN).

    Raises ConfigError for values that no trace can have.
    """
    plain: dict[str, Any] = {}
    for name, value in row.items():
        own = value.tolist() if hasattr(value, "tolist") else value  # numpy's numbers and arrays
        if own is None or (not isinstance(own, list | tuple) and own != own):
            continue
        if not isinstance(own, str | int | float | list | tuple):
            raise ConfigError(f"row {number} of the trace has {name} = {value!r}: give a number or a text")
        plain[NAMES.get(name, name)] = own
    return plain


@contextmanager
def serve(model: str | None = None, *, gpu: str | None = None, **options: Any) -> Iterator[str]:
    """Serve a model while a `with` block lasts.

    The server is a process of its own on a free port of this machine. It ends with the `with` block, and with
    this process.

    Args:
        model: Folder with a Hugging Face model; None for the embedded model. With `gpu`, the name of the
            model to emulate.
        gpu: Name of a GPU. The server is then emulated: canned answers at the pace of `model` on that GPU.
        **options: Options of `sundog serve`, or of `sundog emulate` with `gpu`, but for `port`.

    Yields:
        The server's URL; OpenAI clients append `/v1`.

    Raises:
        ConfigError: An option is wrong, or the server did not start; the message has its last words.

    Example:
        >>> import httpx, sundog
        >>> with sundog.serve("llama-3.1-8b", gpu="h100") as url:
        ...     httpx.get(f"{url}/health").status_code
        200
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
        raise ConfigError("port cannot be set: leave it out, and use the returned URL")
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
    """Read a folder that `replay`, `bench` or `sweep` wrote with `--out`.

    Args:
        folder: The folder.

    Returns:
        A RunResult for a run, a SweepResult for a sweep.

    Raises:
        RunError: The folder contains no run, or one that cannot be read.
        ConfigError: The folder contains a damaged sweep.

    Example:
        >>> import sundog, tempfile
        >>> folder = tempfile.mkdtemp() + "/run"
        >>> _ = sundog.replay("traces/chat-poisson-2rps-5min.jsonl.gz", gpu="h100", limit=5, out=folder)
        >>> sundog.read(folder).figures["num_requests"]
        5
    """
    from sundog.sim.record.run_directory import open_run
    from sundog.sweeps.sweep_folder import TABLE_JSON

    place = Path(path_of("folder", folder))
    table = place / TABLE_JSON
    if table.exists():
        return SweepResult.of_json(table)
    return RunResult(open_run(place))


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
    """Try settings on the same requests and rank them, as `sundog sweep` does.

    Runs are made in processes of their own, so that a script needs `if __name__ == "__main__":`.

    Args:
        source: A trace, or the description of a workload (docs/workloads.md).
        vary: Values to try, by the name of an option or by `workload.TABLE.KEY`. Every combination is tried.
        metrics: Figures to report. The first one ranks the settings.
        by: Name in `vary`: settings are ranked separately at each of its values, as for a load curve.
        replications: Number of seeds of each setting.
        confidence: Confidence of the intervals.
        warmup_s: Seconds at the beginning that are not counted; None finds them for each run.
        resample: Whether each replication draws new sessions from the trace.
        jobs: Number of processes; None for one per core.
        **options: Options that all settings share.

    Returns:
        A table of settings with their ranks, metrics and intervals.

    Raises:
        ConfigError: An option, a metric or a value to try is wrong.

    Example:
        >>> import sundog
        >>> found = sundog.sweep(
        ...     "traces/chat-poisson-2rps-5min.jsonl.gz",
        ...     vary={"max_num_seqs": [1, 8]}, metrics=["ttft_s.mean"],
        ...     gpu="h100", limit=40, replications=2, warmup_s=0, jobs=1,
        ... )
        >>> [(row["max_num_seqs"], row["rank"]) for row in found.rows]
        [(1, 2), (8, 1)]
    """
    from sundog.sim.figures.named import Metric
    from sundog.sim.figures.sweep.cells import Rule, grid
    from sundog.sim.show.progress import runs_progress
    from sundog.sweeps.axes import with_fields
    from sundog.sweeps.cell import Plan
    from sundog.sweeps.experiment import Experiment, remarks_of
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
    place = path_of("source", source)
    workload = workload_of(place, reading, resample)
    for settings in cells:
        with_fields(workload, settings)
    shared = Plan(workload, place, engine=engine, target=target, load=load, terms=terms, resample=resample)
    check_tenants(shared, cells, [*shown, *(each.metric for each in terms.service_level.objectives)])
    rule = Rule(
        shown[0].name,
        replications,
        num_most=replications,
        precision=None,
        confidence=confidence,
        is_one_recording=resample,
    )
    with runs_progress("runs") as on_progress:
        experiment = Experiment(shared, cells, on_progress)
        found = experiment.run(rule, warmup_s, shown, jobs or os.cpu_count() or 1)
    remarks = [*remarks_of(shared, cells), *experiment.remarks]
    return SweepResult(found, shown, confidence, by, remarks=remarks)


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
    judge_s: float = 300.0,
    out: str | Path | None = None,
    jobs: int | None = None,
    **options: Any,
) -> PlanResult:
    """Find the cheapest fleet that meets objectives, as `sundog plan` does.

    Trials run in processes of their own, so that a script needs `if __name__ == "__main__":`.

    Args:
        source: A trace, or the description of a workload (docs/workloads.md).
        slo: Objectives, such as `"p95(ttft)<1,p95(tpot)<0.04"`; times are in seconds.
        gpus: GPUs to choose from.
        prices: Price of each GPU per hour, or a TOML file with them. Without it GPUs are counted.
        vary: Further options to try, with their values.
        max_gpus: Largest number of GPUs to try.
        survive: Number of replicas that may be lost while the objectives are still met.
        replications: Number of seeds of each trial.
        confidence: Confidence of the intervals.
        tune: Whether to try other token budgets, `max_num_seqs` and routers for the cheapest fleet.
        pools: Whether to try separate pools for prefill and decode.
        resize_s: Seconds between two resizings by a perfect autoscaler, whose price is reported.
        judge_s: Least seconds of steady traffic to judge, after a lead-in; 0 judges a description as it is.
        out: Folder for the trials.
        jobs: Number of processes; None for one per core.
        **options: Options that all candidates share.

    Returns:
        The cheapest fleet, and the candidates that were tried.

    Raises:
        ConfigError: An option, an objective or a price is wrong.

    Example:
        >>> import sundog
        >>> found = sundog.plan(
        ...     "traces/chat-poisson-2rps-5min.jsonl.gz", slo="p95(ttft)<5", model="llama-3.1-8b",
        ...     limit=40, replications=2, tune=False, pools=False, jobs=1,
        ... )
        >>> found.winner["replicas"]
        1
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
    if not machines:
        raise ConfigError("gpus is empty: name one at least, as h100")
    known, place = None, path_of("source", source)
    if prices is not None:
        known = (
            checked_prices(prices, "prices")
            if isinstance(prices, Mapping)
            else read_prices(path_of("prices", prices))
        )
    has_ranks = options.get("tensor_parallel_size") is not None
    problem = planned(
        *(place, reading, engine, target, load, terms, machines, _varied(vary or {}, options), known),
        *(max_gpus, has_ranks, survive, pools, judge_s),
    )
    out_folder = None if out is None else path_of("out", out)
    with (
        runs_progress("trials") as progress,
        fleets(problem.plan, jobs, progress, None, out_folder, reading, problem.cells) as made,
    ):
        advice = problem.advise(made, replications, confidence, tune, resize_s)
    return PlanResult(advice, problem.objectives, confidence, known is not None)
