"""Test whether a scheduler's state needs another step."""

from sundog.actors.core.step.state import SchedulerState


def has_work(state: SchedulerState) -> bool:
    """Whether another plan is due: a request is unfinished, or ended after the last batch."""
    return bool(state.requests or state.finished_ids)
