"""Leaderboard of an experiment: the best setting first, and how surely the others are behind it."""

import json
import math
from collections.abc import Sequence
from typing import Any

from rich.table import Table

from sundog.sim.figures.intervals import FEWEST, Interval
from sundog.sim.figures.named import Metric
from sundog.sim.figures.sweep.cells import Cell, label
from sundog.sim.figures.sweep.ranking import Knee, RankedCell, Ranking, blocks, knees, ranked, without
from sundog.sim.show.console import console_for, print_table, table_of

UNSETTLED = "†"
UNSETTLED_NOTE = (
    "†: a run did not settle. Times to the first token still rose or fell at its end, so that its figures"
    " depend on its length: do not publish them. No warm-up is left out of it."
)


def _shown(value: Interval, scale: float, signed: bool = False) -> str:
    mean, half = value.mean * scale, value.half_width * scale
    if math.isnan(mean):
        return "–"
    digits = 3 if abs(mean) < 10 else 2 if abs(mean) < 100 else 1
    spread = "" if math.isnan(half) else f" ±{half:,.{digits}f}"
    return f"{mean:{'+' if signed else ''},.{digits}f}{spread}"


def print_cells(
    cells: Sequence[Cell], metrics: Sequence[Metric], confidence: float, by: str | None = None
) -> None:
    """Print cells to stdout, best first by the first metric, in a table for each value of the axis `by`.

    Settings that could not run come last, with the reason.
    """
    console = console_for()
    rankings = [(block, ranked(block.cells, metrics[0], confidence)) for block in blocks(cells, by)]
    for block, ranking in rankings:
        if by is not None:
            console.print(f"{by}={block.value}", markup=False)
        if ranking.places:
            print_table(console, _leaderboard(ranking, metrics, confidence, by))
    if by is not None and (found := knees(cells, by)):
        has_objectives = any(run["slo_held"] == run["slo_held"] for cell in cells for run in cell.runs)
        print_table(console, _knees(found, by, has_objectives))
    placed = [place.cell for _, ranking in rankings for place in ranking.places]
    reasons: dict[str, list[str]] = {}
    for cell in cells:
        if cell.failed is not None:
            reasons.setdefault(cell.failed.reason, []).append(label(cell.settings))
        elif not any(cell is each for each in placed):
            reasons.setdefault(_why_no_row(cell, metrics[0]), []).append(label(cell.settings))
    for reason, labels in reasons.items():
        console.print(f"{'; '.join(labels)}: {reason}", markup=False, soft_wrap=True)
    widest = max((len(ranking.places) for _, ranking in rankings), default=0)
    for line in _notes(placed, widest, confidence):
        console.print(line, markup=False, soft_wrap=True)


def _leaderboard(ranking: Ranking, metrics: Sequence[Metric], confidence: float, by: str | None) -> Table:
    several = len(ranking.places) > 1
    name = "setting, and its difference to the best" if several else "setting"
    table = table_of(name, *(metric.title for metric in metrics))
    for place in ranking.places:
        name = label(without(place.cell.settings, by)) + (
            f" {UNSETTLED}" if _is_unsettled(place.cell) else ""
        )
        texts = [name]
        for metric in metrics:
            text = _shown(place.cell.interval(metric.name, confidence), metric.scale)
            if several:
                text += f"\n{_difference(place, ranking, metric, metric == metrics[0])}"
            texts.append(text)
        table.add_row(*texts)
    return table


def _difference(place: RankedCell, ranking: Ranking, metric: Metric, is_first: bool) -> str:
    if place.behind is None:
        return "best" if is_first else ""
    change, is_apart = ranking.change(place.cell, metric.name)
    if is_first and place.is_tied:
        return f"{_shown(change, metric.scale, signed=True)} tie"
    return _shown(change, metric.scale, signed=True) + (" *" if is_apart else "")


def _knees(found: Sequence[Knee], by: str, has_objectives: bool) -> Table:
    held = "no overload" + (", and the objectives are met," if has_objectives else "")
    table = table_of("setting", f"{held} up to {by}=")
    for knee in found:
        value = "none of these" if knee.value is None else f"{knee.value}"
        table.add_row(label(knee.settings), value + (", the most tried" if knee.is_last else ""))
    return table


def _notes(cells: Sequence[Cell], num_compared: int, confidence: float) -> list[str]:
    if not cells:
        return []
    warm = sorted({run["num_warmup"] for cell in cells for run in cell.runs})
    span = f"{warm[0]:.0f}" if len(warm) == 1 else f"{warm[0]:.0f} to {warm[-1]:.0f}"
    left_out = f"Warm-up: the first {span} requests of each run are not counted, the same for equal arrivals."
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
        *_marks(num_compared),
        left_out,
        *unsettled,
    ]
    if any(cell.is_one_recording for cell in cells):
        notes.append(
            "All runs are drawn from one recording: ± says how much other recordings like it would differ,"
            " and more replications do not make it smaller. No sample has a longer burst than the "
            "recording: in"
            " tests, 95% intervals from such samples contained the true value 9 times in 10, and 3 times "
            "in 4 for a few"
            " hundred requests in long bursts."
        )
    if fixed:
        named = "; ".join(label(cell.settings) for cell in fixed)
        notes.append(f"Every seed gave the same run, so that there is no interval: {named}.")
    return notes


def _marks(num_settings: int) -> list[str]:
    if num_settings < 2:
        return []
    together = ", with intervals wide enough to hold for all settings at once" if num_settings > 2 else ""
    return [
        f"Differences to the best setting are taken seed by seed{together}."
        " *: it differs from every setting that may be the best; tie: not distinguishable from the best."
    ]


def _is_unsettled(cell: Cell) -> bool:
    return any(run["unsettled"] for run in cell.runs)


def _why_no_row(cell: Cell, metric: Metric) -> str:
    least = min(run["num_measured"] for run in cell.runs)
    if least < FEWEST and any(run["num_warmup"] for run in cell.runs):
        return (
            f"a run has {least:.0f} finished requests after its warm-up, and {FEWEST} are needed: run longer,"
            " or shorten --warmup-s"
        )
    return f"it has no {metric.name}"


def _unfinished(cells: Sequence[Cell], confidence: float) -> str:
    shares = {label(cell.settings): cell.interval("finished_fraction", confidence).mean for cell in cells}
    if all(share == 1 or math.isnan(share) for share in shares.values()):
        return ""
    named = "; ".join(f"{name} {share:.1%}" for name, share in shares.items() if share < 1)
    return f" Latencies are of finished requests alone. Finished: {named}; any other, all."


def to_json(
    cells: Sequence[Cell], metrics: Sequence[Metric], confidence: float, by: str | None = None
) -> str:
    """Return every run's figures and the intervals, in the given order; missing values are null.

    `changes` are to the first setting that ran, `to_best` and `rank` by the first of the `metrics`; with `by`
    all of them are among the settings with the same value on that axis.
    """
    metric, shown = metrics[0], [each.name for each in metrics]
    found: dict[str, Any] = {"confidence": confidence, "metric": metric.name, "shown": shown}
    if by is not None:
        found |= {"by": by, "knees": [knee._asdict() for knee in knees(cells, by)]}
    return json.dumps(found | {"cells": as_rows(cells, metric, confidence, by)}, indent=1)


def as_rows(
    cells: Sequence[Cell], metric: Metric, confidence: float, by: str | None = None
) -> list[dict[str, Any]]:
    """Return a plain record of each cell, in order."""
    found: dict[int, dict[str, Any]] = {}
    for block in blocks(cells, by):
        places = ranked(block.cells, metric, confidence).places
        first = next((cell for cell in block.cells if cell.failed is None), None)
        found |= {id(cell): _row(cell, first, places, confidence) for cell in block.cells}
    return [found[id(cell)] for cell in cells]


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
        "is_one_recording": cell.is_one_recording,
        "intervals": {n: list(map(_plain, cell.interval(n, confidence))) for n in cell.runs[0]},
        "changes": {n: list(map(_plain, cell.change(first, n, confidence))) for n in cell.runs[0]},
        "runs": [{n: _plain(v) for n, v in run.items()} for run in cell.runs],
    }


def _plain(value: float) -> float | None:
    return None if math.isnan(value) else value
