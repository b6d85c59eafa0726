"""Records of real servers below a directory, and the reader of written ones.

There are four kinds: `*.server.toml`, figures of one server written down by hand (see `servers/`); folders of
`meta.json` and `requests.jsonl.gz`, a log of every request; `summary.csv`, latency summaries by stage of
load; and folders that `sundog bench --out` wrote.

In a `summary.csv` each experiment is one server, its stages one after another. Prompts are `groups` x
`prompts_per_group` different ones in a cycle, those of a group with `system_len` tokens in common, so that
with prefix caching nearly all of them hit. Row stage -1 sums up the whole run and is left out. Its clients
recorded no sampling parameters, and the name of its folder has the vLLM version, as in `vllm0.15_h100`.
"""

import csv
import re
from collections.abc import Iterator
from itertools import groupby, pairwise
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, NonNegativeInt, PositiveFloat, PositiveInt

from sundog.actors.core.engine_version import NEWEST, is_async
from sundog.sim.cost.profile import read_profile
from sundog.sim.figures.server_log import MeasuredError
from sundog.sim.files.run_files import KEPT_TRACE, SUMMARY
from sundog.sim.files.toml import checked, read_toml
from sundog.sim.hardware.gpu import load_gpu
from sundog.sim.hardware.model import load_model
from sundog.sim.record.run_directory import Run, open_run
from sundog.sim.target import Target
from sundog.sim.trace.read import read_trace
from sundog.sim.trace.record import TraceRequest
from sundog.sim.validation.logs import read_log
from sundog.sim.validation.measured import (
    THROUGHPUT,
    Figures,
    MeasuredServer,
    RecordedOptions,
    Rounds,
    Stage,
    engine_options,
    exact_poisson,
    figures_of,
    model_of,
)
from sundog.sim.workload.read import read_spec

COLUMNS = ("arrival_s", "first_token_s", "finish_s", "num_output_tokens")


def read_clients_run(run: Run) -> MeasuredServer:
    """Return the server of a client's run; raises MeasuredError if its machine is unknown."""
    config, folder = run.config, run.path
    gpu = config.get("simulate")
    if gpu is None:
        raise MeasuredError(
            f"{folder / 'config.toml'} does not name the GPU: give `sundog bench` --simulate GPU"
        )
    path = folder / gpu
    if path.suffix == ".toml" and path.is_file() and read_profile(path) is not None:
        raise MeasuredError(
            f"{folder}: {gpu} is of an engine that was measured: `sundog bench --config"
            f" {folder / 'config.toml'}` says what it predicts"
        )
    rows = _finished(run)
    model = model_of(str(config.get("shape") or run.summary["client"]["model"]), folder)
    gpu = str(path) if path.is_file() else str(gpu)
    tokens, seqs = Target(load_model(model), load_gpu(gpu)).default_limits
    columns = [np.array([row[name] for row in rows], dtype=np.float64) for name in COLUMNS]
    requests = asked_in(run)
    version = str(config.get("engine_version", NEWEST))
    options, refused = engine_options(config)
    figures, rate_per_s = figures_of(*columns), len(rows) / max(requests[-1].arrival_s, 1e-9)
    return MeasuredServer(
        name=folder.resolve().name,
        model=model,
        gpu=gpu,
        tensor_parallel_size=config.get("tensor_parallel_size", 1),
        max_num_seqs=config.get("max_num_seqs", seqs),
        max_num_batched_tokens=config.get("max_num_batched_tokens", tokens),
        max_model_len=config.get("max_model_len"),
        num_gpu_blocks=config.get("num_gpu_blocks"),
        async_scheduling=config.get("async_scheduling", is_async(version, options.pipeline_parallel_size)),
        engine_version=version,
        at_client=True,
        requests=requests,
        stages=[
            Stage(
                "all",
                0,
                stop=len(rows),
                rate_per_s=rate_per_s,
                figures=figures,
                num_gave_up=run.summary["num_aborted"],
            )
        ],
        gpu_memory_utilization=config.get("gpu_memory_utilization"),
        max_concurrency=config.get("clients"),
        client_timeout_s=config.get("timeout"),
        refused=refused,
        options=options,
    )


Contents = dict[str, TraceRequest]


def _finished(run: Run) -> list[dict[str, Any]]:
    rows = [row for row in run.requests().to_pylist() if row["reason"] in ("stop", "length")]
    if len(rows) < 2:
        raise MeasuredError(f"{run.path} has {len(rows)} requests that finished, at least 2 are needed")
    return rows


def asked_in(run: Run) -> list[TraceRequest]:
    """Return the finished requests of a run with their actual lengths; the first arrives at 0."""
    rows, contents = _finished(run), _contents(run.config, run.path)
    start_s, found = rows[0]["arrival_s"], []
    for number, row in enumerate(rows):
        known = contents.get(row["request_id"])
        request = TraceRequest(
            str(number),
            row["arrival_s"] - start_s,
            row["num_prompt_tokens"],
            max(row["num_output_tokens"], 1),
        )
        if known is not None:
            request = request._replace(hash_ids=known.hash_ids, hash_block_tokens=known.hash_block_tokens)
        found.append(request)
    return found


def _contents(config: dict[str, Any], folder: Path) -> Contents:
    if (folder / KEPT_TRACE).is_file():
        return {row.request_id: row for row in read_trace(str(folder / KEPT_TRACE))}
    path = folder / str(config.get("trace"))
    if not path.exists():
        return {}
    is_workload = path.suffix == ".toml"
    source = read_spec(path).requests(config.get("seed", 0)) if is_workload else read_trace(str(path))
    return {row.request_id: row for row in source}


Kind = Literal["mean", "p50", "p90", "p99"]
Metric = Literal["ttft", "tpot", "e2e", "itl"]


class Strict(BaseModel):
    """Model that refuses a misspelt key by name."""

    model_config = ConfigDict(extra="forbid")


class WrittenLoad(Strict):
    """Prompts of one length at a rate, with the tokens of each answer.

    With `prompts` that many different ones are sent in turn, in `prompt_groups` of equal size that share
    their first `shared_tokens`; otherwise each is sent once. Clients have at most `max_concurrency` requests
    unfinished, and give one up after `timeout_s`. With `at_once` so many are sent at an instant, and the next
    when all of them have ended: the rate only determines their number. The first `warm_requests` were not
    measured.
    """

    rate_per_s: PositiveFloat
    duration_s: PositiveFloat
    prompt_tokens: PositiveInt
    output_tokens: PositiveInt
    prompts: PositiveInt | None = None
    prompt_groups: PositiveInt = 1
    shared_tokens: NonNegativeInt = 0
    max_concurrency: PositiveInt | None = None
    timeout_s: PositiveFloat | None = None
    at_once: PositiveInt | None = None
    warm_requests: NonNegativeInt = 0


class Written(RecordedOptions, Strict):
    """Contents of the file; `source` names the author and the measurement. Paths are relative to this
    file.
    """

    source: str
    model: str
    gpu: str
    engine_version: str = NEWEST
    tensor_parallel_size: PositiveInt = 1
    max_num_seqs: PositiveInt
    max_num_batched_tokens: PositiveInt
    max_model_len: PositiveInt | None = None
    num_gpu_blocks: PositiveInt | None = None
    gpu_memory_utilization: Annotated[float, Field(gt=0, le=1)] | None = None
    async_scheduling: bool | None = None
    at_client: bool = True
    fitted: str | None = None
    load: WrittenLoad
    measured_ms: Annotated[dict[Metric, dict[Kind, PositiveFloat]], Field(min_length=1)]
    measured_requests_per_s: PositiveFloat | None = None


def read_written(path: Path) -> MeasuredServer:
    """Read the server described by `path`; raises MeasuredError naming the file and the key."""
    written = checked(Written, read_toml(path, MeasuredError), path, kind=MeasuredError)
    name = path.name.removesuffix(".server.toml")
    load, requests = written.load, _generated(written.load, path, name)
    if load.at_once is not None:
        requests = _at_once(requests, load.at_once, load.warm_requests)
    figures = {
        f"{metric} {kind}": value_ms / 1e3
        for metric, kinds in written.measured_ms.items()
        for kind, value_ms in kinds.items()
    }
    if written.measured_requests_per_s is not None:
        figures[THROUGHPUT] = written.measured_requests_per_s
    if load.warm_requests >= len(requests):
        raise MeasuredError(f"{path}: load.warm_requests: no request of {len(requests)} is left to measure")
    stage = Stage(
        "all",
        load.warm_requests,
        stop=len(requests),
        rate_per_s=load.rate_per_s,
        figures=figures,
        fitted=written.fitted,
    )
    is_ahead = written.async_scheduling
    if is_ahead is None:
        is_ahead = is_async(written.engine_version, written.pipeline_parallel_size)
    options, refused = engine_options(written.model_dump())
    return MeasuredServer(
        name=name,
        model=model_of(written.model, path.parent),
        gpu=written.gpu,
        tensor_parallel_size=written.tensor_parallel_size,
        max_num_seqs=written.max_num_seqs,
        max_num_batched_tokens=written.max_num_batched_tokens,
        max_model_len=written.max_model_len,
        num_gpu_blocks=written.num_gpu_blocks,
        async_scheduling=is_ahead,
        at_client=written.at_client,
        requests=requests,
        stages=[stage],
        gpu_memory_utilization=written.gpu_memory_utilization,
        max_concurrency=load.max_concurrency,
        client_timeout_s=load.timeout_s,
        refused=refused,
        options=options,
        engine_version=written.engine_version,
    )


def _generated(load: WrittenLoad, path: Path, name: str) -> list[TraceRequest]:
    count = round(load.rate_per_s * load.duration_s)
    arrivals = enumerate(exact_poisson(load.rate_per_s, count, 0, name))
    if load.prompts is None:
        if load.shared_tokens or load.prompt_groups > 1:
            raise MeasuredError(
                f"{path}: load.prompts is missing: give the number of prompts that share tokens"
            )
        return [TraceRequest(str(i), s, load.prompt_tokens, load.output_tokens) for i, s in arrivals]
    if load.prompts % load.prompt_groups:
        raise MeasuredError(f"{path}: load.prompts: must be a multiple of prompt_groups")
    rounds = Rounds(load.prompt_groups, load.prompts // load.prompt_groups, load.shared_tokens)
    return [rounds.request(i, s, load.prompt_tokens, load.output_tokens) for i, s in arrivals]


def _at_once(requests: list[TraceRequest], size: int, num_warm: int) -> list[TraceRequest]:
    """Return the requests in bursts of `size`; each burst comes when the previous one has ended.

    The first request that is measured begins a burst.
    """
    begins = [*range(0, num_warm, size), *range(num_warm, len(requests), size)]
    bursts = [requests[first:stop] for first, stop in pairwise([*begins, len(requests)])]
    found, before = list[TraceRequest](), tuple[str, ...]()
    for burst in bursts:
        found += [each._replace(arrival_s=0.0, session="bursts", after=before) for each in burst]
        before = tuple([each.request_id for each in burst])
    return found


FITTED = {
    ("20260217-203421-llama-2-70b-hf-tp4-codegen", "0"): "skew of ranks, launching layers",
    ("20260217-155451-llama-2-7b-tp1-codegen", "0"): "bound of decode attention",
    ("20260217-155451-llama-2-7b-tp1-codegen", "1"): "bound of decode attention",
}
"""Experiments and stages that a part of the simulator was fitted to."""
STAGED = "experiment"
"""Column that only summaries with several load stages have: the experiment of each row."""
STAGE_COLUMNS = {
    "ttft mean": "ttft_mean_ms",
    "ttft p50": "ttft_median_ms",
    "ttft p90": "ttft_p90_ms",
    "ttft p99": "ttft_p99_ms",
    "e2e mean": "e2e_mean_ms",
    "e2e p50": "e2e_median_ms",
    "e2e p90": "e2e_p90_ms",
    "e2e p99": "e2e_p99_ms",
    "tpot mean": "tpot_true_mean_ms",
}


def read_stages(path: Path) -> list[MeasuredServer]:
    """Return a server per experiment; raises MeasuredError naming file, line and column.

    A table without experiments is another kind of summary, and gives none.
    """
    try:
        with path.open(encoding="utf-8", newline="") as file:
            reader = csv.DictReader(file)
            if STAGED not in (reader.fieldnames or ()):
                return []
            rows = [(number, row) for number, row in enumerate(reader, 2)]
    except (OSError, ValueError) as error:
        raise MeasuredError(f"{path}: {error}") from None
    servers = []
    for experiment, group in groupby(rows, key=lambda pair: pair[1][STAGED]):
        stages = [pair for pair in group if pair[1].get("stage") != "-1"]
        if stages:
            servers.append(_server(path, experiment, stages))
    return servers


def _server(path: Path, experiment: str, rows: list[tuple[int, dict[str, str]]]) -> MeasuredServer:
    requests: list[TraceRequest] = []
    stages: list[Stage] = []
    start_s = 0.0
    for number, row in rows:
        try:
            rate, duration_s = float(row["rate"]), float(row["duration"])
            first, count = len(requests), round(rate * duration_s)
            arrivals = exact_poisson(rate, count, number, experiment)
            rounds = Rounds(int(row["groups"]), int(row["prompts_per_group"]), int(row["system_len"]))
            lengths = round(float(row["prompt_len_mean"])), int(row["output_len_requested"])
            requests += [
                rounds.request(first + i, start_s + arrival_s, *lengths)
                for i, arrival_s in enumerate(arrivals)
            ]
            figures: Figures = {name: float(row[key]) / 1e3 for name, key in STAGE_COLUMNS.items()}
            if row.get("req_per_s"):
                figures[THROUGHPUT] = float(row["req_per_s"])
            fitted = FITTED.get((experiment, row["stage"]))
            gave_up = int(row.get("n_fail") or 0)
            stages.append(
                Stage(
                    row["stage"],
                    first,
                    stop=len(requests),
                    rate_per_s=rate,
                    figures=figures,
                    fitted=fitted,
                    num_gave_up=gave_up,
                )
            )
            start_s += duration_s
        except (KeyError, TypeError, ValueError) as error:
            raise MeasuredError(f"{path}, line {number}: {error}") from None
    number, row = rows[0]
    version = re.search(r"vllm(\d+\.\d+)", path.parent.name)
    try:
        return MeasuredServer(
            name=experiment,
            model=model_of(row["model"], path.parent),
            gpu="h100",
            tensor_parallel_size=int(row["tp"]),
            max_num_seqs=int(row["max_seqs"]),
            max_num_batched_tokens=int(row["mbt"]),
            max_model_len=None,
            num_gpu_blocks=None,
            async_scheduling=True,
            engine_version=NEWEST if version is None else version[1],
            at_client=True,
            requests=requests,
            stages=stages,
            options=RecordedOptions(override_generation_config={}),
        )
    except (KeyError, ValueError) as error:
        raise MeasuredError(f"{path}, line {number}: {error}") from None


def find_servers(directory: Path) -> Iterator[MeasuredServer]:
    """Yield every record below `directory`, in order of their paths; raises MeasuredError."""
    if not directory.is_dir():
        raise MeasuredError(f"{directory} is not a directory")
    found = False
    for path in sorted(directory.rglob("*")):
        if path.name == "meta.json":
            servers = [read_log(path.parent)]
        elif path.name == "summary.csv":
            servers = read_stages(path)
        elif path.name == SUMMARY:
            run = open_run(path.parent)
            servers = [read_clients_run(run)] if run.is_clients else []
        elif path.name.endswith(".server.toml"):
            servers = [read_written(path)]
        else:
            continue
        found = found or bool(servers)
        yield from servers
    if not found:
        raise MeasuredError(
            f"{directory} has no record of a server: neither *.server.toml, nor meta.json with"
            " requests.jsonl.gz, nor summary.csv, nor a run of `sundog bench`"
        )
