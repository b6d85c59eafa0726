"""Timing of an absent GPU, on a clock that does not wait.

If the host is late, later steps catch up; lateness that cannot be caught up is counted.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass, field

import trio

from sundog.actors.metrics.totals import Lag
from sundog.sim.backend import Pace, instant, to_s, to_ticks
from sundog.sim.cost.work import CostModel, StepWork

log = logging.getLogger("sundog.emulation")

CATCH_UP_S = 0.05
"""Seconds of the server's clock by which a step may begin in the past, to make up for the host's time."""
EARLY_S = 0.0005
"""Seconds by which timers are set earlier: epoll rounds up to whole milliseconds, by half of one on
average.
"""
SAY_EVERY_S = 10.0
WORTH_SAYING = 0.01
"""Share of the time that must be lost before a line is logged."""


@dataclass(slots=True)
class Told:
    """Time of the last log line, and the lateness that had been lost by then."""

    time_s: float = field(default_factory=trio.current_time)
    lost_s: float = 0.0


class LivePace(Pace):
    """Pace for real time, or for a clock that runs `time_scale` times as fast.

    A step begins at the modelled end of the previous one, up to CATCH_UP_S in the past; none ends in the
    past. Lateness beyond that is lost, and recorded in `lag`. What `before_step` raises crashes the engine.
    """

    def __init__(
        self, cost: CostModel, replica: int, lag: Lag, before_step: Callable[[], None] = lambda: None
    ) -> None:
        super().__init__(cost, f"runner-{replica}")
        self.early_s = EARLY_S * lag.time_scale
        self._lag, self._replica = lag, replica
        self._before_step = before_step
        self._catch_up = instant(CATCH_UP_S * lag.time_scale)
        self._end_tick = 0.0
        self._told: Told | None = None

    def end_times_s(
        self, work: StepWork, num_steps: int, now_s: float, continues: bool = False
    ) -> tuple[float, ...]:
        """Return the end of the single step: an emulated server does one at a time."""
        assert num_steps == 1, "a streamed answer needs its tokens one by one"
        start = max(self.planned_tick(now_s, continues), self._end_tick)
        return (max(to_s(start + to_ticks(self.cost.step_s(work))), now_s),)

    def planned_tick(self, now_s: float, continues: bool) -> float:
        """Return when the last step ended if the engine has had work since; lateness beyond CATCH_UP_S is
        dropped.
        """
        self._before_step()
        now = instant(now_s)
        if not continues or self._end_tick >= now:
            return now
        start = max(self._end_tick, now - self._catch_up)
        self._lag.lost_s[self._replica] += to_s(start - self._end_tick)
        return start

    def done(self, end_s: float) -> None:
        """Record that a step due at `end_s` ends now."""
        self._end_tick = instant(end_s)
        now_s = trio.current_time()
        self._lag.late_s[self._replica] = max(now_s - end_s, 0.0)
        self._say(now_s)

    def _say(self, now_s: float) -> None:
        lost_s = self._lag.lost_s[self._replica]
        told = self._told = self._told or Told()
        passed_s = now_s - told.time_s
        if passed_s < SAY_EVERY_S * self._lag.time_scale:
            return
        lost, self._told = lost_s - told.lost_s, Told(now_s, lost_s)
        if lost > WORTH_SAYING * passed_s:
            left = passed_s - lost
            slower = f"{passed_s / left:.2f} times as long as" if left > 0 else "many times longer than"
            log.warning(
                "engine %d cannot keep the pace: in the last %.0f s its steps took %s the model says;"
                " this machine is too slow: lower the load, or use --time-scale %.2g",
                self._replica,
                passed_s,
                slower,
                self._lag.time_scale * max(left / passed_s, 0.05) * 0.8,
            )
