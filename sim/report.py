"""A run for people and for files: a table on the terminal, `requests.csv` and `summary.json`."""

import csv
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO

from rich import box
from rich.console import Console
from rich.table import Table

from actors.core.config import ConfigError
from sim.metrics import Distribution, Summary, request_times
from sim.recorder import Recorder

REQUEST_COLUMNS = (
    "request_id", "tenant", "replica", "reason", "arrival_s", "first_scheduled_s", "first_token_s",
    "finish_s", "num_prompt_tokens", "num_output_tokens", "prefix_hit_tokens", "num_preemptions",
    "recomputed_tokens", "queueing_s", "ttft_s", "tpot_s", "e2e_s",
)  # fmt: skip


def print_summary(summary: Summary, title: str = "", file: IO[str] | None = None) -> None:
    """The tables, plain and 80 columns wide when `file` (standard output) is no terminal."""
    console = Console(file=file, highlight=False)
    if not console.is_terminal:
        console = Console(file=file, highlight=False, width=80)
    if title:
        console.print(title, style="bold", markup=False)
    console.print(_latencies(summary))
    console.print(_totals(summary))


def _latencies(summary: Summary) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("milliseconds", "mean", "p50", "p90", "p99", "count"):
        table.add_column(name, justify="left" if name == "milliseconds" else "right")
    rows: tuple[tuple[str, Distribution | None], ...] = (
        ("TTFT", summary.ttft_s),
        ("TPOT", summary.tpot_s),
        ("ITL", summary.itl_s),
        ("E2E", summary.e2e_s),
        ("queueing", summary.queueing_s),
    )
    for name, d in rows:
        if d is None:
            table.add_row(name, *["-"] * 4, "0")
            continue
        values = (f"{value * 1e3:,.2f}" for value in (d.mean, d.p50, d.p90, d.p99))
        table.add_row(name, *values, f"{d.count:,}")
    return table


def _totals(summary: Summary) -> Table:
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column()
    table.add_column()
    lost = []
    for count, what in ((summary.num_aborted, "aborted"), (summary.num_refused, "refused")):
        lost += [f"{count:,} {what}"] if count else []
    requests = f"{summary.num_finished:,} of {summary.num_requests:,} finished"
    table.add_row("requests", ", ".join([requests, *lost]))
    table.add_row("duration", f"{summary.duration_s:,.3f} s in {summary.num_steps:,} steps")
    table.add_row(
        "throughput",
        f"{summary.requests_per_s:,.3f} requests/s, {summary.output_tokens_per_s:,.1f} output"
        f" tokens/s, {summary.total_tokens_per_s:,.1f} tokens/s",
    )
    table.add_row(
        "KV blocks in use", f"mean {summary.kv_use_mean:.1%}, max {summary.kv_use_max:.1%}"
    )
    table.add_row(
        "prefix hits", f"{summary.prefix_hit_tokens:,} tokens ({summary.prefix_hit_rate:.1%})"
    )
    table.add_row(
        "preemptions",
        f"{summary.num_preemptions:,}, {summary.recomputed_tokens:,} tokens recomputed",
    )
    return table


def write_requests(directory: str, recorder: Recorder, summary: Summary) -> None:
    """Write `requests.csv` (one row per request; absent values empty) and `summary.json`.

    Makes the directory; raises ConfigError when it cannot be written.
    """
    try:
        folder = Path(directory)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "summary.json").write_text(summary.to_json() + "\n", encoding="utf-8")
        with (folder / "requests.csv").open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(REQUEST_COLUMNS)
            writer.writerows(_rows(recorder))
    except OSError as error:
        raise ConfigError(f"cannot write results to {directory}: {error}") from None


def _rows(recorder: Recorder) -> Iterator[tuple[object, ...]]:
    columns, times = recorder.columns, request_times(recorder)
    derived = {name: getattr(times, name).tolist() for name in REQUEST_COLUMNS[-4:]}
    values: list[Sequence[object]] = []
    for name in REQUEST_COLUMNS:
        column = derived.get(name)
        if column is None:
            column = getattr(columns, name)
        if name.endswith("_s"):
            column = ["" if math.isnan(value) else value for value in column]
        elif name == "replica":
            column = ["" if value < 0 else value for value in column]
        values.append(column)
    return zip(*values, strict=True)
