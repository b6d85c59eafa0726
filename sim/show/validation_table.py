"""Predicted beside real: a row per stage, then the errors of each group of stages."""

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table

from sim.figures.validate.measured import Server, Stage
from sim.figures.validate.predict import Prediction

SHOWN = ("ttft mean", "tpot mean", "e2e mean", "ttft p99", "e2e p99")


class Row(NamedTuple):
    """One stage of one server."""

    server: Server
    stage: Stage
    prediction: Prediction

    def error(self, name: str) -> float | None:
        """Predicted over real, less 1; None where it was not measured."""
        real, predicted = self.stage.figures.get(name), self.prediction.figures.get(name)
        return None if real is None or predicted is None else predicted / real - 1

    @property
    def group(self) -> str:
        """What the errors are summed up by."""
        if self.prediction.is_beyond_knee:
            return "at and beyond the knee"
        return "below the knee, fitted" if self.stage.fitted else "below the knee, held out"


GROUPS = ("below the knee, held out", "below the knee, fitted", "at and beyond the knee")


def print_table(rows: Sequence[Row], console: Console) -> None:
    """Milliseconds, real / predicted and the error."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("server, load")
    table.add_column("full", justify="right")
    for name in SHOWN:
        table.add_column(
            name.replace("ttft", "TTFT").replace("tpot", "TPOT").replace("e2e", "E2E"), justify="right"
        )
    for row in rows:
        table.add_row(
            f"{_short(row.server)}, {row.stage.rate_per_s:.3g}/s"
            + (f"\n  fitted: {row.stage.fitted}" if row.stage.fitted else ""),
            f"{row.prediction.saturation:.0%}",
            *(_cell(row, name) for name in SHOWN),
        )
    console.print(table)
    console.print(_summary(rows))


def _short(server: Server) -> str:
    return server.name.split("-", 2)[-1] if server.name[:8].isdigit() else server.name


def _cell(row: Row, name: str) -> str:
    error, real = row.error(name), row.stage.figures.get(name)
    if error is None or real is None:
        return "–"
    predicted = _ms(row.prediction.figures[name])
    low, high = row.prediction.low, row.prediction.high
    if low is not None and high is not None:
        predicted = f"{_ms(low[name])}–{_ms(high[name])}"
    return f"{_ms(real)}\n{predicted}\n{error:+.1%}"


def _ms(value_s: float) -> str:
    ms = value_s * 1e3
    return f"{ms:,.0f}" if ms >= 100 else f"{ms:.1f}" if ms >= 30 else f"{ms:.2f}"


def _summary(rows: Sequence[Row]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("mean |error| (median; bias)")
    for name in SHOWN:
        table.add_column(name, justify="right")
    for group, errors in summary(rows).items():
        if errors["stages"]:
            table.add_row(
                f"{group}, {errors['stages']} loads", *(_errors(errors["errors"].get(name)) for name in SHOWN)
            )
    return table


def _errors(error: dict[str, float] | None) -> str:
    if error is None:
        return "–"
    return f"{error['mape']:.1%}\n({error['median']:.1%}; {error['bias']:+.1%})"


def summary(rows: Sequence[Row]) -> dict[str, Any]:
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


def to_json(rows: Sequence[Row]) -> str:
    """Everything in the tables and more; seconds."""
    stages = [
        {
            "server": row.server.name,
            "stage": row.stage.name,
            "rate_per_s": row.stage.rate_per_s,
            "fitted": row.stage.fitted,
            "saturation": row.prediction.saturation,
            "beyond_knee": row.prediction.is_beyond_knee,
            "real_s": row.stage.figures,
            "predicted_s": row.prediction.figures,
            "predicted_low_s": row.prediction.low,
            "predicted_high_s": row.prediction.high,
        }
        for row in rows
    ]
    return json.dumps({"stages": stages, "groups": summary(rows)}, indent=1)
