"""What was measured, and beside it what a simulation says of the same requests."""

from collections.abc import Callable, Iterator, Sequence
from operator import attrgetter
from typing import NamedTuple

from rich import box
from rich.console import Console
from rich.table import Table

from sim.figures.metrics import Summary
from sim.show.console import print_table

LATENCIES = (("TTFT", "ttft_s"), ("TPOT", "tpot_s"), ("ITL", "itl_s"), ("E2E", "e2e_s"))
KINDS = ("mean", "p50", "p99")


class Figure(NamedTuple):
    """One figure of both, in the unit that its name says; `span` is what others predict, if there are any."""

    name: str
    measured: float
    predicted: float
    span: tuple[float, float] | None = None

    @property
    def error(self) -> float | None:
        """Predicted over measured, less 1."""
        return self.predicted / self.measured - 1 if self.measured else None


def figures(measured: Summary, predicted: Summary, others: Sequence[Summary] = ()) -> Iterator[Figure]:
    """The figures that both have. `others` are predictions with longer and shorter steps."""

    def figure(name: str, scale: float, value: Callable[[Summary], float]) -> Figure:
        ours, theirs, *more = (value(each) * scale for each in (measured, predicted, *others))
        return Figure(name, ours, theirs, (min(theirs, *more), max(theirs, *more)) if more else None)

    for name, field in LATENCIES:
        if getattr(measured, field) is not None and getattr(predicted, field) is not None:
            for kind in KINDS:
                yield figure(f"{name} {kind}, ms", 1e3, attrgetter(f"{field}.{kind}"))
    yield figure("requests/s", 1.0, attrgetter("requests_per_s"))
    yield figure("output tokens/s", 1.0, attrgetter("output_tokens_per_s"))
    if measured.prefix_hit_rate is not None and predicted.prefix_hit_rate is not None:
        yield figure("prefix hits, %", 100.0, attrgetter("prefix_hit_rate"))


def print_beside(
    measured: Summary, predicted: Summary, console: Console, title: str, others: Sequence[Summary] = ()
) -> None:
    """A row for each figure; with `others` the span of what is predicted, too."""
    console.print(title, style="bold", markup=False)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("")
    for name in ("measured", "predicted", *(["from", "to"] if others else []), "error"):
        table.add_column(name, justify="right")
    for figure in figures(measured, predicted, others):
        error = "–" if figure.error is None else f"{figure.error:+.1%}"
        values = (figure.measured, figure.predicted, *(figure.span or ()))
        table.add_row(figure.name, *(f"{value:,.2f}" for value in values), error)
    print_table(console, table)
