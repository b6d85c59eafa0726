"""An experiment as a leaderboard: the best setting first, and how surely the others are behind it."""

import json
import math
from collections.abc import Sequence
from typing import Any

from rich import box
from rich.table import Table

from sim.figures.intervals import FEWEST, Interval, all_at_once
from sim.figures.sweep import Cell, Metric, RankedCell, label, ranked
from sim.show.console import console_for, print_table

UNSETTLED = "†"
UNSETTLED_NOTE = (
    "†: a run did not settle. Times to the first token still rose or fell at its end, so that its figures"
    " depend on how long it is; it leaves nothing out as warm-up."
)


def _shown(value: Interval, scale: float, signed: bool = False) -> str:
    mean, half = value.mean * scale, value.half_width * scale
    if math.isnan(mean):
        return "–"
    digits = 3 if abs(mean) < 10 else 2 if abs(mean) < 100 else 1
    spread = "" if math.isnan(half) else f" ±{half:,.{digits}f}"
    return f"{mean:{'+' if signed else ''},.{digits}f}{spread}"


def print_cells(cells: Sequence[Cell], metrics: Sequence[Metric], confidence: float) -> None:
    """To stdout, best first by the first metric; settings that could not run, and why, come last."""
    console = console_for()
    ranking = ranked(cells, metrics[0], confidence)
    if ranking:
        print_table(console, _leaderboard(ranking, metrics, confidence))
    placed = [place.cell for place in ranking]
    for cell in cells:
        if cell.failed is not None:
            console.print(f"{label(cell.settings)}: {cell.failed.reason}", markup=False, soft_wrap=True)
        elif not any(cell is each for each in placed):
            console.print(
                f"{label(cell.settings)}: {_why_no_row(cell, metrics[0])}", markup=False, soft_wrap=True
            )
    for line in _notes(ranking, confidence):
        console.print(line, markup=False, soft_wrap=True)


def _leaderboard(ranking: Sequence[RankedCell], metrics: Sequence[Metric], confidence: float) -> Table:
    several = len(ranking) > 1
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("setting", no_wrap=True)
    for metric in metrics:
        table.add_column(metric.title, justify="right")
        if several:
            table.add_column("to the best" if metric == metrics[0] else "change", justify="right")
    for place in ranking:
        texts = [label(place.cell.settings) + (f" {UNSETTLED}" if _is_unsettled(place.cell) else "")]
        for metric in metrics:
            texts.append(_shown(place.cell.interval(metric.name, confidence), metric.scale))
            if several:
                texts.append(_difference(place, ranking, metric, metric == metrics[0], confidence))
        table.add_row(*texts)
    return table


def _difference(
    place: RankedCell, ranking: Sequence[RankedCell], metric: Metric, is_first: bool, confidence: float
) -> str:
    """A setting's metric less that of the best setting, and its mark; `is_first` where it ranks them."""
    if place.behind is None:
        return "best" if is_first else ""
    change = place.cell.change(ranking[0].cell, metric.name, all_at_once(confidence, len(ranking)))
    mark = " *" if change.excludes_zero else " tie" if is_first and place.is_tied else ""
    return _shown(change, metric.scale, signed=True) + mark


def _notes(ranking: Sequence[RankedCell], confidence: float) -> list[str]:
    """Explain how often each setting was run, what is left out, and what the marks mean."""
    if not ranking:
        return []
    cells = [place.cell for place in ranking]
    warm = sorted({run["num_warmup"] for cell in cells for run in cell.runs})
    span = f"{warm[0]:.0f}" if len(warm) == 1 else f"{warm[0]:.0f} to {warm[-1]:.0f}"
    left_out = f"Left out as warm-up: {span} requests of each run, the same for settings with equal arrivals."
    left_out += _unfinished(cells, confidence)
    if len(cells) > 1 and len({repr(cell.runs) for cell in cells}) == 1:
        left_out += " Every setting gave the same figures: to these requests it makes no difference."
    unsettled = [UNSETTLED_NOTE] if any(map(_is_unsettled, cells)) else []
    fixed, num_runs = [cell for cell in cells if cell.is_fixed], len(cells[0].runs)
    if len(fixed) == len(cells):
        return [
            "One run of each: every seed gives the same, so there are no intervals, and the table cannot tell"
            " whether a difference would hold on another day. --resample draws a new trace for each seed.",
            left_out,
            *unsettled,
        ]
    notes = [
        f"Means of {num_runs} runs of each setting, with seeds 0 to {num_runs - 1}. With one seed, all"
        f" settings that leave the workload as it is meet the same requests. ± is the {confidence:.0%}"
        " confidence interval.",
        *_marks(len(ranking)),
        left_out,
        *unsettled,
    ]
    if any(cell.is_one_recording for cell in cells):
        notes.append(
            "All runs are drawn from one recording: ± says how much other recordings like it would differ,"
            " and more replications do not make it smaller. No draw has a longer burst than the recording: in"
            " tests, 95% intervals of such draws held the truth 9 times in 10, and 3 times in 4 for a few"
            " hundred requests in long bursts."
        )
    if fixed:
        named = "; ".join(label(cell.settings) for cell in fixed)
        notes.append(f"Every seed gave the same run, so that there is no interval: {named}.")
    return notes


def _marks(num_settings: int) -> list[str]:
    """Explain the marks of a table that compares settings."""
    if num_settings < 2:
        return []
    together = ", with intervals wide enough to hold for all settings at once" if num_settings > 2 else ""
    return [
        f"Differences to the best setting are taken seed by seed{together}."
        " *: larger than chance explains; tie: chance can explain it."
    ]


def _is_unsettled(cell: Cell) -> bool:
    return any(run["unsettled"] for run in cell.runs)


def _why_no_row(cell: Cell, metric: Metric) -> str:
    """Explain why a setting that ran has no place in the ranking."""
    least = min(run["num_measured"] for run in cell.runs)
    if least < FEWEST and any(run["num_warmup"] for run in cell.runs):
        return (
            f"its warm-up leaves {least:.0f} finished requests in a run, and a row needs {FEWEST}: run it for"
            " longer, or give a shorter --warmup-s"
        )
    return f"it has no {metric.name}"


def _unfinished(cells: Sequence[Cell], confidence: float) -> str:
    """Whose latencies leave out whom: a setting that refuses half can look quick."""
    shares = {label(cell.settings): cell.interval("finished_fraction", confidence).mean for cell in cells}
    if all(share == 1 or math.isnan(share) for share in shares.values()):
        return ""
    named = "; ".join(f"{name} {share:.1%}" for name, share in shares.items() if share < 1)
    return f" Latencies are of finished requests alone. Finished: {named}; any other, all."


def to_json(cells: Sequence[Cell], metric: Metric, confidence: float) -> str:
    """Every run's figures and the intervals, in the order asked for; what is absent is null.

    `changes` are to the first setting that ran, `to_best` and `rank` by the metric.
    """
    return json.dumps(
        {"confidence": confidence, "metric": metric.name, "cells": as_rows(cells, metric, confidence)},
        indent=1,
    )


def as_rows(cells: Sequence[Cell], metric: Metric, confidence: float) -> list[dict[str, Any]]:
    """A plain record of each cell."""
    places = ranked(cells, metric, confidence)
    first = next((cell for cell in cells if cell.failed is None), None)
    return [_row(cell, first, places, confidence) for cell in cells]


def _row(cell: Cell, first: Cell | None, places: Sequence[RankedCell], confidence: float) -> dict[str, Any]:
    if cell.failed is not None or first is None:
        return {"settings": cell.settings, "failed": cell.failed.reason if cell.failed else None}
    rank = next((number for number, place in enumerate(places, 1) if place.cell is cell), None)
    behind = None if rank is None else places[rank - 1].behind
    return {
        "settings": cell.settings,
        "rank": rank,
        "to_best": None if behind is None else list(map(_plain, behind)),
        "tied_with_best": rank is not None and places[rank - 1].is_tied,
        "is_fixed": cell.is_fixed,
        "intervals": {n: list(map(_plain, cell.interval(n, confidence))) for n in cell.runs[0]},
        "changes": {n: list(map(_plain, cell.change(first, n, confidence))) for n in cell.runs[0]},
        "runs": [{n: _plain(v) for n, v in run.items()} for run in cell.runs],
    }


def _plain(value: float) -> float | None:
    return None if math.isnan(value) else value
