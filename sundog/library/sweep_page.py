"""HTML page of a sweep, in one file: load curves with their bands, the Pareto front, the table.

Each picture is a vector with two links below it: the picture as SVG and its data as CSV.
"""

import base64
import csv
import io
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sundog.ends import writing

if TYPE_CHECKING:
    from sundog.library.plots import Plot
    from sundog.library.results import SweepResult

STYLE = """
:root { color-scheme: light dark; --ink: #1b1b1b; --paper: #fff; --rule: #ddd; --soft: #666 }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e6e6; --paper: #161616; --rule: #333; --soft: #999 } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); margin: 2rem auto;
  max-width: 72rem; padding: 0 1rem }
h1 { font-size: 1.4rem } h2 { font-size: 1.1rem; margin-top: 2rem }
.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(26rem, 100%), 1fr)); gap: 1rem }
figure { margin: 0 } figure img { width: 100%; height: auto; background: #fff; border-radius: 6px }
figcaption, .soft { color: var(--soft); font-size: .85rem } a { color: inherit }
.scroll { overflow-x: auto } table { border-collapse: collapse; font-variant-numeric: tabular-nums }
td, th { padding: .3rem .7rem; border-bottom: 1px solid var(--rule); text-align: right; white-space: nowrap }
th:first-child, td:first-child { text-align: left }
"""


def sweep_page(found: "SweepResult", name: str) -> str:
    """Render the page; the same sweep gives the same bytes. Raises ConfigError without matplotlib.

    If the sweep has an axis of load, there is a load curve for each metric. With several metrics there is a
    Pareto front: of the first, and of the first one with the opposite direction, such as throughput against
    latency.
    """
    charts: list[str] = []
    if found.by is not None:
        for metric in found.shown:
            plot = found.plot.load_curve(metric.name, found.by)
            axes = [axis for axis in found.cells[0].settings if axis != found.by]
            columns = [*axes, found.by, metric.name, f"{metric.name} ±"]
            charts.append(_figure(plot, f"load-{metric.name}", _csv(found.rows, columns)))
    if len(found.shown) > 1:
        one = found.shown[0]
        against = (each for each in found.shown if each.is_higher_better != one.is_higher_better)
        first, second = one.name, next(against, found.shown[1]).name
        columns = [*found.cells[0].settings, first, f"{first} ±", second, f"{second} ±"]
        charts.append(_figure(found.plot.pareto(first, second), "pareto", _csv(found.rows, columns)))
    shown = [metric.name for metric in found.shown]
    columns = ["rank", *found.cells[0].settings, *(part for each in shown for part in (each, f"{each} ±"))]
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(name)} – Sundog sweep</title>
<style>{STYLE}</style>
</head>
<body>
<h1>{escape(name)}</h1>
<p class="soft">{len(found.cells)} settings, ranked by {escape(shown[0])}. Bands and ±
are {found.confidence:.0%} confidence intervals over seeds;
latencies in tables and CSV are in seconds.</p>
<section class="charts">
{"".join(charts)}</section>
<h2>Settings</h2>
<div class="scroll">{_table(found.rows, columns)}</div>
<p class="soft"><a download="{escape(name)}.csv" href="{_data("text/csv", _csv(found.rows, columns))}">Save as
CSV</a></p>
</body>
</html>
"""


def write_sweep_page(found: "SweepResult", name: str, path: Path) -> None:
    """Write the page; raises ConfigError when it cannot be written."""
    from sundog.sim.files.run_files import write_whole

    text = sweep_page(found, name)
    with writing(path):
        write_whole(path, text)


def _figure(plot: "Plot", name: str, data: str) -> str:
    picture = _data("image/svg+xml", plot.svg())
    return f"""<figure>
<img alt="{escape(repr(plot))}" src="{picture}">
<figcaption><a download="{escape(name)}.svg" href="{picture}">Save as SVG</a> ·
<a download="{escape(name)}.csv" href="{_data("text/csv", data)}">Data as CSV</a></figcaption>
</figure>
"""


def _data(kind: str, text: str) -> str:
    return f"data:{kind};base64,{base64.b64encode(text.encode()).decode()}"


def _csv(rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows([["" if row[name] != row[name] else row[name] for name in columns] for row in rows])
    return text.getvalue()


def _table(rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> str:
    from sundog.library.results import html_table

    return html_table([{name: row[name] for name in columns} for row in rows])
