"""Figures of one server, written down by hand: `NAME.server.toml`, checked strictly."""

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, PositiveFloat, PositiveInt

from sim.figures.validate.arrivals import exact_poisson
from sim.figures.validate.measured import MeasuredError, Server, Stage
from sim.files.toml import checked, read_toml
from sim.trace.record import TraceRequest

Kind = Literal["mean", "p50", "p90", "p99"]


class Strict(BaseModel):
    """A misspelt key is an error that names it."""

    model_config = ConfigDict(extra="forbid")


class Load(Strict):
    """Unique prompts of one length at a rate, and how many tokens each answer had."""

    rate_per_s: PositiveFloat
    duration_s: PositiveFloat
    prompt_tokens: PositiveInt
    output_tokens: PositiveInt


class Written(Strict):
    """The file; `source` says who measured what, and `measured_ms` holds the figures."""

    source: str
    model: str
    gpu: str
    tensor_parallel_size: PositiveInt = 1
    max_num_seqs: PositiveInt
    max_num_batched_tokens: PositiveInt
    max_model_len: PositiveInt | None = None
    num_gpu_blocks: PositiveInt | None = None
    async_scheduling: bool = True
    at_client: bool = True
    fitted: str | None = None
    load: Load
    measured_ms: dict[Literal["ttft", "tpot", "e2e", "itl"], dict[Kind, PositiveFloat]]


def read_written(path: Path) -> Server:
    """The server described by `path`; raises MeasuredError naming the file and the key."""
    written = checked(Written, read_toml(path, MeasuredError), path, kind=MeasuredError)
    name, load = path.name.removesuffix(".server.toml"), written.load
    count = round(load.rate_per_s * load.duration_s)
    requests = [
        TraceRequest(str(i), arrival_s, load.prompt_tokens, load.output_tokens)
        for i, arrival_s in enumerate(exact_poisson(load.rate_per_s, count, 0, name))
    ]
    figures = {
        f"{metric} {kind}": value_ms / 1e3
        for metric, kinds in written.measured_ms.items()
        for kind, value_ms in kinds.items()
    }
    return Server(
        name=name,
        requests=requests,
        stages=[Stage("all", 0, count, load.rate_per_s, figures, written.fitted)],
        **written.model_dump(exclude={"source", "load", "measured_ms", "fitted"}),
    )
