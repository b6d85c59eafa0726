"""Interface of sinks, which store a run's rows during the run, and a sink that stores nothing."""

from collections.abc import Sequence
from typing import Protocol

from sundog.actors.kernel.actor import Actor
from sundog.actors.messages import Heard
from sundog.sim.record.columns import Columns, StepColumns
from sundog.sim.trace.record import TraceRequest


class Sink(Protocol):
    """Receiver of complete rows from a Recorder; rows and steps come in order."""

    def requests(self, columns: Columns, count: int, front_end_s: float) -> None:
        """Take the first `count` rows of requests."""
        ...

    def steps(self, replica: int, steps: StepColumns) -> None:
        """Take all steps of one replica that are in memory."""
        ...


class Unkept:
    """Output of a run that stores nothing."""

    sink = None
    tap = None
    has_left_out_journal = False
    listeners: tuple[Actor[Heard], ...] = ()

    def __enter__(self) -> "Unkept":
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def rows(self) -> None:
        """Return None: the rows are in the recorder."""
        return None

    def keep_trace(self, rows: Sequence[TraceRequest]) -> None:
        """Do nothing: the requests are not stored."""

    def finish(self, summary: str) -> None:
        """Do nothing: no files of the run are stored."""

    def finish_part(self, summary: str, until_s: float) -> None:
        """Do nothing: no files of a partial run are stored."""
