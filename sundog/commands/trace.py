"""`sundog trace`: what is in a trace."""

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import click

from sundog.options import AnyText, Switch, option
from sundog.options.takes import command, takes

if TYPE_CHECKING:
    from sim.trace.describe import Description


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceOptions:
    """Options of how a trace is read and shown."""

    as_json: bool = option(False, Switch(pair=False), "Print the same as JSON.", flag="--json")
    tokenizer: str | None = option(
        None, AnyText("FILE"), "For traces of texts: a tokenizer.json or a model's folder."
    )


@command
@takes(TraceOptions)
@click.argument("trace")
def trace(asked: TraceOptions, trace: str) -> None:
    """Describe a trace: rates, lengths, repeated prompts."""
    from sim.trace.describe import describe
    from sim.trace.read import read_trace

    source = read_trace(trace, asked.tokenizer)
    found = describe(source)
    if asked.as_json:
        click.echo(json.dumps({"format": source.format, **asdict(found)}, indent=1))
    else:
        _print(found, source.format)


def _print(found: "Description", format: str) -> None:
    """A table of lengths, and bars over time."""
    from rich import box
    from rich.table import Table

    from sim.show.console import console_for, print_table
    from sim.trace.describe import bars

    console = console_for()
    console.print(
        f"{found.num_requests:,} requests in {found.span_s:,.1f} s, {found.rate_per_s:.3g}/s,"
        f" gaps vary {found.burstiness:.2f} times their mean (Poisson: 1); format {format}",
        markup=False,
    )
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("tokens", "mean", "p50", "p90", "p99", "max"):
        table.add_column(name, justify="left" if name == "tokens" else "right")
    for name, lengths in (("prompt", found.prompt_tokens), ("output", found.output_tokens)):
        table.add_row(name, *(f"{value:,.0f}" for value in lengths.values()))
    print_table(console, table)
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
