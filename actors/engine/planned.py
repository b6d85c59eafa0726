"""What a Scheduler keeps of a step under way, and what it tells itself."""

from actors.core.batch import Batch, Blocked
from actors.core.records import dataclass


class BeginStep:
    """The Scheduler tells itself to begin a step: an event of its own, so that whatever comes in
    an instant is in the step that begins in it."""


@dataclass(init=False, slots=True)
class Planned:
    """A step whose result is to come."""

    batch: Batch
    blocked: Blocked | None
    num_free_blocks: int
    num_waiting: int
    start_s: float

    def __init__(
        self, batch: Batch, blocked: Blocked | None, num_free_blocks: int, num_waiting: int, start_s: float
    ) -> None:
        self.batch = batch
        self.blocked = blocked
        self.num_free_blocks = num_free_blocks
        self.num_waiting = num_waiting
        self.start_s = start_s


BEGIN_STEP = BeginStep()
