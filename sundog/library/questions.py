"""Functions that explain runs, traces, fleets and engines.

`explain`, `walk`, `compare`, `capacity`, `trace`, `workload` and `calibrate`: the commands of these names
print what these functions return.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sundog.actors.config import ConfigError
from sundog.library.answers import CalibrationResult, CapacityResult, ComparisonResult, WalkResult
from sundog.library.arguments import path_of, records_of
from sundog.library.loops import outside_of_loops
from sundog.library.results import RunResult
from sundog.options.engine import EngineOptions
from sundog.options.simulation import ReadingOptions

if TYPE_CHECKING:
    import pyarrow as pa

    from sundog.library.plots import Plot
    from sundog.sim.explain.findings import Findings
    from sundog.sim.explain.history import History
    from sundog.sim.record.run_directory import Run
    from sundog.sim.trace.record import TraceRequest

COLUMNS = ("arrival_s", "num_prompt_tokens", "num_output_tokens", "session", "tenant", "priority")
"""Fields of a request in a table of a workload."""


def explain(run: str | Path | RunResult, *, request_id: str | None = None, top: int = 10) -> dict[str, Any]:
    """Return why requests waited, and which were preempted, as `sundog explain --json` does.

    Args:
        run: A run, its folder, or the folder or journal that `serve --record` wrote.
        request_id: Name of one request, which is told in full: each phase of its life with its cause.
        top: Number of the longest waits to tell.

    Returns:
        Counts, causes of waiting in seconds, the longest waits and suggestions; of one request its phases.

    Raises:
        ConfigError: There is no such request.
        RunError: The folder contains no run, or one that cannot be read.

    Example:
        >>> import sundog
        >>> run = sundog.replay("traces/chat-poisson-2rps-5min.jsonl.gz", gpu="h100", limit=20)
        >>> sundog.explain(run)["num_requests"]
        20
    """
    from sundog.sim.explain.data import request_data, run_data
    from sundog.sim.explain.load import find_request, load, refused_at_door

    record = _folder("run", run)
    _check_request(request_id)
    history = load(record)
    if request_id is None:
        found, at_door = explained(history, record, top)
        return run_data(found) | ({"refused_at_the_door": at_door} if at_door else {})
    refused = None if request_id in history.requests else refused_at_door(record, request_id)
    if refused is not None:
        return refused
    return request_data(history, find_request(history.requests, request_id))


def explained(history: "History", record: Path, top: int) -> "tuple[Findings, dict[str, int]]":
    """Return the findings of a record, and the requests refused before they reached an engine, by reason."""
    from sundog.sim.explain.findings import UNANSWERED, beside_losses, findings
    from sundog.sim.files.run_files import SUMMARY
    from sundog.sim.record.columns import kind_of
    from sundog.sim.record.run_directory import open_run

    told = open_run(record).summary.get("refusals", {}) if (record / SUMMARY).is_file() else {}
    found = findings(history, top)
    by_policy = set(map(kind_of, found.refusals))
    at_door = {reason: count for reason, count in told.items() if kind_of(reason) not in by_policy}
    counts = found.unanswered + Counter({"refused": sum(at_door.values())})
    lost = {what: counts[reason] for reason, what in UNANSWERED.items() if counts[reason]}
    return replace(found, suggestions=beside_losses(found.suggestions, lost)), at_door


def figure(
    runs: "str | Path | RunResult | Sequence[str | Path | RunResult] | Mapping[str, str | Path | RunResult]",
    column: str = "ttft_s",
) -> "Plot":
    """Draw the distribution of a column of several runs in one picture, as `sundog figure RUN RUN cdf` does.

    Args:
        runs: A run or several, or folders that `replay` or `bench` wrote with `--out`. A mapping names them;
            else a run is named by the options in which it differs from the others.
        column: Column of `RunResult.requests`, such as `ttft_s`, `tpot_s` or `e2e_s`.

    Returns:
        The picture, as of `RunResult.plot`. A run that did not settle has a dagger behind its name.

    Raises:
        ConfigError: There is no run, or no such column.
        RunError: A folder contains no run, or one that cannot be read.

    Example:
        >>> import sundog
        >>> trace = "traces/chat-poisson-2rps-5min.jsonl.gz"
        >>> runs = [sundog.replay(trace, gpu="h100", limit=40, policy=name) for name in ("fcfs", "mlfq")]
        >>> sundog.figure(runs, "e2e_s")
        Plot(share of requests over E2E (s))
    """
    from sundog.library.plots import cdf_of_runs
    from sundog.sim.record.run_directory import open_run

    if isinstance(runs, str | Path | RunResult):
        runs = (runs,)
    given = list(runs.values() if isinstance(runs, Mapping) else runs)
    opened = [open_run(_folder("a run", each)) for each in given]
    if not opened:
        raise ConfigError("there is no run to draw: give one at least")
    names = list(runs) if isinstance(runs, Mapping) else names_of(opened)
    return cdf_of_runs({name: run.requests() for name, run in zip(names, opened, strict=True)}, column)


def names_of(runs: "Sequence[Run]") -> list[str]:
    """Return a name for each run: the options in which runs differ, or its folder if there are none."""
    options = dict.fromkeys(name for run in runs for name in run.config)
    differing = [name for name in options if len({repr(run.config.get(name)) for run in runs}) > 1]
    named = [", ".join(f"{name}={run.config.get(name)}" for name in differing) for run in runs]
    if len(set(named)) == len(runs) > 1:
        return named
    folders = [run.path.name for run in runs]
    return folders if len(set(folders)) == len(runs) else [str(run.path) for run in runs]


def walk(run: str | Path | RunResult, request_id: str, *, out: str | Path | None = None) -> WalkResult:
    """Follow one request of a recorded run through the graph, as `sundog walk` does.

    Args:
        run: A run, its folder, or the folder that `serve --record` wrote, with the messages between actors.
        request_id: Name of the request.
        out: File for the page, `.html`.

    Returns:
        Each message about the request with the code that handled it, its batches, and its waits.

    Raises:
        ConfigError: The record has no messages, or no such request, or the page cannot be written.

    Example:
        >>> import sundog
        >>> trace = "traces/chat-poisson-2rps-5min.jsonl.gz"
        >>> run = sundog.replay(trace, gpu="h100", limit=5, messages=True)
        >>> way = sundog.walk(run, "r0000000")
        >>> [(stop["sender"], stop["receiver"], stop["title"]) for stop in way][:2]
        [('client', 'async-llm', 'Generate'), ('async-llm', 'router', 'Submit')]
    """
    from sundog.sim.explain.walk import walk as walked

    folder = _folder("run", run)
    _check_request(request_id)
    page = None if out is None else path_of("out", out)
    found = WalkResult(walked(folder, request_id), folder.resolve().name)
    if page is not None:
        found.save(page)
    return found


def compare(first: str | Path | RunResult, second: str | Path | RunResult) -> ComparisonResult:
    """Compare two runs, with confidence intervals of 95 %, as `sundog compare` does.

    Args:
        first: A run, or the folder that `replay` or `bench` wrote with `--out`.
        second: The other run.

    Returns:
        The settings that differ, and each figure of both runs with its change.

    Raises:
        RunError: A folder contains no run, or one that cannot be read.

    Example:
        >>> import sundog
        >>> trace = "traces/chat-poisson-2rps-5min.jsonl.gz"
        >>> few = sundog.replay(trace, gpu="h100", limit=60, max_num_seqs=2)
        >>> many = sundog.replay(trace, gpu="h100", limit=60, max_num_seqs=64)
        >>> found = sundog.compare(few, many)
        >>> found.settings
        {'max_num_seqs': (2, 64)}
        >>> found["TTFT mean"]["change_s"] < 0
        True
    """
    from sundog.sim.figures.compare import compare as compare_runs
    from sundog.sim.record.run_directory import open_run

    return ComparisonResult(
        compare_runs(open_run(_folder("first", first)), open_run(_folder("second", second)))
    )


def capacity(
    source: str | Path,
    *,
    slo: str,
    replications: int = 5,
    confidence: float = 0.95,
    resolution: float = 0.01,
    judge_s: float = 300.0,
    jobs: int | None = None,
    **options: Any,
) -> CapacityResult:
    """Find the largest load at which a fleet meets objectives, as `sundog capacity` does.

    Trials run in processes of their own, so that a script needs `if __name__ == "__main__":`.

    Args:
        source: A trace, or the description of a workload (docs/workloads.md).
        slo: Objectives of a run, such as `"p95(ttft)<1,p95(tpot)<0.04"`; times are in seconds.
        replications: Number of samples of a described workload, each with a largest load.
        confidence: Confidence of the interval.
        resolution: Relative precision of each largest load.
        judge_s: Least seconds of steady traffic to judge, after a lead-in; 0 judges a description as it is.
        jobs: Number of processes; None for one per core.
        **options: Options of the fleet, as of `replay`.

    Returns:
        The largest load, as a multiple of the source's and in requests a second.

    Raises:
        ConfigError: An option is wrong, or the objectives name no figure of a run.

    Example:
        >>> import sundog
        >>> found = sundog.capacity(
        ...     "traces/chat-poisson-2rps-5min.jsonl.gz", slo="p95(ttft)<1", gpu="h100", limit=100,
        ...     resolution=0.1, jobs=1,
        ... )
        >>> found.factor.mean > 1
        True
    """
    from sundog.options.capacity import CapacityTerms
    from sundog.planning.capacity import find_capacity
    from sundog.sweeps.cell import Plan
    from sundog.sweeps.source import workload_of

    target, reading, load, terms, engine = records_of({**options, "slo": slo})
    search = {"replications": replications, "confidence": confidence, "resolution": resolution, "jobs": jobs}
    (asked,) = records_of({**search, "judge_s": judge_s}, (CapacityTerms,))
    place = path_of("source", source)
    shared = Plan(
        workload_of(place, reading),
        place,
        engine=engine,
        target=target,
        load=load,
        terms=terms,
        judged_s=asked.judge_s or None,
    )
    return CapacityResult(find_capacity(shared, terms, engine.replicas, asked))


def trace(*files: str | Path, out: str | Path | None = None, **options: Any) -> dict[str, Any]:
    """Describe a trace, or merge several in order of arrival, as `sundog trace --json` does.

    Args:
        *files: Traces in any format of traces/README.md. Of several each becomes a tenant by its file's name.
        out: File for the merged trace, `.jsonl` or `.jsonl.gz`.
        **options: Options of how a trace is read, such as `limit`, `from_s`, `until_s`, `columns`.

    Returns:
        Its format, rates, lengths, sessions and repeated prompts.

    Raises:
        ConfigError: An option is wrong, or no file is given.
        TraceError: A row cannot be read.

    Example:
        >>> import sundog
        >>> found = sundog.trace("traces/chat-poisson-2rps-5min.jsonl.gz", limit=100)
        >>> found["num_requests"]
        100
    """
    from sundog.sim.trace.describe import describe

    (reading,) = records_of(options, (ReadingOptions,))
    names = [path_of("a trace", file) for file in files]
    merged_to = None if out is None else path_of("out", out)
    rows, formats, _ = traced(reading, names)
    if merged_to is not None:
        write_merged(merged_to, rows, names)
    return {"format": " and ".join(dict.fromkeys(formats)), **asdict(describe(rows))}


def traced(
    reading: ReadingOptions, files: Sequence[str]
) -> "tuple[Sequence[TraceRequest], list[str], list[str]]":
    """Return the rows of a trace, or of several as tenants, with the formats and the remarks of the files."""
    if not files:
        raise ConfigError("no trace is given: name at least one file")
    sources = [reading.trace(each) for each in files]
    remarks = [text for source in sources for text in source.remarks]
    rows: Sequence[TraceRequest] = list(islice(sources[0], reading.limit))
    if len(sources) > 1:
        from sundog.sim.workload.mixture import merged

        names = [Path(each).name.partition(".")[0] for each in files]
        if len(set(names)) < len(names):
            raise ConfigError(
                f"the traces are called {', '.join(names)}: files of different names are tenants"
            )
        parts = [list(islice(source, reading.limit)) for source in sources]
        rows = merged(list(zip(names, parts, strict=True)))
    return rows, [source.format for source in sources], remarks


def write_merged(out: str, rows: "Sequence[TraceRequest]", files: Sequence[str]) -> None:
    """Write the rows of traces as one, with the names of their files."""
    from sundog.sim.trace.jsonl_rows import write_trace

    size = max((row.hash_block_tokens for row in rows if row.hash_ids is not None), default=0)
    named = " ".join(Path(each).name for each in files)
    write_trace(out, rows, provenance=f"sundog trace {named}", seed=0, hash_block_tokens=size)


def workload(
    spec: str | Path | Mapping[str, Any], *, seed: int = 0, out: str | Path | None = None
) -> "pa.Table":
    """Generate the requests that a description of a workload stands for, as `sundog workload` does.

    Args:
        spec: A TOML file (docs/workloads.md), or the same as a mapping.
        seed: Seed of everything random; the same seed gives the same trace.
        out: File for the trace, `.jsonl` or `.jsonl.gz`.

    Returns:
        A table of the requests: their arrivals in seconds, lengths in tokens, sessions and tenants.

    Raises:
        ConfigError: The description is wrong, or gives no request.

    Example:
        >>> import sundog
        >>> table = sundog.workload({
        ...     "duration_s": 10, "arrivals": {"kind": "gamma", "rate_per_s": 2, "cv": 0},
        ...     "prompt": {"kind": "fixed", "tokens": 100}, "output": {"kind": "fixed", "tokens": 20},
        ... })
        >>> table.column("num_prompt_tokens").unique().to_pylist()
        [100]
    """
    import pyarrow as pa

    from sundog.sim.trace.jsonl_rows import write_trace
    from sundog.sim.workload.read import parse_spec, read_spec

    asked = None if out is None else path_of("out", out)
    (drawn,) = records_of({"seed": seed}, (EngineOptions,))
    if isinstance(spec, Mapping):
        name = "the description"
        source = parse_spec(dict(spec), name)
    else:
        name = Path(path_of("spec", spec)).name
        source = read_spec(spec)
    requests = source.requests(drawn.seed)
    if not requests:
        raise ConfigError(f"{name} gives no request with seed {seed}: raise its rate or duration_s")
    if asked is not None:
        said, tokens = f"sundog workload {name}", source.hash_block_tokens
        write_trace(asked, requests, provenance=said, seed=drawn.seed, hash_block_tokens=tokens)
    return pa.Table.from_pylist([{name: getattr(each, name) for name in COLUMNS} for each in requests])


def calibrate(*sources: str | Path, out: str | Path, **options: Any) -> CalibrationResult:
    """Fit a cost model to an engine, a server or a log, as `sundog calibrate` does.

    Args:
        *sources: A model's folder or `"sundog-tiny"`, whose engine is measured on this machine; the URL of a
            server, and a trace or workload; folders of runs or of a server's requests; a log of steps.
        out: The `.toml` file to write, for `cost=` of `replay` and other functions.
        **options: Options of `sundog calibrate`, such as `seconds`, `request_rate`, `max_num_seqs`.

    Returns:
        The file, its coefficients, and how well they explain what was measured.

    Raises:
        ConfigError: An option is wrong, or a source cannot be measured or read.

    Example:
        >>> import sundog, tempfile
        >>> folder = tempfile.mkdtemp()
        >>> run = sundog.replay("traces/chat-poisson-2rps-5min.jsonl.gz", gpu="h100", limit=100)
        >>> found = sundog.calibrate(run.folder, out=f"{folder}/h100.toml")
        >>> 0.001 < found.coefficients["step"] < 0.02
        True
        >>> again = sundog.replay(
        ...     "traces/chat-poisson-2rps-5min.jsonl.gz", cost=f"{folder}/h100.toml", gpu="h100", limit=10
        ... )
    """
    from sundog.calibration.sources import calibrated
    from sundog.options.clients import ServerLoads
    from sundog.options.engine import SIMULATED_ONLY, MeasuringOptions

    if not sources:
        raise ConfigError("there is no source: give a model, a URL, a folder of requests or a log of steps")
    records = (MeasuringOptions, ServerLoads, ReadingOptions, EngineOptions)
    without = (*SIMULATED_ONLY, "enforce_eager")
    measuring, loads, reading, engine = records_of(options, records, without)
    named, file = [path_of("a source", source) for source in sources], Path(path_of("out", out))

    def run() -> CalibrationResult:
        found = calibrated(named, file, measuring=measuring, loads=loads, reading=reading, engine=engine)
        return CalibrationResult(found)

    return outside_of_loops(run)


def _folder(name: str, run: str | Path | RunResult) -> Path:
    return run.folder if isinstance(run, RunResult) else Path(path_of(name, run))


def _check_request(request_id: object) -> None:
    if not isinstance(request_id, str | None):
        raise ConfigError(f"request_id is {request_id!r}: give a request's name, a text")
