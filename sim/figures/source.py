"""Where the rows of a run are when its figures are made: in memory, or on disk."""

from collections.abc import Iterator, Sequence
from typing import Protocol

import numpy as np

from sim.figures.statistics.distribution import Part
from sim.record.columns import Columns, Steps
from sim.record.rows import Rows, step_intervals


class Source(Protocol):
    """Where the rows of a run are: in memory, or on disk."""

    def requests(self) -> Iterator[Rows]:
        """All requests in order, in parts."""
        ...

    def intervals(self) -> Iterator[Part]:
        """The intervals between the tokens of each request, in any order, with their numbers."""
        ...


class InMemory:
    """Columns and steps that are all in memory, as a Source."""

    def __init__(self, columns: Columns, steps: Sequence[Steps]) -> None:
        self._steps = steps
        self._rows = Rows.of(columns)

    def requests(self) -> Iterator[Rows]:
        yield self._rows

    def intervals(self) -> Iterator[Part]:
        for steps in self._steps:
            yield step_intervals(steps)
            yield np.array(steps.gaps_s), None
