"""Where the rows of a run go as it goes on: to a Sink, or nowhere."""

from typing import Protocol

from actors.kernel.actor import Actor
from actors.messages import Heard
from sim.record.columns import Columns, Steps


class Sink(Protocol):
    """Takes what a Recorder has complete; rows and steps come in order."""

    def requests(self, columns: Columns, count: int, front_end_s: float) -> None:
        """The first `count` rows."""
        ...

    def steps(self, replica: int, steps: Steps) -> None:
        """All steps of one replica that are in memory."""
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

    def finish(self, summary: str) -> None:
        """Nothing to do."""

    def finish_part(self, summary: str, until_s: float) -> None:
        """Nothing to do."""
