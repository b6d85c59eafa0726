"""Figures of one server, written down by hand: `NAME.server.toml`, checked strictly."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, NonNegativeInt, PositiveFloat, PositiveInt

from actors.core.engine_version import NEWEST, is_async
from sim.figures.validate.logs import read_client_log
from sim.figures.validate.measured import (
    THROUGHPUT,
    EngineOptions,
    Figures,
    MeasuredError,
    Rounds,
    Server,
    Stage,
    engine_options,
    exact_poisson,
    model_of,
)
from sim.files.toml import checked, read_toml
from sim.trace.record import TraceRequest

Kind = Literal["mean", "p50", "p90", "p99"]
Metric = Literal["ttft", "tpot", "e2e", "itl"]


class Strict(BaseModel):
    """A misspelt key is an error that names it."""

    model_config = ConfigDict(extra="forbid")


class Load(Strict):
    """Prompts of one length at a rate, and how many tokens each answer had.

    With `prompts` that many different ones are asked in turn, in `prompt_groups` of equal size that share
    their first `shared_tokens`; otherwise each is asked once. Clients have at most `max_concurrency` requests
    unfinished, and give one up that has not ended after `timeout_s`.
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


class Written(EngineOptions, Strict):
    """The file; `source` names the author and what was measured.

    What was asked is a `load`, with its figures in `measured_ms`, or a client's `log` (the path of a
    file as `client_log` describes it), which has its own. Paths are relative to this file.
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
    log: str | None = None
    load: Load | None = None
    measured_ms: dict[Metric, dict[Kind, PositiveFloat]] = {}
    measured_requests_per_s: PositiveFloat | None = None


def read_written(path: Path) -> Server:
    """The server described by `path`; raises MeasuredError naming the file and the key."""
    written = checked(Written, read_toml(path, MeasuredError), path, kind=MeasuredError)
    name = path.name.removesuffix(".server.toml")
    requests, figures, rate_per_s = _asked(written, path, name)
    stage = Stage("all", 0, len(requests), rate_per_s, figures, written.fitted)
    is_ahead = written.async_scheduling
    if is_ahead is None:
        is_ahead = is_async(written.engine_version, written.pipeline_parallel_size)
    options, refused = engine_options(written.model_dump())
    return Server(
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
        max_concurrency=None if written.load is None else written.load.max_concurrency,
        client_timeout_s=None if written.load is None else written.load.timeout_s,
        refused=refused,
        options=options,
        engine_version=written.engine_version,
    )


def _asked(written: Written, path: Path, name: str) -> tuple[list[TraceRequest], Figures, float]:
    if (written.load is None) == (written.log is None):
        raise MeasuredError(f"{path}: give either [load] with [measured_ms], or log")
    if written.log is not None:
        if written.measured_ms or written.measured_requests_per_s:
            raise MeasuredError(f"{path}: measured_ms: a log has its own figures")
        requests, figures = read_client_log(path.parent / written.log)
        return requests, figures, len(requests) / max(requests[-1].arrival_s, 1e-9)
    load = written.load
    assert load is not None
    if not written.measured_ms:
        raise MeasuredError(f"{path}: measured_ms: missing")
    figures = {
        f"{metric} {kind}": value_ms / 1e3
        for metric, kinds in written.measured_ms.items()
        for kind, value_ms in kinds.items()
    }
    if written.measured_requests_per_s is not None:
        figures[THROUGHPUT] = written.measured_requests_per_s
    return _generated(load, path, name), figures, load.rate_per_s


def _generated(load: Load, path: Path, name: str) -> list[TraceRequest]:
    count = round(load.rate_per_s * load.duration_s)
    arrivals = enumerate(exact_poisson(load.rate_per_s, count, 0, name))
    if load.prompts is None:
        if load.shared_tokens or load.prompt_groups > 1:
            raise MeasuredError(f"{path}: load.prompts: say how many there are that share tokens")
        return [TraceRequest(str(i), s, load.prompt_tokens, load.output_tokens) for i, s in arrivals]
    if load.prompts % load.prompt_groups:
        raise MeasuredError(f"{path}: load.prompts: must be a multiple of prompt_groups")
    rounds = Rounds(load.prompt_groups, load.prompts // load.prompt_groups, load.shared_tokens)
    return [rounds.request(i, s, load.prompt_tokens, load.output_tokens) for i, s in arrivals]
