"""The cost backend: it executes a batch by waiting for as long as a GPU would take.

On a virtual clock the wait is an event. On the wall clock it is a sleep, and the graph serves at the pace of
that GPU. Durations are whole ticks, so that a decode run in one event ends at the same times as its steps
one by one.

A tick is 2**-30 s. A float64 represents every multiple of it below 2**23 s (97 days) exactly. With a step's
start and duration in whole ticks its end is therefore exact, however steps are grouped into runs. Rounding
changes a duration by less than half a nanosecond.
"""

from array import array
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np
from mypy_extensions import mypyc_attr
from numpy.typing import NDArray

from sundog.actors.core.batch import Batch, StepResult
from sundog.actors.core.params.logprobs import PromptLogprobs, TokenLogprobs
from sundog.actors.core.records import dataclass
from sundog.actors.engine.backend import Backend
from sundog.actors.engine.executor import QueuesBatches
from sundog.actors.kernel.actor import Reply
from sundog.actors.kernel.clock import STEP_END, RunClock, Timer, now_s, run_clock, sleep_until
from sundog.actors.kernel.reply import Reader
from sundog.actors.messages import Capacity
from sundog.sim.cost.work import CostModel, StepWork, WorkFold

TICKS_PER_S: Final = 1073741824.0
WHOLE: Final = 4503599627370496.0
"""Float64 numbers are whole from here on, so that adding it to a smaller number and subtracting it rounds
that number.
"""


def rounded(number: float) -> float:
    """Round a non-negative number, halves to even, as `round` does, without making an integer."""
    return number if number >= WHOLE else (number + WHOLE) - WHOLE


def to_ticks(seconds: float) -> float:
    """Return a duration in whole ticks, at least one, halves rounded to even."""
    ticks = seconds * TICKS_PER_S
    if ticks < WHOLE:
        ticks = (ticks + WHOLE) - WHOLE  # `rounded`, without a call for each step
    return 1.0 if ticks < 1.0 else ticks


def end_times_s(start_tick: float, seconds: NDArray[np.float64]) -> "array[float]":
    """Return the end times of steps with these durations, one after another from `start_tick` on.

    All sums are of whole ticks in float64, so that they equal those of `to_ticks` and `to_s`. The result is
    an array because a run that is cut short needs only the first of them.
    """
    ticks = seconds * TICKS_PER_S
    np.rint(ticks, out=ticks)
    np.maximum(ticks, 1.0, out=ticks)
    ticks.cumsum(out=ticks)
    ticks += start_tick
    ticks /= TICKS_PER_S
    return array("d", ticks.tobytes())


def instant(time_s: float) -> float:
    """Return an instant in whole ticks, halves rounded to even."""
    ticks = time_s * TICKS_PER_S
    return ticks if ticks >= WHOLE else (ticks + WHOLE) - WHOLE  # `rounded`, without a call for each step


def to_s(ticks: float) -> float:
    """Return ticks in seconds; exact below 2**23 s."""
    return ticks / TICKS_PER_S


@dataclass(slots=True)
class SampledSteps:
    """Tokens sampled by some steps: `tokens` of one step, or None if tokens are only counted.

    `ended` lists the requests whose token in the last step was the end token. The other fields are as in a
    StepResult.
    """

    tokens: tuple[tuple[str, int], ...] | None
    ended: tuple[str, ...]
    accepted: tuple[tuple[str, int], ...] = ()
    drafts: tuple[tuple[str, int], ...] = ()
    logprobs: tuple[tuple[str, TokenLogprobs], ...] = ()
    prompt_logprobs: tuple[PromptLogprobs, ...] = ()
    surplus: tuple[tuple[str, int], ...] = ()

    def result(self, step: int, end_times_s: Sequence[float]) -> StepResult:
        """Return the StepResult of a batch."""
        return StepResult(
            step,
            end_times_s,
            tokens=self.tokens,
            ended=self.ended,
            failed=(),
            logprobs=self.logprobs,
            prompt_logprobs=self.prompt_logprobs,
            accepted=self.accepted,
            drafts=self.drafts,
            surplus=self.surplus,
        )


@mypyc_attr(allow_interpreted_subclasses=True)
class TokenSource:
    """Source of sampled tokens, and thereby of the end of each request."""

    __slots__ = ()

    def begin(self, batch: Batch) -> int:
        """Apply the batch; return how many steps to do, through the first in which a request ends."""
        raise NotImplementedError

    def sample(self, num_steps: int) -> SampledSteps:
        """Sample the tokens of the `num_steps` steps that were done, at most what `begin` returned."""
        raise NotImplementedError


FEW: Final = 96
"""Number of steps below which plain sums are faster than numpy; both give the same bits."""


@mypyc_attr(allow_interpreted_subclasses=True)
class Pace:
    """Model of when steps end on the run's clock.

    `key` orders this backend's steps among others that end at the same instant. The wait for a step stops
    `early_s` before its end; 0 on an exact clock.
    """

    def __init__(self, cost: CostModel, key: str = "") -> None:
        self.cost, self.key = cost, key
        self.early_s = 0.0

    def end_times_s(
        self, work: StepWork, num_steps: int, now_s: float, continues: bool = False
    ) -> Sequence[float]:
        """Return the end times of `num_steps` equal steps of `work`, the first of which begins now.

        `continues` is whether the engine has had work ever since its last step ended.
        """
        start = instant(now_s)
        if num_steps == 1:
            return (to_s(start + to_ticks(self.cost.step_s(work))),)
        if num_steps >= FEW:
            return end_times_s(start, self.cost.run_s(work, num_steps))
        ends = []
        for seconds in self.cost.few_s(work, num_steps):
            ticks = seconds * TICKS_PER_S  # `to_ticks`, without a call for each step
            if ticks < WHOLE:
                ticks = (ticks + WHOLE) - WHOLE
            start += 1.0 if ticks < 1.0 else ticks
            ends.append(start / TICKS_PER_S)
        return ends

    def step_s(self, prefill_tokens: int, decodes: int, context_tokens: int) -> float:
        """Return the seconds of a step with these counts."""
        chunks = ((prefill_tokens, 0),) if prefill_tokens else ()
        return self.cost.step_s(StepWork(decodes, context_tokens, chunks, decodes + len(chunks)))

    def planned_tick(self, now_s: float, continues: bool) -> float:
        """Record that a batch is planned now; it may wait for earlier ones."""
        return instant(now_s)

    def done(self, end_s: float) -> None:
        """Record when the last step that was done ended."""


class StepEnd(Timer):
    """End of a backend's steps in flight."""

    __slots__ = ("_backend",)

    def __init__(self, backend: "CostBackend") -> None:
        super().__init__()
        self._backend = backend

    def call(self) -> None:
        self._backend.end()

    def __repr__(self) -> str:
        return f"the end of a step of {self._backend!r}"


class CostBackend(QueuesBatches):
    """Backend with modelled time and tokens from a source.

    `source` is the oracle of a trace, or canned text for an emulated server. A batch without tokens takes no
    time. Costs O(changes of the batch), plus O(steps) for their end times.
    """

    def __init__(self, pace: Pace, source: TokenSource, capacity: Capacity) -> None:
        self._pace, self._source, self._capacity = pace, source, capacity
        self._fold = WorkFold(capacity.block_size, capacity.num_blocks)
        self._queue: list[tuple[Batch, Reader]] = []
        self._batch: Batch | None = None
        self._reply: Reader = Reply[StepResult]()
        self._end_times_s: Sequence[float] = ()
        """End times of the steps in flight, or of the last ones."""
        self._end_s = 0.0
        """Last of these."""
        self._timer = StepEnd(self)
        self._clock: RunClock | None = None

    async def load(self) -> Capacity:
        """Return the given capacity."""
        return self._capacity

    def execute(self, batch: Batch) -> Reply[StepResult]:
        """Execute up to `max_steps` steps, through the first in which a request ends."""
        reply: Reply[StepResult] = Reply()
        self.enqueue(batch, reply)
        return reply

    def enqueue(self, batch: Batch, reply: Reader) -> None:
        """Execute a batch as `execute` does; its result goes to `reply`."""
        if self._batch is None:
            self._begin(batch, reply)
        else:
            self._queue.append((batch, reply))

    def interrupt(self) -> None:
        """End the decode run at its next step boundary."""
        if self._batch is None or len(self._end_times_s) == 1:
            return
        clock = self._run_clock()
        num_steps = bisect_left(self._end_times_s, clock.now_s()) + 1
        if num_steps < len(self._end_times_s):
            self._timer.stop()
            self._timer = StepEnd(self)
            self._end_times_s = self._end_times_s[:num_steps]
            self._wait(clock)

    def step_s(self, prefill_tokens: int, decodes: int, context_tokens: int) -> float:
        """Return the seconds of a step, for policies."""
        return self._pace.step_s(prefill_tokens, decodes, context_tokens)

    def cut(self) -> None:
        """End the decode run with the last step that has ended by now, if any; the rest is lost."""
        num_steps = bisect_right(self._end_times_s, self._run_clock().now_s())
        if self._batch is not None and 0 < num_steps < len(self._end_times_s):
            self._timer.stop()
            self._timer = StepEnd(self)
            self._end_times_s = self._end_times_s[:num_steps]
            self._end_s = self._end_times_s[-1]
            self.end()
        self._timer.stop()

    async def close(self) -> None:
        """Do nothing: the backend holds no resources."""

    def _begin(self, batch: Batch, reply: Reader) -> None:
        self._batch, self._reply = batch, reply
        work = self._fold.begin(batch)
        num_steps = self._source.begin(batch)
        clock = self._clock or self._run_clock()
        now_s = clock.now_s()
        if work.num_tokens:
            self._end_times_s = self._pace.end_times_s(work, num_steps, now_s, self._fold.continues)
        else:  # a timer that was set early may call before the last step's end
            self._end_times_s = (max(now_s, self._end_s) if self._end_times_s else now_s,)
        self._wait(clock)

    def _wait(self, clock: RunClock) -> None:
        self._end_s = self._end_times_s[-1]
        clock.enter(self._end_s - self._pace.early_s, STEP_END, self._pace.key, self._timer)

    def _run_clock(self) -> RunClock:
        if self._clock is None:
            self._clock = run_clock()
        return self._clock

    def end(self) -> None:
        """Answer the batch whose last step has ended, and begin the next one."""
        batch, reply = self._batch, self._reply
        assert batch is not None
        self._batch = None
        try:
            end_times_s = self._end_times_s
            num_steps = len(end_times_s)
            if num_steps < FEW:  # of many steps it is an array, which is kept as it is
                end_times_s = tuple(end_times_s)
            self._pace.done(self._end_s)
            sampled = self._source.sample(num_steps)
            self._fold.advance(num_steps, sampled.accepted)
            result = sampled.result(batch.step, end_times_s)
            if self._queue:
                following, its_reply = self._queue.pop(0)
                self._begin(following, its_reply)
        except Exception as error:
            reply.take_answer(None, error)
        else:
            reply.take_answer(result, None)


def accepted_of(batch: Batch, result: StepResult) -> tuple[tuple[str, int], ...]:
    """Return how many drafts of each request were accepted: counted from its tokens if these are known."""
    if not batch.drafts or result.tokens is None:
        return result.accepted
    counts = Counter(name for name, _ in result.tokens)
    return tuple((name, counts[name] - 1) for name, _ in batch.drafts if name in counts)


class Paced:
    """Backend that takes tokens from an inner backend and time from a cost model.

    It does one step per batch. If the inner backend takes time itself, the step ends when both are done.
    """

    __slots__ = ("_fold", "_inner", "_pace")

    def __init__(self, inner: Backend, pace: Pace) -> None:
        self._inner, self._pace = inner, pace
        self._fold = WorkFold()

    async def load(self) -> Capacity:
        """Load the inner backend."""
        return await self._inner.load()

    async def execute(self, batch: Batch) -> StepResult:
        """Execute a step; tokens come from the inner backend, the end time from the cost model."""
        work = self._fold.begin(batch)
        end_times_s: Sequence[float] = ()
        if work.num_tokens:
            end_times_s = self._pace.end_times_s(work, 1, now_s(), self._fold.continues)
        result = await self._inner.execute(batch)
        if end_times_s:
            await sleep_until(end_times_s[0], STEP_END, self._pace.key)
            self._pace.done(end_times_s[0])
        self._fold.advance(1, accepted_of(batch, result))
        return replace(result, end_times_s=(max((now_s(), *end_times_s)),))

    def step_s(self, prefill_tokens: int, decodes: int, context_tokens: int) -> float:
        """Return the seconds of a step, for policies."""
        return self._pace.step_s(prefill_tokens, decodes, context_tokens)

    async def close(self) -> None:
        """Close the inner backend as well."""
        await self._inner.close()
