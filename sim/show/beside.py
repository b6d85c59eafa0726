"""What was measured, and beside it what a simulation says of the same requests."""

from collections.abc import Iterator
from typing import NamedTuple

from rich import box
from rich.console import Console
from rich.table import Table

from sim.figures.metrics import Summary
from sim.show.console import print_table

LATENCIES = (("TTFT", "ttft_s"), ("TPOT", "tpot_s"), ("ITL", "itl_s"), ("E2E", "e2e_s"))
KINDS = ("mean", "p50", "p99")


class Figure(NamedTuple):
    """One figure of both, in the unit that its name says."""

    name: str
    measured: float
    predicted: float

    @property
    def error(self) -> float | None:
        """Predicted over measured, less 1."""
        return self.predicted / self.measured - 1 if self.measured else None


def figures(measured: Summary, predicted: Summary) -> Iterator[Figure]:
    """The figures that both have."""
    for name, field in LATENCIES:
        ours, theirs = getattr(measured, field), getattr(predicted, field)
        if ours is not None and theirs is not None:
            for kind in KINDS:
                yield Figure(f"{name} {kind}, ms", getattr(ours, kind) * 1e3, getattr(theirs, kind) * 1e3)
    yield Figure("requests/s", measured.requests_per_s, predicted.requests_per_s)
    yield Figure("output tokens/s", measured.output_tokens_per_s, predicted.output_tokens_per_s)
    if measured.prefix_hit_rate is not None and predicted.prefix_hit_rate is not None:
        yield Figure("prefix hits, %", measured.prefix_hit_rate * 100, predicted.prefix_hit_rate * 100)


def print_beside(measured: Summary, predicted: Summary, console: Console, title: str) -> None:
    """A row for each figure."""
    console.print(title, style="bold", markup=False)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("")
    for name in ("measured", "predicted", "error"):
        table.add_column(name, justify="right")
    for figure in figures(measured, predicted):
        error = "–" if figure.error is None else f"{figure.error:+.1%}"
        table.add_row(figure.name, f"{figure.measured:,.2f}", f"{figure.predicted:,.2f}", error)
    print_table(console, table)
