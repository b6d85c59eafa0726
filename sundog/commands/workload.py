"""`sundog workload`: write the trace of a workload description."""

from dataclasses import dataclass
from pathlib import Path

import click

from sundog.actors.config import ConfigError
from sundog.ends import remark, writing
from sundog.options.row import Whole, option
from sundog.options.takes import command, takes


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadOptions:
    """Options that select the trace: its seed and its length."""

    seed: int = option(
        0, Whole(0, 2**32 - 1), "Seed of everything random; the same seed gives the same trace."
    )


@command
@takes(WorkloadOptions)
@click.option("-o", "--output", required=True, metavar="FILE", help="The .jsonl or .jsonl.gz to write.")
@click.argument("spec", type=click.Path(path_type=Path))
def workload(asked: WorkloadOptions, spec: Path, output: str) -> None:
    """Generate a trace from a description of a workload.

    SPEC is a TOML file (docs/workloads.md).
    """
    from sundog.sim.trace.jsonl_rows import write_trace
    from sundog.sim.workload.read import read_spec

    source = read_spec(spec)
    requests = source.requests(asked.seed)
    if not requests:
        raise ConfigError(f"{spec} gives no request with seed {asked.seed}: raise its rate or duration_s")
    with writing(output):
        write_trace(
            output,
            requests,
            provenance=f"sundog workload {spec.name}",
            seed=asked.seed,
            hash_block_tokens=source.hash_block_tokens,
        )
    span_s = requests[-1].arrival_s
    remark(f"{output}: {len(requests):,} requests in {span_s:,.1f} s")
