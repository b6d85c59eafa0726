"""Requests that arrive at once begin by and by, so that streams that run are written meanwhile.

Law: at most AT_A_TIME begin before every other task has had its turn, in the order of their arrival.
"""

from collections import deque
from collections.abc import Callable

import trio

AT_A_TIME = 2
"""About a millisecond of them, as long as `direct.AT_A_TIME` streams take."""


class Admission(trio.abc.Instrument):
    """The gate of one server: `run` it."""

    def __init__(self) -> None:
        self._waiting: deque[Callable[[], None]] = deque()
        self._num_begun = 0
        """Since every other task has had its turn."""
        self._task: trio.lowlevel.Task | None = None

    def after_io_wait(self, timeout: float) -> None:
        """Trio calls it once all tasks that could run have run."""
        self._num_begun = 0

    def enter(self, begin: Callable[[], None]) -> None:
        """Have a request begin, now or soon; `begin` must not raise."""
        if self._num_begun < AT_A_TIME and not self._waiting:
            self._num_begun += 1
            begin()
            return
        self._waiting.append(begin)
        if self._task is not None:
            trio.lowlevel.reschedule(self._task)
            self._task = None

    async def run(self) -> None:
        """For ever."""
        trio.lowlevel.add_instrument(self)
        try:
            while True:
                if not self._waiting:
                    self._task = trio.lowlevel.current_task()
                    await trio.lowlevel.wait_task_rescheduled(self._abort)
                await trio.lowlevel.checkpoint()
                while self._waiting and self._num_begun < AT_A_TIME:
                    self._num_begun += 1
                    self._waiting.popleft()()
        finally:
            trio.lowlevel.remove_instrument(self)

    def _abort(self, _raise_cancel: object) -> trio.lowlevel.Abort:
        self._task = None
        return trio.lowlevel.Abort.SUCCEEDED
