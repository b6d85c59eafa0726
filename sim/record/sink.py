"""Where a Recorder's complete rows and steps go as a run goes on."""

from typing import Protocol

from sim.record.columns import Columns, Steps


class Sink(Protocol):
    """Takes what a Recorder has complete; rows and steps come in order."""

    def requests(self, columns: Columns, count: int, front_end_s: float) -> None:
        """The first `count` rows."""
        ...

    def steps(self, replica: int, steps: Steps) -> None:
        """All steps of one replica that are in memory."""
        ...
