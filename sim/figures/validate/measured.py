"""What real servers did: one `Server` per process that was measured, in stages of load."""

from dataclasses import field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from actors.core.config import ConfigError
from actors.core.engine_version import NEWEST
from actors.core.records import dataclass
from sim.figures.statistics.distribution import distribution
from sim.figures.validate.engine_options import EngineOptions
from sim.trace.record import TraceRequest

Figures = dict[str, float]
"""Seconds by name: `ttft mean`, `e2e p99` and the like; `throughput` is requests a second."""
THROUGHPUT = "throughput"


class MeasuredError(ConfigError):
    """A record of a real server that cannot be read as it stands."""

    @classmethod
    def at(cls, path: str, line: int, reason: str) -> "MeasuredError":
        """With the place of what is wrong."""
        return cls(f"{path}, line {line}: {reason}")


@dataclass(frozen=True, slots=True)
class Stage:
    """A load and what came of it: requests `first` up to, not including, `stop` of the server's.

    `fitted` names the part of the simulator that was fitted to it; None where all is prediction.
    `num_gave_up` requests were cancelled by clients that would not wait: no simulated client does that, so
    figures of such a stage are shown and not counted.
    """

    name: str
    first: int
    stop: int
    rate_per_s: float
    figures: Figures
    fitted: str | None = None
    num_gave_up: int = 0


@dataclass(frozen=True, slots=True)
class Server:
    """One real server: how it was started, what it was asked, and what its stages measured.

    `num_gpu_blocks` is None where it was not written down, `gpu_memory_utilization` where it was the
    default. `at_client` says that latencies were taken at an HTTP client, front end included, and
    `max_concurrency` how many requests the clients had unfinished at most, `client_timeout_s` when they gave
    one up. `options` are what it was started with beside these limits; `refused` says what of
    them is not modelled.
    """

    name: str
    model: str
    gpu: str
    tensor_parallel_size: int
    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int | None
    num_gpu_blocks: int | None
    async_scheduling: bool
    at_client: bool
    requests: list[TraceRequest]
    stages: list[Stage]
    gpu_memory_utilization: float | None = None
    max_concurrency: int | None = None
    client_timeout_s: float | None = None
    refused: str | None = None
    engine_version: str = NEWEST
    options: EngineOptions = field(default_factory=EngineOptions)

    @property
    def plans_ahead(self) -> bool:
        """Whether its host's work overlaps with its steps: beside drafts of n-grams vLLM plans one by one."""
        asked = self.options.speculation
        return self.async_scheduling and (asked is None or asked.model is not None)


def model_of(name: str, folder: Path) -> str:
    """A path to a config as it is, relative to the record's folder; else the hub's short name."""
    path = Path(name).expanduser()
    looks_like_one = name.startswith((".", "/", "~")) or name.endswith(".json")
    for candidate in (path, folder / path):
        if looks_like_one and candidate.exists():
            return str(candidate)
    return name if looks_like_one else name.rpartition("/")[2].lower().removesuffix("-hf")


Floats = NDArray[np.float64]


def figures_of(asked_s: Floats, first_s: Floats, last_s: Floats, num_tokens: Floats) -> Figures:
    """The figures of requests by their instants in seconds, and their numbers of output tokens."""
    many = num_tokens > 1
    tpot_s = (last_s - first_s)[many] / (num_tokens[many] - 1)
    figures: Figures = {}
    for name, values in (("ttft", first_s - asked_s), ("tpot", tpot_s), ("e2e", last_s - asked_s)):
        found = distribution(values)
        if found is not None:
            for kind in ("mean", "p50", "p90", "p99"):
                figures[f"{name} {kind}"] = getattr(found, kind)
    span_s = float(last_s.max() - asked_s.min()) if len(last_s) else 0.0
    if span_s:
        figures[THROUGHPUT] = len(last_s) / span_s
    return figures
