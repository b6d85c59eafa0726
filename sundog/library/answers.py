"""Results of `sundog.compare`, `sundog.capacity`, `sundog.walk` and `sundog.calibrate`."""

import math
from collections.abc import Iterator
from functools import cached_property
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sundog.ends import writing
from sundog.library.results import html_table
from sundog.sim.figures.intervals import Interval

if TYPE_CHECKING:
    from sundog.calibration.found import FoundCost
    from sundog.planning.capacity import FoundCapacity
    from sundog.sim.explain.walk import Walk
    from sundog.sim.figures.compare import Comparison


class ComparisonResult:
    """Two runs side by side; a notebook shows the figures as a table.

    Example:
        >>> import sundog
        >>> run = sundog.replay("traces/chat-poisson-2rps-5min.jsonl.gz", gpu="h100", limit=20)
        >>> found = sundog.compare(run, run)
        >>> found.settings, found["TTFT mean"]["change_s"]
        ({}, 0.0)
    """

    def __init__(self, found: "Comparison") -> None:
        self._found = found

    @property
    def settings(self) -> dict[str, tuple[Any, Any]]:
        """Options that differ, with the values of the first and of the second run."""
        return dict(self._found.settings)

    @property
    def is_paired(self) -> bool:
        """Whether both runs had the same requests, which are then compared one by one."""
        return self._found.is_paired

    @property
    def rows(self) -> list[dict[str, Any]]:
        """Figures: seconds of both runs, the change, and the half-width of its interval."""
        return [
            {
                "figure": each.name,
                "first_s": each.first,
                "second_s": each.second,
                "change_s": each.change.mean,
                "half_width_s": each.change.half_width,
            }
            for each in self._found.figures
        ]

    @property
    def moved(self) -> dict[str, list[dict[str, Any]]]:
        """Requests that gained and lost most, with their seconds in both runs."""
        return {
            name: [each._asdict() for each in moved]
            for name, moved in (("gained", self._found.gained), ("lost", self._found.lost))
        }

    def __getitem__(self, figure: str) -> dict[str, Any]:
        """Return the row of a figure, such as `TTFT mean`; raises KeyError with the available names."""
        rows = {row["figure"]: row for row in self.rows}
        if figure not in rows:
            raise KeyError(f"{figure}: the figures are {', '.join(rows)}")
        return rows[figure]

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(self.rows)

    def _repr_html_(self) -> str:
        return html_table(self.rows)


class CapacityResult:
    """The largest load at which a fleet met its objectives.

    Example:
        >>> import sundog
        >>> trace = "traces/chat-poisson-2rps-5min.jsonl.gz"
        >>> found = sundog.capacity(trace, slo="p95(ttft)<1", gpu="h100", limit=60, resolution=0.2, jobs=1)
        >>> found.requests_per_s.mean > 2
        True
    """

    def __init__(self, found: "FoundCapacity") -> None:
        self._found = found

    @property
    def factor(self) -> Interval:
        """Load as a multiple of the source's: mean and half-width over samples; NaN for a single sample."""
        return self._found.factor

    @property
    def requests_per_s(self) -> Interval:
        """Largest load in requests a second: mean and half-width over samples."""
        return self._found.requests_per_s

    @property
    def is_most_tried(self) -> bool:
        """Whether the objectives are met even at the largest load that is tried."""
        return self._found.is_most_tried

    @property
    def rows(self) -> list[dict[str, Any]]:
        """One row for each sample of the workload: its largest load, and requests without an answer there."""
        return [
            {"factor": each.factor, "requests_per_s": each.requests_per_s, "unanswered": each.num_unanswered}
            for each in self._found.loads
        ]

    def __repr__(self) -> str:
        width = self.requests_per_s.half_width
        spread = "" if math.isnan(width) else f" ± {width:.2g}"
        return f"<{self.requests_per_s.mean:.3g}{spread} requests/s, {self.factor.mean:.3g} times the load>"


class WalkResult:
    """The way of one request through the graph; a notebook shows it as the page of `sundog walk`.

    Example:
        >>> import sundog
        >>> trace = "traces/chat-poisson-2rps-5min.jsonl.gz"
        >>> run = sundog.replay(trace, gpu="h100", limit=5, messages=True)
        >>> way = sundog.walk(run, "r0000000")
        >>> way.actors[:3]
        ['client', 'async-llm', 'router']
        >>> print(way.text.splitlines()[0])
        Request r0000000
    """

    def __init__(self, found: "Walk", run: str) -> None:
        self._found, self._run = found, run

    @cached_property
    def stops(self) -> list[dict[str, Any]]:
        """The stops in order of time: messages, waits, and steps in which nothing new happens.

        Times are in seconds after the request's arrival. A wait has no `sender` and no `receiver`. `code`
        names the file, line and method that handled a message.
        """
        from sundog.sim.show.html.walk_page import told

        arrival_s = self._found.request.arrival.time_s
        stops = []
        for stop in self._found.stops:
            said = told(self._found, stop)
            stops.append({
                "begin_s": stop.time_s - arrival_s,
                "end_s": stop.until_s - arrival_s,
                "sender": stop.sender or None,
                "receiver": stop.receiver or None,
                "title": said.title,
                "sentences": list(said.sentences),
                "facts": dict(said.facts),
                "code": [f"{each.file}:{each.line} {each.title}" for each in stop.handled],
            })  # fmt: skip
        return stops

    @property
    def actors(self) -> list[str]:
        """The actors on the way, in the order in which the request met them."""
        return self._found.actors

    @property
    def cut_off(self) -> list[Path]:
        """The files of the record that break off, so that what came later is missing."""
        return self._found.cut_off

    @property
    def text(self) -> str:
        """The walk as lines, as `sundog walk --text` prints it."""
        from sundog.sim.show.html.walk_page import text

        return text(self._found)

    @property
    def page(self) -> str:
        """The page that `sundog walk` writes, as HTML."""
        from sundog.sim.show.html.walk_page import render

        return render(self._found, self._run)

    def save(self, path: str | Path) -> None:
        """Write the page to a file; raises ConfigError if it cannot be written."""
        from sundog.sim.files.run_files import write_whole

        page = self.page
        with writing(path):
            write_whole(path, page)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(self.stops)

    def __repr__(self) -> str:
        return f"<request {self._found.request.request_id}: {len(self._found.stops)} stops>"

    def _repr_html_(self) -> str:
        frame = 'style="width: 100%; height: 40rem; border: 0"'
        return f'<iframe {frame} srcdoc="{escape(self.page)}"></iframe>'


class CalibrationResult:
    """A cost file that was written, and how well its model explains what was measured.

    Example:
        >>> import sundog, tempfile
        >>> run = sundog.replay("traces/chat-poisson-2rps-5min.jsonl.gz", gpu="h100", limit=100)
        >>> found = sundog.calibrate(run.folder, out=tempfile.mkdtemp() + "/h100.toml")
        >>> found.file.name
        'h100.toml'
        >>> [text.split(" (")[0] for text in found.remarks if "explains" in text]
        ['explains how long requests decoded to ...%']
    """

    def __init__(self, found: "FoundCost") -> None:
        from sundog.sim.files.toml import read_toml

        self._found = found
        self._tables = read_toml(found.file)

    @property
    def file(self) -> Path:
        """The cost file, which the argument `cost` of other functions takes."""
        return self._found.file

    @property
    def coefficients(self) -> dict[str, Any]:
        """Coefficients of the cost model: seconds of a step, of a token in it, and so on
        (docs/measuring.md).
        """
        return dict(self._tables["calibrated"])

    @property
    def evidence(self) -> dict[str, Any]:
        """Facts about the measurement in the file: its machine, and errors on loads that were not fitted."""
        return dict(self._tables.get("measured", {}))

    @property
    def left_out(self) -> list[dict[str, Any]]:
        """Figures of each load of a server, predicted by a fit to the other loads."""
        return [
            {
                "load": load,
                "figure": figure.name,
                "measured": figure.measured,
                "predicted": figure.predicted,
                "range": figure.span,
            }
            for load, own in self._found.left_out.items()
            for figure in own.values()
        ]

    @property
    def remarks(self) -> list[str]:
        """Remarks on the fit, as the command prints them."""
        return list(self._found.remarks)

    def __repr__(self) -> str:
        return f"<{self._found.remarks[0]}>"

    def _repr_html_(self) -> str:
        return f"<p>{escape(repr(self))}</p>{html_table([self.coefficients])}"
