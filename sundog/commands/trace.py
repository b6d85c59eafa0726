"""`sundog trace`: describe a trace, or merge several."""

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import click

from sundog.ends import remark, writing
from sundog.options.row import Switch, option
from sundog.options.simulation import ReadingOptions
from sundog.options.takes import command, takes

if TYPE_CHECKING:
    from sundog.sim.trace.describe import Description


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceOptions:
    """Options of reading and showing a trace."""

    as_json: bool = option(False, Switch(pair=False), "Print the results as JSON.", flag="--json")


@command
@takes(TraceOptions, ReadingOptions)
@click.option("-o", "--output", metavar="FILE", help="Write the merged trace there: .jsonl or .jsonl.gz.")
@click.argument("traces", nargs=-1, required=True, metavar="TRACE...")
def trace(asked: TraceOptions, reading: ReadingOptions, output: str | None, traces: tuple[str, ...]) -> None:
    """Describe a trace: rates, lengths, repeated prompts.

    Several traces are merged in order of arrival, and each becomes a tenant with the name of its file.
    """
    from sundog.library.questions import traced, write_merged
    from sundog.sim.trace.describe import describe

    rows, formats, remarks = traced(reading, traces)
    for text in remarks:
        remark(text)
    if output is not None:
        with writing(output):
            write_merged(output, rows, traces)
    found, format = describe(rows), " and ".join(dict.fromkeys(formats))
    if asked.as_json:
        click.echo(json.dumps({"format": format, **asdict(found)}, indent=1))
    else:
        _print(found, format)


def _print(found: "Description", format: str) -> None:
    from sundog.sim.show.console import console_for, print_table, table_of
    from sundog.sim.trace.describe import bars

    console = console_for()
    console.print(
        f"{found.num_requests:,} requests in {found.span_s:,.1f} s, {found.rate_per_s:.3g}/s,"
        f" gaps vary {found.burstiness:.2f} times their mean (Poisson: 1); format {format}",
        markup=False,
    )
    table = table_of("tokens", "mean", "p50", "p90", "p99", "max")
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
