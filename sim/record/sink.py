"""The seam through which the rows of a run leave as it goes on, and a run that keeps nothing."""

from collections.abc import Sequence
from typing import Protocol

from sundog.actors.kernel.actor import Actor
from sundog.actors.messages import Heard
from sundog.sim.record.columns import Columns, StepColumns
from sundog.sim.trace.record import TraceRequest


class Sink(Protocol):
    """Takes what a Recorder has complete; rows and steps come in order."""

    def requests(self, columns: Columns, count: int, front_end_s: float) -> None:
        """Take the first `count` rows of requests."""
        ...

    def steps(self, replica: int, steps: StepColumns) -> None:
        """Take all steps of one replica that are in memory."""
        ...


class Unkept:
    """The output of a run of which nothing is kept."""

    sink = None
    tap = None
    has_left_out_journal = False
    listeners: tuple[Actor[Heard], ...] = ()

    def __enter__(self) -> "Unkept":
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def rows(self) -> None:
        """The rows are in the recorder."""
        return None

    def keep_trace(self, rows: Sequence[TraceRequest]) -> None:
        """Keep nothing of the requests."""

    def finish(self, summary: str) -> None:
        """Leave no files of the run behind."""

    def finish_part(self, summary: str, until_s: float) -> None:
        """Leave no files of a part behind."""
