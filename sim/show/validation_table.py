"""Predicted beside real: a row per stage, then the errors of each group of stages."""

import json
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table

from sim.figures.validate.measured import THROUGHPUT, MeasuredServer, Stage
from sim.figures.validate.predict import Prediction
from sim.show.console import print_table

SHOWN = ("ttft mean", "tpot mean", "e2e mean", "ttft p99", THROUGHPUT)
ACHIEVED = 0.9
"""A server that serves less of what arrives than this was beyond its knee."""
HELD_OUT = "below the knee, held out"
FITTED = "below the knee, fitted"
BEYOND = "near and beyond the knee"
GAVE_UP = "clients gave up (not counted)"
GROUPS = (HELD_OUT, FITTED, BEYOND, GAVE_UP)


class ShownRefusal(NamedTuple):
    """A server of which nothing is predicted, and why."""

    server: str
    reason: str


class ValidationRow(NamedTuple):
    """A stage of a server with its prediction."""

    server: MeasuredServer
    stage: Stage
    prediction: Prediction

    def error(self, name: str) -> float | None:
        """Predicted over real, less 1; None where it was not measured."""
        real, predicted = self.stage.figures.get(name), self.prediction.figures.get(name)
        return None if real is None or predicted is None else predicted / real - 1

    @property
    def group(self) -> str:
        """The group in which this row's errors are summed up."""
        if self.stage.num_gave_up:
            return GAVE_UP
        if self.prediction.is_beyond_knee:
            return BEYOND
        return FITTED if self.stage.fitted else HELD_OUT

    @property
    def is_regime_right(self) -> bool | None:
        """True if the queue is predicted to grow where it did; None where throughput was not measured."""
        real = self.stage.figures.get(THROUGHPUT)
        if real is None:
            return None
        return (real < ACHIEVED * self.stage.rate_per_s) == (self.prediction.regime == "beyond the knee")


def print_validation(
    rows: Sequence[ValidationRow], refusals: Sequence[ShownRefusal], console: Console
) -> None:
    """Milliseconds (and requests a second), real, predicted, error; near the knee the range instead."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("server, load")
    table.add_column("full", justify="right")
    for name in SHOWN:
        table.add_column(title(name), justify="right")
    for row in rows:
        table.add_row(
            f"{short(row.server)}, {row.stage.rate_per_s:.3g}/s"
            + (f"\n  fitted: {row.stage.fitted}" if row.stage.fitted else "")
            + (f"\n  {row.stage.num_gave_up:,} gave up" if row.stage.num_gave_up else ""),
            f"{row.prediction.saturation:.0%}",
            *("\n".join(cell(row, name)) for name in SHOWN),
        )
    print_table(console, table)
    for refusal in refusals:
        console.print(f"{refusal.server}: refused: {refusal.reason}", markup=False)
    print_table(console, _summary(rows))
    for line in counts(rows):
        console.print(line)


def title(name: str) -> str:
    """A figure's name as a head."""
    if name == THROUGHPUT:
        return "requests/s"
    return name.replace("ttft", "TTFT").replace("tpot", "TPOT").replace("e2e", "E2E")


def short(server: MeasuredServer) -> str:
    """A server's name without the instant at which it was measured."""
    return server.name.split("-", 2)[-1] if server.name[:8].isdigit() else server.name


def cell(row: ValidationRow, name: str) -> tuple[str, ...]:
    """Write the measured figure, the predicted range, and the error."""
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
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("mean |error| (median; bias)")
    for name in SHOWN:
        table.add_column(title(name), justify="right")
    for group, errors in summary(rows).items():
        if errors["stages"]:
            table.add_row(
                f"{group}, {errors['stages']} loads",
                *("\n".join(error_cell(errors["errors"].get(name))) for name in SHOWN),
            )
    return table


def error_cell(error: dict[str, float] | None) -> tuple[str, ...]:
    """Mean, then median and bias."""
    if error is None:
        return ("–",)
    return f"{error['mape']:.1%}", f"({error['median']:.1%}; {error['bias']:+.1%})"


def counts(rows: Sequence[ValidationRow]) -> Iterator[str]:
    """Count the held-out figures within their ranges, and the regimes that are right."""
    held = [
        row.prediction.holds(name, real)
        for row in rows
        if not row.stage.fitted and not row.stage.num_gave_up
        for name, real in row.stage.figures.items()
        if name in row.prediction.figures
    ]
    if held:
        yield f"{sum(held)} of {len(held)} held-out figures within their ranges ({sum(held) / len(held):.0%})"
    right = [row.is_regime_right for row in rows if row.is_regime_right is not None]
    if right:
        yield f"{sum(right)} of {len(right)} regimes right"


def summary(rows: Sequence[ValidationRow]) -> dict[str, Any]:
    """For each group the mean and median absolute error and the bias of every figure."""
    found: dict[str, Any] = {}
    for group in GROUPS:
        chosen = [row for row in rows if row.group == group]
        names = dict.fromkeys(name for row in chosen for name in row.stage.figures)
        by_name = {}
        for name in names:
            errors = np.array([e for row in chosen if (e := row.error(name)) is not None])
            if len(errors):
                by_name[name] = {
                    "mape": float(np.abs(errors).mean()),
                    "median": float(np.median(np.abs(errors))),
                    "bias": float(errors.mean()),
                }
        found[group] = {"stages": len(chosen), "errors": by_name}
    return found


def to_json(rows: Sequence[ValidationRow], refusals: Sequence[ShownRefusal]) -> str:
    """Everything in the tables and more; seconds."""
    stages = [
        {
            "server": row.server.name,
            "stage": row.stage.name,
            "rate_per_s": row.stage.rate_per_s,
            "fitted": row.stage.fitted,
            "num_gave_up": row.stage.num_gave_up,
            "saturation": row.prediction.saturation,
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
        "counts": list(counts(rows)),
    }
    return json.dumps(found, indent=1)


HEAD = """# How exact predictions are

`sundog validate DIR --page docs/accuracy.md` writes this page from records of real servers in DIR; without
DIR, from the one that comes with Sundog.

A cell is what was measured, the range that was predicted, and the error of its middle. *Held out* are
loads that no constant was fitted to, though their errors were seen while mechanisms were weighed; where a
constant was fitted, or the form of a part chosen, the row names it. Near and beyond the knee waiting
hangs on the last percent of a step's time: there only the range counts, and throughput.
"""
KNOWN = """## What is predicted, and what is refused

- Step times come from measured kernels of one layer where there are any: A100 80 GB, H100, H200, L40S, RTX
  PRO 6000 (tables of aiconfigurator-core, Apache-2.0), and RTX 4090 (fits to a profile of
  LLMServingSim, MIT); else from a roofline, whose steps are taken to be within 10 %.
- Fitted to servers are 0.43 ms between two steps, 1 ms more where a batch is too large for a captured
  graph, 7 ms of a front end (all: Qwen3-14B on an H100); 2 microseconds of skew between ranks
  (Llama-2-70b on four H100); 0.5 and 0.83 ms to launch a layer without a graph, on one rank and on
  several (p99 of Llama-2 on H100); half a tile for each key head of a decode beside a chunk, and that
  bandwidth bounds the attention of decodes from above (Llama-2-7b; all its loads were looked at).
  Fitted to kernels are tiles of decodes beside chunks (profiles of two RTX cards) and what an
  all-reduce takes through the host's memory (two tables of a pair of RTX PRO 6000).
- The range is the run with steps shorter and longer by what is not known of them (3 % of a dense model
  with tables; more for experts, ranks without peer access, kernels that do not split contexts, sizes
  outside the measured ones), two standard deviations of each figure's estimate, what two identical
  runs differ by, 30 % of a front end, and for p99 what rare things add (35 % of TTFT, 20 % of E2E).
- Near the knee the draw of arrivals moves waiting as much as steps do. Llama-2-70b at 20/s, whose mean
  TTFT is the largest miss (121 ms), was played with four other draws of its arrivals: 70 to 83 ms; with
  steps 2.5 % longer, as its TPOT says they are, three of them took 83 to 102, the medians 64 to 65
  (68 measured). Why a tenth of its requests waited longer still, a summary does not tell.
- Data, pipeline and expert parallelism, drafts, formats of weights and caches of measured servers are
  predicted, and none of these records has one. What is not modelled (LoRA, offloading, eager execution) is
  a line with the reason, and so is a model or GPU that is not known. Clients that give up are not
  simulated: such loads are shown and not counted.
"""


def accuracy_page(rows: Sequence[ValidationRow], refusals: Sequence[ShownRefusal]) -> str:
    """Write the accuracy page in Markdown."""
    heads = ["server", "load", "full", "fitted", *map(title, SHOWN)]
    lines = [HEAD, "## Errors", "", *_errors(rows), ""]
    lines += [f"- {line}" for line in counts(rows)]
    lines += ["", "## Servers", "", "Milliseconds, and requests a second.", "", *_head(heads)]
    for row in rows:
        fitted = row.stage.fitted or "–"
        if row.stage.num_gave_up:
            fitted = f"{row.stage.num_gave_up:,} clients gave up"
        first = [
            short(row.server),
            f"{row.stage.rate_per_s:.3g}/s",
            f"{row.prediction.saturation:.0%}",
            fitted,
        ]
        lines.append(_line([*first, *("<br>".join(cell(row, name)) for name in SHOWN)]))
    if refusals:
        lines += ["", "Refused:", "", *(f"- {refusal.server}: {refusal.reason}" for refusal in refusals)]
    return "\n".join([*lines, "", KNOWN])


def _errors(rows: Sequence[ValidationRow]) -> list[str]:
    lines = _head(["mean absolute error (median; bias)", "loads", *map(title, SHOWN)])
    for group, found in summary(rows).items():
        if found["stages"]:
            cells = (" ".join(error_cell(found["errors"].get(name))) for name in SHOWN)
            lines.append(_line([group, str(found["stages"]), *cells]))
    return lines


def _head(names: Sequence[str]) -> list[str]:
    return [_line(names), _line(["---"] * len(names))]


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
