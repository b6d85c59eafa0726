"""The cost backend: what a Runner runs where a GPU would be. It computes durations and waits.

On a virtual clock the wait is an event; on the wall clock it is a sleep, and the graph around it
serves at the pace of a GPU that is not there. Durations are whole ticks (`sim.ticks`), so that a
run of steps done in one event ends at the very times of the steps done one by one.
"""

from bisect import bisect_left
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple, Protocol

import numpy as np
import trio

from actors.clock import Event, now_s, sleep_until
from actors.core.batch import Batch, StepResult
from actors.messages import Capacity
from actors.runner import Backend
from sim.cost.work import CostModel, StepWork
from sim.fold import WorkFold
from sim.ticks import TICKS_PER_S, instant, to_s, to_tick_array, to_ticks


class Sampled(NamedTuple):
    """What some steps sampled: `tokens` None where they are only counted, else of one step.

    `ended` names the requests whose token in the last step was the end token.
    """

    tokens: tuple[tuple[str, int], ...] | None
    ended: tuple[str, ...]


class TokenSource(Protocol):
    """Where the tokens of a run come from, and with them the end of each request."""

    def begin(self, batch: Batch) -> int:
        """Fold the diff in; the most steps to do: through the first in which a request ends."""
        ...

    def sample(self, num_steps: int) -> Sampled:
        """Tokens of the `num_steps` steps that were done, at most what `begin` allowed."""
        ...


@dataclass(slots=True)
class Pace:
    """Turns work into end times on the run's clock, and waits for them.

    `key` orders this backend's steps among others that end at the same instant. A step begins
    now. On the wall clock, `catch_up_s` lets one that continues earlier work begin when the last
    one ended, up to so much earlier, which makes up for what the host took in between; it ends
    now at the earliest. On a virtual clock it must stay 0.
    """

    cost: CostModel
    key: str = ""
    catch_up_s: float = 0.0
    _end_tick: int = 0
    _sleep: trio.CancelScope | None = None
    _interrupted: bool = False

    def end_times_s(
        self, work: StepWork, num_steps: int, continues: bool = False
    ) -> tuple[float, ...]:
        """When each of `num_steps` steps of `work` ends.

        `continues` says that there has been work ever since the last step ended.
        """
        now = start = instant(now_s())
        if self.catch_up_s and continues and self._end_tick < now:
            start = max(self._end_tick, now - instant(self.catch_up_s))
        if num_steps == 1:
            return (to_s(max(start + to_ticks(self.cost.step_s(work)), now)),)
        if num_steps < 8:
            # Below this the set-up of numpy costs more than the steps: same formula, same bits.
            durations = [to_ticks(self.cost.step_s(step)) for step in _steps(work, num_steps)]
            return tuple(map(to_s, accumulate(durations, initial=start)))[1:]
        ticks = np.cumsum(to_tick_array(self.cost.run_s(work, num_steps))) + start
        return tuple((ticks / TICKS_PER_S).tolist())

    async def wait(self, end_times_s: tuple[float, ...]) -> int:
        """Wait for the last end time, or the next one if interrupted; how many were reached."""
        num_steps = len(end_times_s)
        if num_steps > 1:
            num_steps = await self._wait_for_run(end_times_s)
        else:
            await sleep_until(end_times_s[0], Event.STEP_END, self.key)
        self._end_tick = instant(end_times_s[num_steps - 1])
        return num_steps

    def interrupt(self) -> None:
        """End the run under way, or about to begin, at its next step boundary."""
        self._interrupted = True
        if self._sleep is not None:
            self._sleep.cancel()

    async def _wait_for_run(self, end_times_s: tuple[float, ...]) -> int:
        num_steps = len(end_times_s)
        if not self._interrupted:
            with trio.CancelScope() as self._sleep:
                await sleep_until(end_times_s[-1], Event.STEP_END, self.key)
            self._sleep = None
        if self._interrupted and now_s() < end_times_s[-1]:
            num_steps = bisect_left(end_times_s, now_s()) + 1
            await sleep_until(end_times_s[num_steps - 1], Event.STEP_END, self.key)
        self._interrupted = False
        return num_steps


def _steps(work: StepWork, num_steps: int) -> list[StepWork]:
    decodes, context, samples = work.num_decodes, work.decode_context_tokens, work.num_samples
    return [StepWork(decodes, context + index * decodes, (), samples) for index in range(num_steps)]


class CostBackend:
    """A Backend of modelled time and handed-in tokens.

    `source` is the oracle of a trace, or canned text for an emulated server. A batch without tokens
    takes no time. Costs O(what the batch changes), plus O(steps) for their end times.
    """

    __slots__ = ("_capacity", "_fold", "_pace", "_source")

    def __init__(self, pace: Pace, source: TokenSource, capacity: Capacity) -> None:
        self._pace, self._source, self._capacity = pace, source, capacity
        self._fold = WorkFold()

    async def load(self) -> Capacity:
        """The capacity that was handed in."""
        return self._capacity

    async def execute(self, batch: Batch) -> StepResult:
        """Do up to `max_steps` steps, ending at the first in which a request ends."""
        work = self._fold.begin(batch)
        num_steps = self._source.begin(batch)
        if work.num_tokens:
            end_times_s = self._pace.end_times_s(work, num_steps, self._fold.continues)
            num_steps = await self._pace.wait(end_times_s)
        else:
            num_steps, end_times_s = 1, (now_s(),)
            await trio.lowlevel.checkpoint()
        self._fold.advance(num_steps)
        tokens, ended = self._source.sample(num_steps)
        return StepResult(batch.step, end_times_s[:num_steps], tokens, ended)

    def interrupt(self) -> None:
        """End the run under way at its next step boundary."""
        self._pace.interrupt()

    async def close(self) -> None:
        """Nothing was taken."""


class Paced:
    """Real tokens of an inner Backend at the modelled pace: torch on the virtual clock.

    Does one step per batch. Where the inner backend itself takes time, the step ends when both
    the model and the inner backend are done.
    """

    __slots__ = ("_fold", "_inner", "_pace")

    def __init__(self, inner: Backend, pace: Pace) -> None:
        self._inner, self._pace = inner, pace
        self._fold = WorkFold()

    async def load(self) -> Capacity:
        """The inner backend's capacity."""
        return await self._inner.load()

    async def execute(self, batch: Batch) -> StepResult:
        """One step: the inner backend's tokens, the cost model's end time."""
        work = self._fold.begin(batch)
        end_times_s: tuple[float, ...] = ()
        if work.num_tokens:
            end_times_s = self._pace.end_times_s(work, 1, self._fold.continues)
        result = await self._inner.execute(batch)
        if end_times_s:
            await self._pace.wait(end_times_s)
        self._fold.advance(1)
        end_s = max((now_s(), *end_times_s))
        return StepResult(batch.step, (end_s,), result.tokens, result.ended)

    async def close(self) -> None:
        """Close the inner backend."""
        await self._inner.close()
