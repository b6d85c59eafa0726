"""`sundog workload`: write the trace that a description of a workload stands for."""

from pathlib import Path

import click


@click.command()
@click.argument("spec", type=click.Path(path_type=Path))
@click.option("-o", "--output", required=True, metavar="FILE", help="A .jsonl or .jsonl.gz.")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True)
def workload(spec: Path, output: str, seed: int) -> None:
    """Generate the trace that SPEC, a TOML file, describes (docs/workloads.md)."""
    from actors.core.config import ConfigError
    from sim.trace.write import write_trace
    from sim.workload.spec import read_spec

    source = read_spec(spec)
    requests = source.requests(seed)
    if not requests:
        raise ConfigError(f"{spec} gives no request with seed {seed}: raise its rate or duration_s")
    try:
        write_trace(
            output,
            requests,
            provenance=f"sundog workload {spec.name}",
            seed=seed,
            hash_block_tokens=source.hash_block_tokens,
        )
    except OSError as error:
        raise ConfigError(f"{output} cannot be written: {error.strerror or error}") from None
    span_s = requests[-1].arrival_s
    click.echo(f"{output}: {len(requests):,} requests in {span_s:,.1f} s", err=True)
