"""A step that has been planned and not ended yet, as the Scheduler remembers it."""

from dataclasses import dataclass

from actors.core.batch import Batch, Blocked


@dataclass(slots=True)
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
