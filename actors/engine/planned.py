"""A step that has been planned and not ended yet, as the Scheduler remembers it."""

from dataclasses import dataclass

from actors.core.batch import Batch, Blocked


@dataclass(init=False, slots=True)
class Planned:
    """A step whose result is to come.

    `num_taken_blocks` is what its plan took from the pool, less what it gave back by preemption; of a run's
    first step. The two other numbers are what the plan left.
    """

    batch: Batch
    blocked: Blocked | None
    num_taken_blocks: int
    num_free_blocks: int
    num_waiting: int
    start_s: float

    def __init__(
        self,
        batch: Batch,
        blocked: Blocked | None,
        num_taken_blocks: int,
        num_free_blocks: int,
        num_waiting: int,
        start_s: float,
    ) -> None:
        self.batch = batch
        self.blocked = blocked
        self.num_taken_blocks = num_taken_blocks
        self.num_free_blocks = num_free_blocks
        self.num_waiting = num_waiting
        self.start_s = start_s
