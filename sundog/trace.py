"""`sundog trace`: what is in a trace."""

import json
from dataclasses import asdict

import click


@click.command()
@click.argument("trace")
@click.option("--json", "as_json", is_flag=True, help="Print the same as JSON.")
@click.option("--tokenizer", help="For traces of texts: a tokenizer.json or a model's folder.")
def trace(trace: str, as_json: bool, tokenizer: str | None) -> None:
    """Describe TRACE: how many requests, how often, how long, how much of it repeats."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    from sim.trace.describe import bars, describe
    from sim.trace.read import read_trace

    source = read_trace(trace, tokenizer)
    found = describe(source)
    if as_json:
        click.echo(json.dumps({"format": source.format, **asdict(found)}, indent=1))
        return
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=80)
    console.print(
        f"{found.num_requests:,} requests in {found.span_s:,.1f} s, {found.rate_per_s:.3g}/s,"
        f" gaps vary {found.burstiness:.2f} times their mean (Poisson: 1); format {source.format}",
        markup=False,
    )
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("tokens", "mean", "p50", "p90", "p99", "max"):
        table.add_column(name, justify="left" if name == "tokens" else "right")
    for name, lengths in (("prompt", found.prompt_tokens), ("output", found.output_tokens)):
        table.add_row(name, *(f"{value:,.0f}" for value in lengths.values()))
    console.print(table)
    for name, counts in (
        ("arrivals over time", found.over_time),
        ("prompts, 1 to the longest", found.prompt_histogram),
        ("outputs, 1 to the longest", found.output_histogram),
    ):
        console.print(f"{name:<26}{bars(counts)}", markup=False)
    if found.ideal_hit_rate is not None:
        console.print(f"at most {found.ideal_hit_rate:.1%} of prompt tokens repeat a prefix")
    if found.num_sessions:
        console.print(f"{found.num_sessions:,} sessions")
    for tenant, count in found.tenants.items():
        console.print(f"tenant {tenant}: {count:,} requests", markup=False)
