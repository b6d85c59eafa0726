"""A run of decode steps that a Scheduler has under way, and the requests that come in the middle of it.

Law: what is told of a run is told of its steps, whether or not it was ended for what came.
"""

from bisect import bisect_left
from collections.abc import Sequence

from actors.core.decode_runs import extend
from actors.core.state import SchedulerState
from actors.engine.inbox import Inbox, Tracer


class RunUnderWay:
    """Says what a run need not end for, and plans the steps that it has done."""

    __slots__ = ("_has_tracer", "_inbox", "_late_s", "_state", "waited")

    def __init__(self, state: SchedulerState, inbox: Inbox, tracer: Tracer | None) -> None:
        self._state = state
        self._inbox = inbox
        self._has_tracer = tracer is not None
        self._late_s: list[float] = []
        """When requests came that the run goes on for."""
        self.waited: tuple[tuple[int, int, int], ...] = ()
        """As a StepOutput says it. Before the run's end: the boundary beyond which it goes on for a step."""

    def has_room_behind(self, arrival_s: float) -> bool:
        """Whether a request that comes in the middle of the run has to wait for its end anyway."""
        if self._has_tracer or not self._state.has_line:
            return False
        self._late_s.append(arrival_s)
        return True

    def may_go_on(self) -> bool:
        """Whether the step planned ahead of a request differs in nothing from those of the run."""
        state = self._state
        is_ahead = state.config.async_scheduling and not self._has_tracer
        return is_ahead and not (state.waiting and state.policy.is_dynamic)

    def queues_inbox(self) -> bool:
        """Whether all that came before the run began has to wait for its end anyway: if so, it is queued."""
        inbox = self._inbox
        if inbox.is_empty:
            return True
        if self._has_tracer or not (inbox.has_only_requests and self._state.has_line):
            return False
        inbox.take_all()
        return True

    def passed(self, num_steps: int) -> None:
        """So many steps are done, and the run goes on for the one that is planned ahead."""
        state = self._state
        extend(state, num_steps)
        num_waiting = len(state.waiting) + self._inbox.num_new
        self.waited = ((num_steps, num_waiting, state.kv.pool.num_free),)

    def ended(self, end_times_s: Sequence[float]) -> None:
        """Plan the steps that were done after the first, and note what waited where requests came."""
        if not self.waited:
            num_planned = self._note_late(end_times_s) if self._late_s else 0
            if len(end_times_s) - 1 > num_planned:
                extend(self._state, len(end_times_s) - 1 - num_planned)

    def _note_late(self, end_times_s: Sequence[float]) -> int:
        """Plan the steps until the last boundary that requests came before; returns how many these are."""
        state, num_planned = self._state, 0
        waited: list[tuple[int, int, int]] = []
        for num_late, late_s in enumerate(self._late_s, 1):
            until = bisect_left(end_times_s, late_s) + 1
            if until >= len(end_times_s):
                break
            # Planning ahead, a step more has its blocks when these are done.
            ahead = until if state.config.async_scheduling else until - 1
            if ahead > num_planned:
                extend(state, ahead - num_planned)
                num_planned = ahead
            if waited and waited[-1][0] == until:
                waited.pop()
            waited.append((until, len(state.waiting) + num_late, state.kv.pool.num_free))
        self._late_s.clear()
        self.waited = tuple(waited)
        return num_planned

    def take_waited(self) -> tuple[tuple[int, int, int], ...]:
        """What the StepOutput says of the run, which is over."""
        waited, self.waited = self.waited, ()
        return waited
