"""A run that leaves no files."""

from actors.kernel.actor import Actor
from actors.messages import Heard


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
