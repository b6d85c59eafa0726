"""What happens while a trace is driven by steps, each told at its moment."""

from typing import NamedTuple

from actors.core.batch import Batch, Blocked, Finish, StepResult
from sim.schedule.step_trace import When


class Added(NamedTuple):
    """A request was sent; `step` is the next to be planned."""

    step: int
    request_id: str


class Refused(NamedTuple):
    """The policy refused a request that came before the plan of `step`."""

    step: int
    finish: Finish


class Aborted(NamedTuple):
    """An abort took effect; `finished` are those that had not ended."""

    step: int
    when: When
    request_ids: tuple[str, ...]
    finished: tuple[Finish, ...]


class WasReset(NamedTuple):
    """A reset of the prefix cache was `done`, or refused."""

    step: int
    done: bool


class Planned(NamedTuple):
    """A step was planned; a run of steps is one batch."""

    step: int
    batch: Batch
    blocked: Blocked | None


class Updated(NamedTuple):
    """The result of a step, or the last of a run, was taken in; that of `dropped` was ignored."""

    step: int
    result: StepResult
    dropped: frozenset[str]
    finished: tuple[Finish, ...]


class HasStalled(NamedTuple):
    """Too many steps in a row led nowhere: the run ended."""

    step: int
    reason: str


class Ended(NamedTuple):
    """Nothing is left to come."""

    step: int


Happening = Added | Refused | Aborted | WasReset | Planned | Updated | HasStalled | Ended
