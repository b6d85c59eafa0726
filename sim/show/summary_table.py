"""Run for people: two tables on the terminal."""

from collections.abc import Sequence
from typing import IO, TYPE_CHECKING

from rich.markup import escape
from rich.table import Table

from sundog.sim.figures.distribution import Distribution
from sundog.sim.figures.engine import ReplicaFigures
from sundog.sim.figures.load import KNEE, of_capacity, regime_of
from sundog.sim.figures.metrics import ClientFigures, Summary
from sundog.sim.figures.tenants import TenantFigures
from sundog.sim.show import words
from sundog.sim.show.console import console_for, print_table, table_of
from sundog.sim.show.fleet_table import print_fleet

if TYPE_CHECKING:
    from sundog.sim.validation.predict import Ranges

MOST_REPLICAS = 16
"""Most rows of a table of replicas."""
MOST_REASONS = 5
"""Most reasons for refusals to show."""
WAITS = ("TTFT", "E2E", "queueing", "E2E per token")
"""Figures that include waiting."""
STAGES = ("queueing", "prefill")
"""Stages that a client cannot measure."""


def print_summary(
    summary: Summary, title: str = "", file: IO[str] | None = None, doubt: float | None = None
) -> None:
    """Print the tables on `file` or standard output.

    `doubt` is the share by which steps may take longer or shorter.
    """
    console = console_for(file)
    if title:
        console.print(title, style="bold", markup=False)
    print_table(console, _latencies(summary))
    if num_lost := summary.num_requests - summary.num_finished:
        itl = ", but for ITL" if summary.itl_s is not None else ""
        finished = f"Latencies are those of the {summary.num_finished:,} finished requests"
        console.print(f"{finished}; {num_lost:,} that got no answer are left out{itl}", markup=False)
    if summary.tenants:
        print_table(console, _tenants(summary.tenants))
    if summary.fleet is not None:
        print_fleet(console, summary.fleet)
    elif summary.replicas:
        print_table(console, _replicas(summary.replicas))
    print_table(console, _totals(summary, doubt))


RANGED = ("ttft mean", "ttft p99", "tpot mean", "tpot p99", "e2e mean", "e2e p99")


def print_ranges(ranges: "Ranges", file: IO[str] | None = None) -> None:
    """Print the likely ranges of figures, and the effect of one percent of a step on E2E."""
    console = console_for(file)
    table = table_of("milliseconds may be", "from", "to")
    for name in RANGED:
        if name in ranges.low:
            title = name.replace("ttft", "TTFT").replace("tpot", "TPOT").replace("e2e", "E2E")
            table.add_row(title, _ms(ranges.low[name]), _ms(ranges.high[name]))
    print_table(console, table)
    console.print(f"if steps were 1 % slower, E2E would be {ranges.amplification:.1f} % longer", markup=False)


def _replicas(replicas: Sequence[ReplicaFigures]) -> Table:
    heads = ("replica", "requests", "prompt tokens", "found cached", "hit rate", "output tokens")
    table = table_of(*heads, num_names=0)
    shown = list(enumerate(replicas))
    if len(shown) > MOST_REPLICAS:
        shown.sort(key=lambda pair: pair[1].prefix_hit_tokens - pair[1].prompt_tokens - pair[1].output_tokens)
        shown = shown[: MOST_REPLICAS // 2] + shown[-MOST_REPLICAS // 2 :]
    for number, of in shown:
        counts = (of.num_requests, of.prompt_tokens, of.prefix_hit_tokens)
        table.add_row(
            f"{number}",
            *(f"{count:,}" for count in counts),
            f"{of.prefix_hit_rate:.1%}",
            f"{of.output_tokens:,}",
        )
    return table


def _latencies(summary: Summary) -> Table:
    table = table_of("milliseconds", "mean", "p50", "p90", "p99", "count")
    rows: tuple[tuple[str, Distribution | None], ...] = (
        ("TTFT", summary.ttft_s),
        ("TPOT", summary.tpot_s),
        ("ITL", summary.itl_s),
        ("E2E", summary.e2e_s),
        ("queueing", summary.queueing_s),
        ("prefill", summary.prefill_s),
        ("decode", summary.decode_s),
        ("E2E per token", summary.normalized_latency_s),
        *((("program", summary.program_s),) if summary.program_s is not None else ()),
    )
    for name, d in rows:
        if d is None and name in STAGES and summary.client is not None:
            continue
        if d is None:
            table.add_row(name, *["-"] * 4, "0")
            continue
        waits = name in WAITS and summary.saturation is not None and summary.saturation >= KNEE
        values = ((_rough if waits else _ms)(value) for value in (d.mean, d.p50, d.p90, d.p99))
        table.add_row(name, *values, f"{d.count:,}")
    return table


def _tenants(tenants: dict[str, TenantFigures]) -> Table:
    heads = ("TTFT mean ms", "TTFT p99 ms", "E2E mean ms")
    table = table_of("tenant", "finished", *heads, "slowdown", "share", "in SLO")
    for name, of in tenants.items():
        times = (of.ttft_mean_s, of.ttft_p99_s, of.e2e_mean_s)
        ratios = ((of.slowdown, ".2f"), (of.share_while_waiting, ".2f"), (of.slo_attainment, ".1%"))
        table.add_row(
            escape(name),
            f"{of.num_finished:,} of {of.num_requests:,}",
            *("-" if value is None else _ms(value) for value in times),
            *("-" if value is None else format(value, form) for value, form in ratios),
        )
    return table


def _ms(value_s: float) -> str:
    return f"{value_s * 1e3:,.2f}"


def _rough(value_s: float) -> str:
    """Format two digits of milliseconds: near the knee further digits are noise."""
    return f"~{float(f'{value_s * 1e3:.2g}'):,g}" if value_s else "0"


def _regime(summary: Summary, doubt: float | None) -> str | None:
    saturation = summary.saturation
    if not (num_lost := summary.num_requests - summary.num_finished):
        return None if saturation is None else _regime_of_served(summary, saturation, doubt)
    lost = f"{num_lost:,} of {words.count(summary.num_requests, 'request')} got no answer"
    if saturation is None or saturation < KNEE:
        return f"not judged: {lost}, and the others cannot represent them"
    return f"{_regime_of_served(summary, saturation, doubt)}; {lost}"


def _regime_of_served(summary: Summary, saturation: float, doubt: float | None) -> str:
    regime = regime_of(saturation)
    if regime == "below the knee":
        return regime if doubt is None else f"{regime}; {words.steps_within(doubt)}"
    off = "" if doubt is None else f" ±{doubt:.0%}" if doubt <= words.MOST_PERCENT else " or much less"
    if regime == "near the knee":
        off = "" if doubt is None else f"; {words.steps_within(doubt)}, which may multiply waiting"
        return f"{regime}: {summary.requests_per_s:,.2f} requests/s are served{off}"
    return (
        f"{regime}: {summary.output_tokens_per_s:,.0f} output tokens/s{off} is what it can;"
        " waiting grows while the load lasts"
    )


def _totals(summary: Summary, doubt: float | None) -> Table:
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column()
    table.add_column()
    lost = []
    ends = (summary.num_aborted, "aborted"), (summary.num_refused, "refused"), (summary.num_failed, "failed")
    for count, what in ends:
        lost += [f"{count:,} {what}"] if count else []
    requests = f"{summary.num_finished:,} of {summary.num_requests:,} finished"
    table.add_row("requests", ", ".join([requests, *lost]))
    for reason, count in list(summary.refusals.items())[:MOST_REASONS]:
        table.add_row("", escape(f"{count:,} refused: {words.shortened(reason)}"))
    steps = "" if summary.num_steps is None else f" in {summary.num_steps:,} steps"
    table.add_row("duration", f"{summary.duration_s:,.3f} s{steps}")
    table.add_row(
        "throughput",
        f"{summary.requests_per_s:,.3f} requests/s, {summary.output_tokens_per_s:,.1f} output"
        f" tokens/s, {summary.total_tokens_per_s:,.1f} tokens/s",
    )
    if summary.lost_output_tokens:
        table.add_row(
            "", f"{summary.lost_output_tokens:,} output tokens of requests that did not finish left out"
        )
    if summary.goodput_requests_per_s is not None and summary.slo_attainment is not None:
        table.add_row(
            "goodput",
            f"{summary.goodput_requests_per_s:,.3f} requests/s,"
            f" {summary.slo_attainment:.1%} within the limits",
        )
    _objectives(table, summary)
    _engines(table, summary, doubt)
    if summary.client is not None:
        _client(table, summary.client)
    if summary.speculation is not None:
        table.add_row("drafts", words.drafts(summary.speculation))
    if summary.fairness is not None:
        table.add_row(
            "fairness", f"{summary.fairness:.3f} (Jain's index, of service while several tenants wait)"
        )
    if summary.slowdown_fairness is not None:
        label, of = ("fairness", "the tenants'") if summary.fairness is None else ("", "their")
        table.add_row(label, f"{summary.slowdown_fairness:.3f} (Jain's index, of {of} slowdowns)")
    if summary.energy_j_per_output_token is not None:
        energy = f"up to {summary.energy_j_per_output_token:,.3f} J per output token"
        if summary.cost_per_million_output_tokens is not None:
            energy += f", {summary.cost_per_million_output_tokens:,.4f} per million of them"
        table.add_row("energy, cost" if "per million" in energy else "energy", energy)
    return table


def _objectives(table: Table, summary: Summary) -> None:
    for each in summary.objectives:
        value = "no request has a value" if each.value_s is None else f"{_ms(each.value_s)} ms"
        if each.num_unanswered:
            value = "infinite" if each.value_s is None else value
            value += f"; {words.count(each.num_unanswered, 'request')} without an answer counted as infinite"
        table.add_row("held" if each.is_held else "missed", escape(f"{each.objective}: {value}"))


def _engines(table: Table, summary: Summary, doubt: float | None) -> None:
    if summary.busy_fraction is not None:
        table.add_row(
            "engines busy",
            f"{summary.busy_fraction:.1%} of the time, {summary.tokens_per_step:,.1f} tokens per step",
        )
    if summary.saturation is not None:
        table.add_row("saturation", of_capacity(summary.saturation))
    if summary.client is None and (regime := _regime(summary, doubt)) is not None:
        table.add_row("regime", regime)
    if summary.kv_use_mean is not None:
        table.add_row("KV blocks in use", f"mean {summary.kv_use_mean:.1%}, max {summary.kv_use_max:.1%}")
    if summary.prefix_hit_tokens is not None:
        table.add_row("prefix hits", f"{summary.prefix_hit_tokens:,} tokens ({summary.prefix_hit_rate:.1%})")
    if (host := summary.host) is not None and summary.prefix_hit_tokens is not None:
        on_gpu = f"{summary.prefix_hit_tokens - host.hit_tokens:,} on the GPU"
        table.add_row("", f"{on_gpu}, {host.hit_tokens:,} in the host's memory ({host.hit_rate:.1%})")
    if summary.imbalance is not None:
        table.add_row("imbalance", f"the busiest replica computed {summary.imbalance:.2f} times the mean")
    if summary.num_preemptions is not None:
        table.add_row(
            "preemptions", f"{summary.num_preemptions:,}, {summary.recomputed_tokens:,} tokens recomputed"
        )
    if host is not None and host.reloaded_tokens:
        table.add_row("", f"{host.reloaded_tokens:,} tokens loaded back from the host's memory")


def _client(table: Table, client: ClientFigures) -> None:
    if (late := client.lateness_s) is not None:
        most = f", at most {_ms(client.lateness_max_s)} ms" if client.lateness_max_s is not None else ""
        table.add_row("sent late by", f"mean {_ms(late.mean)} ms, p99 {_ms(late.p99)} ms{most}")
    if client.cpu_mean is not None and client.cpu_most is not None:
        table.add_row(
            "client processes",
            f"{client.num_processes}, {client.cpu_mean:.0%} of a core each, {client.cpu_most:.0%} at most",
        )
    if client.tokens_per_chunk is not None and client.tokens_per_chunk > 1:
        table.add_row("tokens per chunk", f"{client.tokens_per_chunk:.2f}: ITL is measured between chunks")
    for kind, count in client.errors.items():
        said = f": {client.said[kind]}" if kind in client.said else ""
        table.add_row("trouble", escape(f"{count:,} {kind}{said}"))
    if client.retry_after_s is not None:
        table.add_row("", f"refusals asked to wait {client.retry_after_s:g} s at most")
    table.add_row("not known", "queueing, steps, KV blocks, preemptions: not visible to a client")
