"""Pictures of runs and sweeps with matplotlib, in one style with colours safe for colour-blind eyes."""

import io
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sundog.actors.config import ConfigError
from sundog.ends import writing
from sundog.options.row import picture_format
from sundog.sim.figures.intervals import find_warm_up
from sundog.sim.figures.named import Metric
from sundog.sim.figures.sweep.cells import Cell
from sundog.sim.figures.verdict import judged
from sundog.sim.files.run_files import write_whole
from sundog.sim.record.rows import finished

if TYPE_CHECKING:
    import pyarrow as pa
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from sundog.planning.advice import Advice

    Floats = np.ndarray[Any, np.dtype[np.float64]]
    Bools = np.ndarray[Any, np.dtype[np.bool_]]

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#F0E442")
"""Palette of Okabe and Ito."""
STYLE: Any = {
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#dddddd",
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "lines.linewidth": 1.6,
    "svg.hashsalt": "sundog",
    "svg.fonttype": "none",
    "pdf.fonttype": 42,
}
SIZE_INCHES = (5.2, 3.2)
METADATA: dict[str, dict[str, None]] = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}, ".png": {}}
"""Dates to leave out of files, by their format: the same data give the same bytes."""
UNSETTLED = "†"
MOST_BARS = 8
SPREAD = 30
"""Ratio of the largest to the smallest value from which the scale is logarithmic."""


class Plot:
    """Picture of a run or a sweep: a notebook shows it as SVG.

    `save` writes it to a file; `figure` is the matplotlib figure, which may be changed.
    """

    def __init__(self, figure: "Figure") -> None:
        self.figure = figure

    def __repr__(self) -> str:
        return f"Plot({self.figure.axes[0].get_ylabel()} over {self.figure.axes[0].get_xlabel()})"

    def save(self, path: str | Path) -> None:
        """Write the picture as .svg, .pdf or .png, by the name, or nothing if it cannot be written whole.

        The same data give the same bytes of SVG.
        """
        try:
            ending = picture_format(str(path))
        except ValueError as error:
            raise ConfigError(f"{path} is no picture's name: {error}") from None
        picture = io.BytesIO()
        with _style():
            self.figure.savefig(picture, format=ending[1:], metadata=METADATA[ending], dpi=200)
        with writing(path):
            write_whole(path, picture.getvalue())

    def _repr_svg_(self) -> str:
        return self.svg()

    def svg(self) -> str:
        """Return the picture as the text of an SVG."""
        text = io.StringIO()
        with _style():
            self.figure.savefig(text, format="svg", metadata={"Date": None})
        return text.getvalue()


@contextmanager
def _style() -> Iterator[None]:
    try:
        from matplotlib import rc_context
    except ModuleNotFoundError:
        raise ConfigError("plots need matplotlib: pip install 'sundog[plot]'") from None
    with rc_context(STYLE):
        yield


@contextmanager
def _drawn(**labels: Any) -> "Iterator[tuple[Plot, Axes]]":
    with _style():
        from cycler import cycler
        from matplotlib.figure import Figure

        figure = Figure(figsize=SIZE_INCHES, layout="constrained")
        axes = figure.subplots()
        axes.set_prop_cycle(cycler(color=COLOURS))
        axes.set(**labels)
        yield Plot(figure), axes
        if len(axes.get_legend_handles_labels()[1]) > 1:
            axes.legend()
        figure.draw_without_rendering()  # Laid out once, it is drawn alike however often.
        figure.set_layout_engine("none")


def _is_wide(values: "np.ndarray[Any, np.dtype[np.float64]]") -> bool:
    positive = values[values > 0]
    return len(positive) > 1 and float(np.percentile(positive, 99) / np.percentile(positive, 1)) > SPREAD


def _named(column: str) -> str:
    return f"{column.removesuffix('_s').upper()} (s)" if column.endswith("_s") else column.replace("_", " ")


def _distributed(axes: "Axes", lines: "Mapping[str, tuple[Floats, Bools]]") -> None:
    """Draw the distribution of each line's values; marked ones belong to requests that finished.

    A curve ends at the share of requests that were answered: one that was given up or refused has no latency.
    """
    everything = []
    for name, (values, is_done) in lines.items():
        known, num_unanswered = judged(values, np.ones(len(values), dtype=bool), is_done)
        own = np.sort(known)
        share = np.arange(1, len(own) + 1) / max(len(own) + num_unanswered, 1)
        axes.step(own, share, where="post", label=name or None)
        everything.append(own)
    if _is_wide(np.concatenate(everything)):
        axes.set_xscale("log")


def _column(table: "pa.Table", name: str) -> "pa.ChunkedArray":
    if name not in table.column_names:
        raise ConfigError(f"there is no column {name}: there are {', '.join(table.column_names)}")
    return table[name]


def _numbers(table: "pa.Table", name: str) -> "Floats":
    values: Floats = _column(table, name).to_numpy(zero_copy_only=False).astype(np.float64)
    return values


def cdf_of_runs(runs: "Mapping[str, pa.Table]", column: str) -> Plot:
    """Draw a column of several runs' requests in one picture, a line for each; raises ConfigError.

    A dagger marks a run whose TTFT still rises or falls at its end.
    """
    lines, is_any_unsettled = {}, False
    for name, table in runs.items():
        is_done = finished(table["reason"].to_pylist())
        is_settled = find_warm_up(_numbers(table, "ttft_s")[is_done]).is_settled
        is_any_unsettled |= not is_settled
        lines[name if is_settled else f"{name} {UNSETTLED}"] = _numbers(table, column), is_done
    with _drawn(xlabel=_named(column), ylabel="share of requests", ylim=(0, 1)) as (plot, axes):
        _distributed(axes, lines)
        if is_any_unsettled:
            _explain_daggers(axes)
    return plot


def _explain_daggers(axes: "Axes") -> None:
    text = f"{UNSETTLED} did not settle: times to the first token still rose or fell at the end"
    axes.set_title(text, fontsize=7, loc="left")


def _mark(axes: "Axes", x: float, y: float) -> None:
    axes.annotate(UNSETTLED, (x, y), (-3, 5), textcoords="offset points")


class RunPlots:
    """Plots of a run's requests, as a distribution or over time."""

    def __init__(self, requests: "pa.Table") -> None:
        self._requests = requests

    def cdf(self, column: str = "ttft_s", by: str | None = None) -> Plot:
        """Draw the cumulative distribution of a column: `ttft_s`, `e2e_s`, ….

        A curve ends at the share of requests that were answered: one that was given up or refused has no
        latency. With `by`, such as `tenant`, there is a line for each value of that column. Raises
        ConfigError.
        """
        table = self._requests
        values, is_done = _numbers(table, column), finished(table["reason"].to_pylist())
        names = [""] * len(values) if by is None else [str(v) for v in _column(table, by).to_pylist()]
        owners = np.array(names)
        own = {name: owners == name for name in dict.fromkeys(names)}
        with _drawn(xlabel=_named(column), ylabel="share of requests", ylim=(0, 1)) as (plot, axes):
            _distributed(axes, {name: (values[rows], is_done[rows]) for name, rows in own.items()})
        return plot

    def timeline(self, bins: int = 200) -> Plot:
        """Draw the numbers of waiting and running requests over time, in `bins` equal parts of the run."""
        table = self._requests
        times = {
            name: table[name].to_numpy(zero_copy_only=False).astype(np.float64)
            for name in ("arrival_s", "first_scheduled_s", "finish_s")
        }
        last = max(
            (float(np.nanmax(each)) for each in times.values() if not np.isnan(each).all()), default=1.0
        )
        at = np.linspace(0.0, last, bins + 1)

        def before(name: str) -> "np.ndarray[Any, np.dtype[np.int64]]":
            known = np.sort(times[name][~np.isnan(times[name])])
            return np.searchsorted(known, at, side="right")

        with _drawn(xlabel="time (s)", ylabel="requests", xlim=(0, last)) as (plot, axes):
            axes.step(at, before("first_scheduled_s") - before("finish_s"), where="post", label="running")
            axes.step(at, before("arrival_s") - before("first_scheduled_s"), where="post", label="waiting")
            axes.set_ylim(bottom=0)
        return plot


class SweepPlots:
    """Plots of a sweep's settings, over a load or by two metrics."""

    def __init__(
        self, cells: Sequence[Cell], metrics: Sequence[Metric], confidence: float, by: str | None
    ) -> None:
        self._cells, self._metrics, self._confidence, self._by = cells, metrics, confidence, by

    def _metric(self, name: str | None) -> Metric:
        known = [metric.name for metric in self._metrics]
        if name is None:
            return self._metrics[0]
        if name not in known:
            raise ConfigError(f"the sweep has no {name}: metrics has {', '.join(known)}")
        return self._metrics[known.index(name)]

    def load_curve(self, metric: str | None = None, by: str | None = None) -> Plot:
        """Draw a metric over a numeric axis, a line and a confidence band for each other setting.

        The metric defaults to the sweep's first and the axis to its `by`. Raises ConfigError.
        """
        shown, axis = self._metric(metric), by or self._by
        axes_known = list(self._cells[0].settings)
        if axis not in axes_known:
            raise ConfigError(f"by is {axis}: name an axis of the sweep, {', '.join(axes_known)}")
        lines: dict[str, list[tuple[float, float, float, bool]]] = {}
        for cell in self._cells:
            value = cell.settings[axis]
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise ConfigError(f"{axis} has the value {value!r}: a load curve needs numbers")
            others = ", ".join(f"{name}={v}" for name, v in cell.settings.items() if name != axis)
            if cell.failed is None:
                mean, half = cell.interval(shown.name, self._confidence)
                lines.setdefault(others, []).append(
                    (
                        value,
                        mean * shown.scale,
                        0.0 if math.isnan(half) else half * shown.scale,
                        _is_unsettled(cell),
                    )
                )
        means = np.array([point[1] for points in lines.values() for point in points])
        is_wide = _is_wide(means)
        floor = float(means[means > 0].min()) / 2 if is_wide else 0.0
        with _drawn(xlabel=_axis(axis), ylabel=_titled(shown)) as (plot, axes):
            for others, points in lines.items():
                x, y, spread, unsettled = (np.array(each) for each in zip(*sorted(points), strict=True))
                (line,) = axes.plot(x, y, marker="o", markersize=3, label=others or None)
                low, high = np.maximum(y - spread, floor), y + spread
                axes.fill_between(x, low, high, color=line.get_color(), alpha=0.2, lw=0)
                for at in np.flatnonzero(unsettled).tolist():
                    _mark(axes, float(x[at]), float(y[at]))
            if any(point[3] for points in lines.values() for point in points):
                _explain_daggers(axes)
            axes.set_yscale("log" if is_wide else "linear")
            axes.set_ylim(bottom=floor)
        return plot

    def pareto(self, x: str | None = None, y: str | None = None) -> Plot:
        """Draw each setting by two metrics, and the Pareto front.

        The metrics default to the sweep's first two. Raises ConfigError.
        """
        if len(self._metrics) < 2 and (x is None or y is None):
            raise ConfigError("the sweep has one metric: a Pareto front needs two")
        across = self._metric(x)
        up = self._metric(y if y is not None else self._metrics[1].name)
        points = []
        for cell in self._cells:
            if cell.failed is None:
                intervals = (cell.interval(each.name, self._confidence) for each in (across, up))
                (a, a_half), (b, b_half) = intervals
                if not math.isnan(a + b):
                    points.append(
                        (a * across.scale, b * up.scale, a_half * across.scale, b_half * up.scale, cell)
                    )
        front = _front([(p[0], p[1]) for p in points], across.is_higher_better, up.is_higher_better)
        with _drawn(xlabel=_titled(across), ylabel=_titled(up)) as (plot, axes):
            for number, (a, b, a_half, b_half, cell) in enumerate(points):
                colour = COLOURS[0] if number in front else "#999999"
                style: Any = {"marker": "o", "markersize": 4, "color": colour, "linewidth": 0.8}
                axes.errorbar(a, b, np.nan_to_num(b_half), np.nan_to_num(a_half), **style)
                text = ", ".join(str(value) for value in cell.settings.values())
                text += f" {UNSETTLED}" * _is_unsettled(cell)
                axes.annotate(text, (a, b), (4, 4), textcoords="offset points", fontsize=7, color=colour)
            if points and (names := _ambiguous(points[0][4].settings)):
                axes.set_title(names, fontsize=8)
            if any(_is_unsettled(point[4]) for point in points):
                _explain_daggers(axes)
            if _is_wide(np.array([point[1] for point in points])):
                axes.set_yscale("log")
            if all(point[0] >= 0 for point in points):
                axes.set_xlim(left=max(0.0, axes.get_xlim()[0]))
            line = sorted(points[number][:2] for number in front)
            axes.plot([p[0] for p in line], [p[1] for p in line], color=COLOURS[0], linewidth=1, zorder=0)
        return plot


def _ambiguous(settings: Mapping[str, object]) -> str:
    """Return the names of the settings, in order, if several values are numbers; else an empty text."""
    numbers = [value for value in settings.values() if isinstance(value, int | float)]
    return ", ".join(map(_axis, settings)) if len(numbers) > 1 else ""


class PlanPlots:
    """Plot of a plan's fleets by cost."""

    def __init__(self, advice: "Advice", has_prices: bool) -> None:
        self._advice, self._has_prices = advice, has_prices

    def costs(self) -> Plot:
        """Draw the cost of the fleet that meets the objectives, and a lower bound on that of each other
        machine.

        A machine has no bar if it cannot run, or if no number of replicas meets the objectives. Raises
        ConfigError.
        """
        from sundog.planning.report import named

        ordered = sorted(self._advice.candidates, key=lambda each: -min(each.cost, each.bound))
        # As in the table: how many other settings of the winner are tried depends on the number of processes.
        shown = [each for each in ordered if each is self._advice.winner or not each.is_variant]
        able = [each for each in shown if min(each.cost, each.bound) < math.inf]
        if not able:
            raise ConfigError("no fleet of this plan can be drawn: none of its machines meets the objectives")
        label = "cost an hour" if self._has_prices else "GPUs"
        with _drawn(xlabel=label, ylabel="") as (plot, axes):
            for place, each in enumerate(able[-MOST_BARS:]):
                holds = each.is_verified and each.holding is not None
                count = each.holding if holds and each.holding else each.failing + 1
                value = min(each.cost, each.bound)
                text = f"{value:,.4g}, holds" if holds else f"at least {value:,.4g}"
                colour = COLOURS[0] if holds else "#bbbbbb"
                axes.barh(place, value, color=colour, height=0.5)
                axes.annotate(text, (value, place), (4, 0), textcoords="offset points", va="center")
                axes.annotate(
                    named(each, count), (0, place + 0.3), (2, 1), textcoords="offset points", fontsize=7
                )
            axes.set_axisbelow(True)
            axes.set_yticks([])
            axes.grid(axis="y", visible=False)
            axes.set_xlim(right=1.25 * max(min(each.cost, each.bound) for each in able[-MOST_BARS:]))
        return plot


def _is_unsettled(cell: Cell) -> bool:
    return any(run.get("unsettled") for run in cell.runs)


def _titled(metric: Metric) -> str:
    return f"{metric.title.removesuffix(' ms')} (ms)" if metric.title.endswith(" ms") else metric.title


def _axis(name: str) -> str:
    return name.rpartition(".")[2].replace("_per_s", "/s").replace("_", " ")


def _front(points: Sequence[tuple[float, float]], is_x_up: bool, is_y_up: bool) -> set[int]:
    """Return the indices of the Pareto front."""
    signed = [((1 if is_x_up else -1) * x, (1 if is_y_up else -1) * y) for x, y in points]
    return {
        number
        for number, (x, y) in enumerate(signed)
        if not any(a >= x and b >= y and (a, b) != (x, y) for a, b in signed)
    }
