"""An experiment as a table: every setting's mean and how sure, and its difference to the first."""

import json
import math
from collections.abc import Sequence
from typing import Any

from rich import box
from rich.table import Table

from sim.figures.statistics.intervals import Interval
from sim.figures.sweep.sweep import Cell
from sim.show.console import console_for, print_table


def _in_unit(name: str) -> tuple[str, float]:
    """What people read: milliseconds for seconds."""
    head, _, part = name.partition(".")
    if head.endswith("_s") and part:
        return f"{head[:-2].upper().replace('QUEUEING', 'queueing')} {part} ms", 1000.0
    return name.replace("_per_s", "/s").replace("_", " "), 1.0


def _shown(value: Interval, scale: float) -> str:
    mean, half = value.mean * scale, value.half_width * scale
    if math.isnan(mean):
        return "–"
    digits = 3 if abs(mean) < 10 else 2 if abs(mean) < 100 else 1
    spread = "" if math.isnan(half) else f" ±{half:,.{digits}f}"
    return f"{mean:,.{digits}f}{spread}"


def _label(cell: Cell) -> str:
    return ", ".join(f"{name}={value}" for name, value in cell.settings.items()) or "as given"


def print_cells(cells: Sequence[Cell], metrics: Sequence[str], confidence: float) -> None:
    """To stdout; a change that is shown at this confidence is marked."""
    console = console_for()
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("setting", no_wrap=True)
    for name in metrics:
        table.add_column(_in_unit(name)[0], justify="right")
        if len(cells) > 1:
            table.add_column("change", justify="right")
    for number, cell in enumerate(cells):
        texts = [_label(cell)]
        for name in metrics:
            scale = _in_unit(name)[1]
            texts.append(_shown(cell.interval(name, confidence), scale))
            if len(cells) > 1:
                change = cell.change(cells[0], name, confidence)
                mark = " *" if change.excludes_zero else ""
                texts.append("" if number == 0 else _shown(change, scale) + mark)
        table.add_row(*texts)
    print_table(console, table)
    warm = [run["num_warmup"] for cell in cells for run in cell.runs]
    console.print(
        f"{len(cells[0].runs)} replications of each, seeds 0 to {len(cells[0].runs) - 1}, the same"
        f" requests for every setting; ± and * at {confidence:.0%}. Warm-up left out:"
        f" {min(warm):.0f} to {max(warm):.0f} requests a run.",
        markup=False,
    )


def to_json(cells: Sequence[Cell], confidence: float) -> str:
    """Every run's figures and the intervals; what is absent is null."""

    def plain(value: float) -> float | None:
        return None if math.isnan(value) else value

    rows: list[dict[str, Any]] = []
    for cell in cells:
        intervals = {name: cell.interval(name, confidence) for name in cell.runs[0]}
        changes = {name: cell.change(cells[0], name, confidence) for name in cell.runs[0]}
        rows.append(
            {
                "settings": cell.settings,
                "intervals": {name: list(map(plain, i)) for name, i in intervals.items()},
                "changes": {name: list(map(plain, i)) for name, i in changes.items()},
                "runs": [{n: plain(v) for n, v in run.items()} for run in cell.runs],
            }
        )
    return json.dumps({"confidence": confidence, "cells": rows}, indent=1)
