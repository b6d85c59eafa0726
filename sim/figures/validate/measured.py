"""What real servers did: one `Server` per process that was measured, in stages of load."""

from dataclasses import dataclass

from actors.core.config import ConfigError
from sim.trace.record import TraceRequest

Figures = dict[str, float]
"""Seconds by name: `ttft mean`, `e2e p99` and the like."""


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
    """

    name: str
    first: int
    stop: int
    rate_per_s: float
    figures: Figures
    fitted: str | None = None


@dataclass(frozen=True, slots=True)
class Server:
    """One real server: how it was started, what it was asked, and what its stages measured.

    `num_gpu_blocks` is None where nobody wrote it down. `at_client` says that latencies were taken
    at an HTTP client, front end included.
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
