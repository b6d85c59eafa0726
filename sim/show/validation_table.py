"""Predicted and real figures: a row per stage, then the errors of each group of stages."""

import json
from collections.abc import Iterable, Iterator, Sequence
from importlib.resources import files
from typing import NamedTuple

from rich.console import Console
from rich.table import Table

from sundog.sim.cost import doubt
from sundog.sim.show.console import print_table, table_of
from sundog.sim.validation.errors import (
    COMPARED,
    MEANS,
    SHOWN,
    TARGET,
    ValidationRow,
    by_family,
    counts,
    coverages,
    summary,
)
from sundog.sim.validation.measured import THROUGHPUT, MeasuredServer
from sundog.sim.validation.predict import RARE


class ShownRefusal(NamedTuple):
    """Server without predictions, and the reason."""

    server: str
    reason: str


def print_validation(
    rows: Sequence[ValidationRow], refusals: Sequence[ShownRefusal], console: Console
) -> None:
    """Print milliseconds (and requests a second), real, predicted, error; near the knee the range instead."""
    table = table_of("server, load", "of the knee", *map(title, SHOWN))
    for row in rows:
        table.add_row(
            f"{short(row.server)}, {row.stage.rate_per_s:.3g}/s"
            + (f"\n  fitted: {row.stage.fitted}" if row.stage.fitted else "")
            + (f"\n  {row.stage.num_gave_up:,} gave up" if row.stage.num_gave_up else ""),
            f"{row.prediction.load:.0%}",
            *("\n".join(cell(row, name)) for name in SHOWN),
        )
    print_table(console, table)
    for refusal in refusals:
        console.print(f"{refusal.server}: refused: {refusal.reason}", markup=False)
    print_table(console, _summary(rows))
    for heads, lines in (FAMILIES, families(rows)), (RANGES, ranges(rows)):
        further = table_of(*heads, num_names=len(heads))
        for cells in lines:
            further.add_row(*cells)
        print_table(console, further)
    for line in counts(rows):
        console.print(line)


def title(name: str) -> str:
    """Return a figure's name as a heading."""
    if name == THROUGHPUT:
        return "requests/s"
    return name.replace("ttft", "TTFT").replace("tpot", "TPOT").replace("e2e", "E2E")


def short(server: MeasuredServer) -> str:
    """Return a server's name without the time of its measurement."""
    return server.name.split("-", 2)[-1] if server.name[:8].isdigit() else server.name


def cell(row: ValidationRow, name: str) -> tuple[str, ...]:
    """Return the measured figure, the predicted range, and the error."""
    error, real = row.error(name), row.stage.figures.get(name)
    if error is None or real is None:
        return ("–",)
    write = _per_s if name == THROUGHPUT else _ms
    prediction = row.prediction
    bounds = f"{write(prediction.low[name])}–{write(prediction.high[name])}"
    if prediction.is_beyond_knee and name not in (THROUGHPUT, "tpot mean"):
        held = prediction.holds(name, real)
        return write(real), bounds, "within" if held else f"{error:+.0%}"
    return write(real), bounds, f"{error:+.1%}"


def _per_s(value: float) -> str:
    return f"{value:.3g}"


def _ms(value_s: float) -> str:
    ms = value_s * 1e3
    return f"{ms:,.0f}" if ms >= 100 else f"{ms:.1f}" if ms >= 30 else f"{ms:.2f}"


def _summary(rows: Sequence[ValidationRow]) -> Table:
    table = table_of("mean |error| (median; bias)", *map(title, SHOWN))
    for group, errors in summary(rows).items():
        if errors["stages"]:
            table.add_row(
                f"{group}, {errors['stages']} loads",
                *("\n".join(error_cell(errors["errors"].get(name))) for name in SHOWN),
            )
    return table


def error_cell(error: dict[str, float] | None) -> tuple[str, ...]:
    """Return the mean, then median and bias."""
    if error is None:
        return ("–",)
    return f"{error['mape']:.1%}", f"({error['median']:.1%}; {error['bias']:+.1%})"


def to_json(rows: Sequence[ValidationRow], refusals: Sequence[ShownRefusal]) -> str:
    """Return everything in the tables and more, as JSON; seconds."""
    stages = [
        {
            "server": row.server.name,
            "stage": row.stage.name,
            "rate_per_s": row.stage.rate_per_s,
            "fitted": row.stage.fitted,
            "num_gave_up": row.stage.num_gave_up,
            "family": row.family,
            "saturation": row.prediction.saturation,
            "load": row.prediction.load,
            "amplification": row.prediction.amplification,
            "regime": row.prediction.regime,
            "regime_right": row.is_regime_right,
            "beyond_knee": row.prediction.is_beyond_knee,
            "step_doubt": row.prediction.doubt,
            "real_s": row.stage.figures,
            "predicted_s": row.prediction.figures,
            "predicted_low_s": row.prediction.low,
            "predicted_high_s": row.prediction.high,
        }
        for row in rows
    ]
    found = {
        "stages": stages,
        "refused": [refusal._asdict() for refusal in refusals],
        "groups": summary(rows),
        "families": {name: each._asdict() | {"rise": each.rise} for name, each in by_family(rows).items()},
        "coverage": [{"kind": kind, "name": name, **each._asdict()} for kind, name, each in coverages(rows)],
        "counts": list(counts(rows)),
    }
    return json.dumps(found, indent=1)


FAMILIES = ("family", "loads", *map(title, MEANS), "E2E, lightest load", "heaviest", "rise")
RANGES = ("left out", "figures", "within", "within those of the others", "their width")


def families(rows: Sequence[ValidationRow]) -> Iterator[tuple[str, ...]]:
    """Yield the cells of `FAMILIES`."""
    for name, found in by_family(rows).items():
        errors = (found.errors.get(figure) for figure in MEANS)
        over = (found.light, found.heavy, found.rise)
        yield (
            name,
            str(found.num_loads),
            *("–" if error is None else f"{error:.1%}" for error in errors),
            *("–" if error is None else f"{error:+.1%}" for error in over),
        )


def ranges(rows: Sequence[ValidationRow]) -> Iterator[tuple[str, ...]]:
    """Yield the cells of `RANGES`."""
    for kind, name, found in coverages(rows):
        shown = name.split("-", 2)[-1] if name[:8].isdigit() else name.rpartition("/")[2]
        others = ("–", "–")
        if found.left_out is not None and found.scale is not None:
            others = (f"{found.left_out:.0%}", f"{found.scale:.2f}")
        yield f"{kind} {shown}", str(found.num_figures), f"{found.as_is:.0%}", *others


def accuracy_page(rows: Sequence[ValidationRow], refusals: Sequence[ShownRefusal]) -> str:
    """Return the accuracy page in Markdown."""
    from jinja2 import Environment

    groups = (
        (group, str(found["stages"]), *(" ".join(error_cell(found["errors"].get(name))) for name in SHOWN))
        for group, found in summary(rows).items()
        if found["stages"]
    )
    shown = (
        (
            short(row.server),
            f"{row.stage.rate_per_s:.3g}/s",
            f"{row.prediction.load:.0%}",
            f"{row.stage.num_gave_up:,} clients gave up"
            if row.stage.num_gave_up
            else row.stage.fitted or "–",
            *("<br>".join(cell(row, name)) for name in SHOWN),
        )
        for row in rows
    )
    titles = [*map(title, SHOWN)]
    text = files("sundog.sim.show").joinpath("accuracy.md.jinja").read_text(encoding="utf-8")
    return (
        Environment(trim_blocks=True, keep_trailing_newline=True)
        .from_string(text)
        .render(
            groups=_table(["mean absolute error (median; bias)", "loads", *titles], groups),
            counts=counts(rows),
            families=_table(FAMILIES, families(rows)),
            ranges=_table(RANGES, ranges(rows)),
            servers=_table(["server", "load", "of the knee", "fitted", *titles], shown),
            refusals=refusals,
            percent="{:.0%}".format,
            doubt=doubt,
            rare=RARE,
            compared=COMPARED,
            target=TARGET,
        )
    )


def _table(heads: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (heads, ["---"] * len(heads), *lines))
