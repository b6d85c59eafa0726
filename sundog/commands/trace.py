"""`sundog trace`: describe a trace, or merge several."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import click

from sundog.actors.config import ConfigError
from sundog.ends import remark, writing
from sundog.options.row import Switch, option
from sundog.options.simulation import ReadingOptions
from sundog.options.takes import command, takes

if TYPE_CHECKING:
    from sundog.sim.trace.describe import Description
    from sundog.sim.trace.record import TraceRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceOptions:
    """Options of how a trace is read and shown."""

    as_json: bool = option(False, Switch(pair=False), "Print the same as JSON.", flag="--json")


@command
@takes(TraceOptions, ReadingOptions)
@click.option("-o", "--output", metavar="FILE", help="Write the merged trace there: .jsonl or .jsonl.gz.")
@click.argument("traces", nargs=-1, required=True, metavar="TRACE...")
def trace(asked: TraceOptions, reading: ReadingOptions, output: str | None, traces: tuple[str, ...]) -> None:
    """Describe a trace: rates, lengths, repeated prompts.

    Several traces are merged in order of arrival, and each becomes a tenant with the name of its file.
    """
    from sundog.sim.trace.describe import describe

    sources = [reading.trace(each) for each in traces]
    for text in (text for source in sources for text in source.remarks):
        remark(text)
    rows: Sequence[TraceRequest] = list(islice(sources[0], reading.limit))
    if len(sources) > 1:
        from sundog.sim.workload.mixture import merged

        names = [Path(each).name.partition(".")[0] for each in traces]
        if len(set(names)) < len(names):
            raise ConfigError(
                f"the traces are called {', '.join(names)}: files of different names are tenants"
            )
        parts = [list(islice(source, reading.limit)) for source in sources]
        rows = merged(list(zip(names, parts, strict=True)))
    if output is not None:
        _write(output, rows, traces)
    found, format = describe(rows), " and ".join(dict.fromkeys(source.format for source in sources))
    if asked.as_json:
        click.echo(json.dumps({"format": format, **asdict(found)}, indent=1))
    else:
        _print(found, format)


def _write(output: str, rows: "Sequence[TraceRequest]", traces: tuple[str, ...]) -> None:
    from sundog.sim.trace.jsonl_rows import write_trace

    size = max((row.hash_block_tokens for row in rows if row.hash_ids is not None), default=0)
    named = " ".join(Path(each).name for each in traces)
    with writing(output):
        write_trace(output, rows, provenance=f"sundog trace {named}", seed=0, hash_block_tokens=size)


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
