"""The results of `sundog.compare` and `sundog.capacity`."""

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from sundog.library.results import html_table
from sundog.sim.figures.intervals import Interval

if TYPE_CHECKING:
    from sundog.planning.capacity import FoundCapacity
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
        """The options that differ, with the values of the first and of the second run."""
        return dict(self._found.settings)

    @property
    def is_paired(self) -> bool:
        """Whether both runs met the same requests, which are then compared one by one."""
        return self._found.is_paired

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The figures: seconds of both runs, the change, and the half-width of its interval."""
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
        """The requests that gained and lost most, with their seconds in both runs."""
        return {
            name: [each._asdict() for each in moved]
            for name, moved in (("gained", self._found.gained), ("lost", self._found.lost))
        }

    def __getitem__(self, figure: str) -> dict[str, Any]:
        """Return the row of a figure, such as `TTFT mean`; raises KeyError with the names there are."""
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
        """The load as a multiple of the source's: mean and half-width over draws; NaN of a single draw."""
        return self._found.factor

    @property
    def requests_per_s(self) -> Interval:
        """The same in requests a second."""
        return self._found.requests_per_s

    @property
    def is_most_tried(self) -> bool:
        """Whether the objectives hold even at the largest load that is tried."""
        return self._found.is_most_tried

    @property
    def rows(self) -> list[dict[str, Any]]:
        """One row for each draw of the workload: its largest load, and requests without an answer there."""
        return [
            {"factor": each.factor, "requests_per_s": each.requests_per_s, "unanswered": each.num_unanswered}
            for each in self._found.loads
        ]

    def __repr__(self) -> str:
        width = self.requests_per_s.half_width
        spread = "" if math.isnan(width) else f" ± {width:.2g}"
        return f"<{self.requests_per_s.mean:.3g}{spread} requests/s, {self.factor.mean:.3g} times the load>"
