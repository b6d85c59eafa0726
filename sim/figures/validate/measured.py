"""What real servers did: one `Server` per process that was measured, in stages of load.

A directory is searched for three kinds of record: `*.server.toml`, figures of one server written
down by hand (see `servers/`); folders of `meta.json` and `requests.jsonl.gz`, a log of every
request; and `summary.csv`, latency summaries by stage of load.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from actors.core.config import ConfigError
from sim.trace.record import TraceRequest

Figures = dict[str, float]
"""Seconds by name: `ttft mean`, `e2e p99` and the like."""


class MeasuredError(ConfigError):
    """A record of a real server that cannot be read as it stands."""


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


def find_servers(directory: Path) -> Iterator[Server]:
    """Every record below `directory`, in order of their paths; raises MeasuredError."""
    from sim.figures.validate.logs import read_log
    from sim.figures.validate.stages import read_stages
    from sim.figures.validate.written import read_written

    if not directory.is_dir():
        raise MeasuredError(f"{directory} is no directory")
    found = False
    for path in sorted(directory.rglob("*")):
        if path.name == "meta.json":
            servers = [read_log(path.parent)]
        elif path.name == "summary.csv":
            servers = read_stages(path)
        elif path.name.endswith(".server.toml"):
            servers = [read_written(path)]
        else:
            continue
        found = True
        yield from servers
    if not found:
        raise MeasuredError(
            f"{directory} has no record of a server: neither *.server.toml, nor meta.json with"
            " requests.jsonl.gz, nor summary.csv"
        )
