"""Comparison of runs for people, and as JSON."""

import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, is_dataclass
from operator import attrgetter
from typing import Any, NamedTuple

from rich.console import Console
from rich.markup import escape

from sundog.sim.figures.compare import Compared, Comparison, Moved, Untested
from sundog.sim.figures.metrics import Summary
from sundog.sim.show.console import print_table, table_of

ADVICE: dict[Untested, str] = {
    "too few requests": "a p50 needs 40 requests and a p99 some 600, as requests beyond it must lie in 5 of"
    " 20 parts of the run. Replay a longer trace, or test over seeds with `sundog sweep --replications`.",
    "different requests": "percentiles are tested on the same requests alone. Replay one trace with the same"
    " seed in both runs, or use `sundog sweep`.",
    "whole programs": "their times are compared without a test. `sundog sweep --metric program_s.mean"
    " --replications 5` tests them.",
}
"""What to do where a difference cannot be tested, by the reason."""


def verdict(figure: Compared) -> str:
    """Return the difference in words: lower by an amount, or no difference shown."""
    change = figure.change
    if math.isnan(change.half_width):
        return f"cannot be tested: {figure.untested}"
    if not change.excludes_zero:
        return "no difference shown"
    word = "lower" if change.mean < 0 else "higher"
    if not figure.first:
        return f"{word} by {_ms(abs(change.mean))} ± {_ms(change.half_width)} ms"
    share, doubt = abs(change.mean) / figure.first, change.half_width / figure.first
    return f"{word} by {share:.1%} ± {doubt:.1%}"


def print_comparison(found: Comparison, names: tuple[str, str], console: Console) -> None:
    """Print settings, figures with verdicts, and the requests that gained and lost most."""
    for setting, (a, b) in found.settings.items():
        console.print(f"{setting.replace('_', '-')}: {_setting(a)} → {_setting(b)}", markup=False)
    if not found.settings:
        console.print("The settings are the same.")
    console.print(_requests(found, names), markup=False)
    if found.num_finished is not None and min(found.num_finished) < found.num_requests:
        *each, both = found.num_finished
        counts = (
            f"{num:,} of {found.num_requests:,} finished in {name}"
            for num, name in zip(each, names, strict=True)
        )
        console.print(f"{', '.join(counts)}, {both:,} in both: these alone are compared", markup=False)
    if any(found.num_failed):
        first, second = found.num_failed
        console.print(f"{first:,} failed in {names[0]}, {second:,} in {names[1]}", markup=False)
    if not found.figures:
        console.print("No request finished in both: there is nothing to compare.")
        return
    table = table_of("milliseconds", *names)
    table.add_column("with 95 % confidence")
    for figure in found.figures:
        table.add_row(escape(figure.name), _ms(figure.first), _ms(figure.second), verdict(figure))
    print_table(console, table)
    for reason in dict.fromkeys(figure.untested for figure in found.figures):
        if reason is not None:
            console.print(f"{reason}: {ADVICE[reason]}", markup=False)
    for title, moved in (("gained most", found.gained), ("lost most", found.lost)):
        if moved:
            console.print(f"{title}: " + ", ".join(map(_words, moved)), markup=False)


def _requests(found: Comparison, names: tuple[str, str]) -> str:
    if found.is_paired or found.of_each is None:
        many = "s" * (found.num_requests != 1)
        return f"{found.num_requests:,} request{many}, the same in both: compared one by one"
    counts = (
        f"{finished:,} of {num:,} requests finished in {name}"
        for name, (num, finished) in zip(names, found.of_each, strict=True)
    )
    return f"{', '.join(counts)}: the runs have different requests, which are not paired"


def _words(moved: Moved) -> str:
    digits = 2 if abs(moved.second_s - moved.first_s) >= 0.1 else 3
    return f"{moved.request_id} {moved.first_s:.{digits}f} → {moved.second_s:.{digits}f} s"


def _setting(value: object) -> str:
    return "not given" if value is None else str(value)


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:,.2f}"


def to_json(found: Comparison) -> str:
    """Return everything on the page as JSON; NaN is null."""

    def plain(value: Any) -> Any:
        if is_dataclass(value) and not isinstance(value, type):
            return plain(asdict(value))
        if isinstance(value, tuple) and hasattr(value, "_asdict"):
            return {name: plain(item) for name, item in value._asdict().items()}
        if isinstance(value, dict):
            return {name: plain(item) for name, item in value.items()}
        if isinstance(value, (list, tuple)):
            return [plain(item) for item in value]
        return None if isinstance(value, float) and math.isnan(value) else value

    data = plain(found)
    for figure, row in zip(found.figures, data["figures"], strict=True):
        row["verdict"] = verdict(figure)
    return json.dumps(data, indent=1, allow_nan=False)


LATENCIES = (("TTFT", "ttft_s"), ("TPOT", "tpot_s"), ("ITL", "itl_s"), ("E2E", "e2e_s"))
KINDS = ("mean", "p50", "p99")


class ComparedFigure(NamedTuple):
    """Figure of both runs, in the unit of its name; `span` is the range of other predictions, if any."""

    name: str
    measured: float
    predicted: float
    span: tuple[float, float] | None = None

    @property
    def error(self) -> float | None:
        """Predicted over measured, minus 1."""
        return self.predicted / self.measured - 1 if self.measured else None

    @property
    def is_within(self) -> bool:
        """Whether the measurement lies in the predicted range."""
        return self.span is not None and self.span[0] <= self.measured <= self.span[1]


def figures(
    measured: Summary, predicted: Summary, others: Sequence[Summary] = ()
) -> Iterator[ComparedFigure]:
    """Yield the figures that both runs have; `others` are predictions with longer and shorter steps."""

    def figure(name: str, scale: float, value: Callable[[Summary], float]) -> ComparedFigure:
        ours, theirs, *more = (value(each) * scale for each in (measured, predicted, *others))
        return ComparedFigure(name, ours, theirs, (min(theirs, *more), max(theirs, *more)) if more else None)

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
    """Print a row for each figure; with `others` also the predicted range."""
    print_figures(list(figures(measured, predicted, others)), console, title)


def print_figures(found: Sequence[ComparedFigure], console: Console, title: str) -> None:
    """Print a row for each figure, with its range if there is one."""
    console.print(title, style="bold", markup=False)
    spans = any(figure.span is not None for figure in found)
    table = table_of("", "measured", "predicted", *(["from", "to"] if spans else []), "error")
    for figure in found:
        error = "–" if figure.error is None else f"{figure.error:+.1%}"
        values = (figure.measured, figure.predicted, *(figure.span or ()))
        table.add_row(figure.name, *(f"{value:,.2f}" for value in values), error)
    print_table(console, table)
