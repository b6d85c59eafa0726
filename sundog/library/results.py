"""Results of runs, sweeps and plans: tables of pyarrow, plots, and their display in notebooks."""

import json
import math
import shutil
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sundog.actors.config import ConfigError
from sundog.library.plots import PlanPlots, RunPlots, SweepPlots
from sundog.sim.figures.named import Metric
from sundog.sim.figures.sweep.cells import Cell, FailedRun
from sundog.sim.figures.sweep.ranking import blocks, ranked

if TYPE_CHECKING:
    import pyarrow as pa

    from sundog.planning.advice import Advice
    from sundog.sim.figures.named import Objective
    from sundog.sim.record.run_directory import Run

COUNTS = ("num_warmup", "num_measured", "unsettled")
"""Counts of a run that are not metrics."""
SHOWN = ("ttft_s", "tpot_s", "itl_s", "e2e_s", "queueing_s", "program_s")
PARTS = ("mean", "p50", "p90", "p99")


def _table(rows: Sequence[Mapping[str, Any]]) -> "pa.Table":
    import pyarrow as pa

    columns: dict[str, list[Any]] = {name: [row[name] for row in rows] for name in (rows[0] if rows else ())}
    for name, values in columns.items():
        kinds = {type(value) for value in values if value is not None}
        if len(kinds) > 1 and not kinds <= {int, float}:
            columns[name] = [None if value is None else str(value) for value in values]
    return pa.table(columns)


def html_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Render records with the same keys as an HTML table."""
    names = list(rows[0]) if rows else []
    head = "".join(f"<th>{escape(name)}</th>" for name in names)
    lines = ("".join(f"<td>{escape(_text(row[name]))}</td>" for name in names) for row in rows)
    return f"<table><tr>{head}</tr>{''.join(f'<tr>{line}</tr>' for line in lines)}</table>"


def _text(value: object) -> str:
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "–"
    return f"{value:,.4g}" if isinstance(value, float) else str(value)


def _cell(row: dict[str, Any]) -> Cell:
    if "runs" not in row:
        return Cell(row["settings"], failed=FailedRun(str(row.get("failed"))))
    runs = [{name: math.nan if v is None else float(v) for name, v in run.items()} for run in row["runs"]]
    return Cell(row["settings"], runs, row["is_fixed"], row["is_one_recording"])


class RunResult:
    """A finished run: tables, figures and plots.

    Times are in seconds on the run's own clock. `remarks` name the weak points of the prediction.

    Example:
        >>> import sundog
        >>> run = sundog.replay("traces/chat-poisson-2rps-5min.jsonl.gz", gpu="h100", limit=20)
        >>> run.requests.column_names[:2]
        ['request_id', 'tenant']
        >>> "ttft_s.mean" in run.summary["figure"].to_pylist()
        True
    """

    def __init__(self, run: "Run", remarks: Sequence[str] = (), folder: str | None = None) -> None:
        """Keep the run. A `folder` that was made for it is removed when the result is deleted."""
        self.run, self.remarks = run, tuple(remarks)
        if folder is not None:
            weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)

    @property
    def folder(self) -> Path:
        """Folder of the run."""
        return self.run.path

    @cached_property
    def requests(self) -> "pa.Table":
        """Table with a row per request: times, lengths, tenant and end (docs/records.md).

        Raises:
            RunError: The table is damaged, or belongs to another run.
        """
        return self.run.requests()

    @cached_property
    def steps(self) -> "pa.Table":
        """Table with a row per step of an engine.

        Raises:
            RunError: The run was measured by clients, which see no steps.
        """
        return self.run.steps()

    @property
    def figures(self) -> dict[str, Any]:
        """Figures that `sundog replay --json` prints, as plain values."""
        return self.run.summary

    @property
    def summary(self) -> "pa.Table":
        """Table of the numeric figures, as `figure` and `value`; parts of a distribution as `ttft_s.p99`."""
        found: dict[str, float] = {}
        for name, value in self.figures.items():
            for part, number in value.items() if isinstance(value, dict) else ((None, value),):
                if isinstance(number, int | float) and not isinstance(number, bool):
                    found[name if part is None else f"{name}.{part}"] = float(number)
        return _table([{"figure": name, "value": value} for name, value in found.items()])

    @property
    def plot(self) -> RunPlots:
        """Plots of the run, as methods."""
        return RunPlots(self.requests)

    def __repr__(self) -> str:
        figures = self.figures
        ttft = (figures.get("ttft_s") or {}).get("mean")
        done = f"{figures['num_finished']:,} of {figures['num_requests']:,} requests"
        return (
            f"RunResult({done}, mean TTFT {_text(ttft)} s, {_text(figures['output_tokens_per_s'])} tokens/s)"
        )

    def _repr_html_(self) -> str:
        rows = [
            {"milliseconds": name.removesuffix("_s").upper(), **{part: value[part] * 1e3 for part in PARTS}}
            for name in SHOWN
            if (value := self.figures.get(name))
        ]
        return f"<p>{escape(repr(self))}</p>{html_table(rows)}"


class SweepResult:
    """Settings of a sweep with their replications: tables and plots.

    `remarks` name weak points of the predictions, and prompts that miss a scaler's objective alone; a sweep
    that is read from a folder has none.

    Example:
        >>> import sundog
        >>> found = sundog.sweep(
        ...     "traces/chat-poisson-2rps-5min.jsonl.gz",
        ...     vary={"policy": ["fcfs", "shortest-prompt"]}, metrics=["ttft_s.mean"],
        ...     gpu="h100", limit=40, replications=2, warmup_s=0, jobs=1,
        ... )
        >>> found.table.num_rows
        2
    """

    def __init__(
        self,
        cells: Sequence[Cell],
        metrics: Sequence[Metric],
        confidence: float,
        by: str | None,
        num_shown: int | None = None,
        remarks: Sequence[str] = (),
    ) -> None:
        """Keep the cells. The first `num_shown` metrics, by default all, are those that were requested."""
        self.shown, self.remarks = list(metrics[:num_shown]), tuple(remarks)
        self.cells, self.metrics, self.confidence, self.by = list(cells), list(metrics), confidence, by

    @classmethod
    def of_json(cls, path: Path) -> "SweepResult":
        """Read the table that a sweep wrote into its folder; raises ConfigError for a damaged one.

        It has all metrics of the runs; the first one ranks the settings.
        """
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
            cells = [_cell(row) for row in found["cells"]]
            shown = found["shown"]
            names = dict.fromkeys([*shown, *(name for cell in cells for run in cell.runs for name in run)])
            metrics = [Metric.parse(name) for name in names if name not in COUNTS]
            return cls(
                cells, metrics, confidence=found["confidence"], by=found.get("by"), num_shown=len(shown)
            )
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ConfigError(f"{path} is no table of a sweep: {error}") from None

    @cached_property
    def rows(self) -> list[dict[str, Any]]:
        """Records of the settings: axes, rank by the first metric, metrics with half-widths.

        Rank 1 is the best. `is_tied` is true for a setting that cannot be distinguished from the best. With
        `by`, settings are ranked among those with the same value of that axis. `failed` is the reason why a
        setting could not run.
        """
        places: dict[int, tuple[int, bool]] = {}
        for block in blocks(self.cells, self.by):
            found = ranked(block.cells, self.metrics[0], self.confidence).places
            places |= {id(place.cell): (rank, place.is_tied) for rank, place in enumerate(found, 1)}
        rows = []
        for cell in self.cells:
            rank, is_tied = places.get(id(cell), (None, None))
            row: dict[str, Any] = {**cell.settings, "rank": rank, "is_tied": is_tied}
            for metric in self.metrics:
                value, half = math.nan, math.nan
                if cell.failed is None:
                    value, half = cell.interval(metric.name, self.confidence)
                row |= {metric.name: value, f"{metric.name} ±": half}
            rows.append({**row, "failed": None if cell.failed is None else cell.failed.reason})
        return rows

    @property
    def table(self) -> "pa.Table":
        """Table with a row per setting, in the order of the grid."""
        return _table(self.rows)

    @property
    def runs(self) -> "pa.Table":
        """Table with a row per run: the axes, the replication, and all figures of the run."""
        return _table(
            [
                {**cell.settings, "replication": number, **run}
                for cell in self.cells
                for number, run in enumerate(cell.runs)
            ]
        )

    @property
    def plot(self) -> SweepPlots:
        """Plots of the sweep, as methods."""
        return SweepPlots(self.cells, self.metrics, self.confidence, self.by)

    def __repr__(self) -> str:
        best = [row for row in self.rows if row["rank"] == 1]
        axes = list(self.cells[0].settings) if self.cells else []
        named = "; ".join(", ".join(f"{name}={row[name]}" for name in axes) or "as given" for row in best)
        return f"SweepResult({len(self.cells)} settings, best by {self.metrics[0].name}: {named})"

    def _repr_html_(self) -> str:
        ordered = sorted(self.rows, key=lambda row: row["rank"] or math.inf)
        if self.by is not None:
            ordered = self.rows
        return f"<p>{escape(repr(self))}</p>{html_table(ordered)}"


@dataclass(frozen=True)
class PlanResult:
    """The cheapest fleet that meets the objectives, and the candidates that were tried.

    Example:
        >>> import sundog
        >>> found = sundog.plan(
        ...     "traces/chat-poisson-2rps-5min.jsonl.gz", slo="p95(ttft)<5", model="llama-3.1-8b",
        ...     limit=40, replications=2, tune=False, pools=False, jobs=1,
        ... )
        >>> found.candidates.num_rows >= 1
        True
    """

    advice: "Advice"
    objectives: "Sequence[Objective]"
    confidence: float
    has_prices: bool

    @cached_property
    def figures(self) -> dict[str, Any]:
        """Figures that `sundog plan --json` prints, as plain values."""
        from sundog.planning.report import to_json

        found: dict[str, Any] = json.loads(
            to_json(self.advice, self.objectives, self.confidence, self.has_prices)
        )
        return found

    @property
    def winner(self) -> dict[str, Any] | None:
        """Cheapest fleet: `settings`, `replicas`, `gpus`, `cost_per_h`; None without one."""
        found: dict[str, Any] | None = self.figures["winner"]
        return found

    @property
    def plot(self) -> PlanPlots:
        """Plots of the plan, as methods."""
        return PlanPlots(self.advice, self.has_prices)

    @property
    def candidates(self) -> "pa.Table":
        """Table with a row per machine and setting, and the numbers of replicas that failed and passed."""
        rows = self.figures["candidates"]
        named = dict.fromkeys(name for row in rows for name in row["settings"])
        return _table(
            [
                {**named, **row["settings"], **{n: v for n, v in row.items() if n != "settings"}}
                for row in rows
            ]
        )

    def __repr__(self) -> str:
        from sundog.planning.report import named

        winner = self.advice.winner
        if winner is None or winner.holding is None:
            return "PlanResult(no fleet meets the objectives)"
        return f"PlanResult({named(winner, winner.holding)})"

    def _repr_html_(self) -> str:
        return f"<p>{escape(repr(self))}</p>{html_table(self.candidates.to_pylist())}"
