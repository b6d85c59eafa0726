"""Backends of data-parallel ranks that step together because they share experts.

Ranks are engines of their own, each with its scheduler and its KV cache. A step begins for all of them at
once: when the last one has ended, or, if none is in flight, when any rank has a batch. Batches planned at
that instant are included; a later batch waits for the next step, and so does a request at an idle rank. In
real time an instant is a turn of the event loop.
"""

from collections import deque
from collections.abc import Sequence

from sundog.actors.core.batch import Batch, StepResult
from sundog.actors.kernel.actor import Reply
from sundog.actors.kernel.clock import CallTimer, Event, RunClock, run_clock
from sundog.actors.messages import Capacity
from sundog.sim.backend import Pace, TokenSource, instant, to_s, to_ticks
from sundog.sim.cost.composed import InStep
from sundog.sim.cost.work import CostModel, StepWork, WorkFold

LAST = "~"
"""Sort key behind any scheduler's name, so that a step begins after all schedulers of its instant have
planned.
"""


class Wave:
    """Ranks that step together, and the step in flight; all use the same `pace`."""

    __slots__ = ("_clock", "_cost", "_end_s", "_is_due", "_key", "_ranks", "_running", "pace")

    def __init__(self, cost: InStep, number: int, pace: Pace | None = None) -> None:
        self._cost, self._key = cost, f"{LAST}wave-{number}"
        self.pace = pace or Pace(cost)
        self._end_s = 0.0
        """End of the last step, or of the one in flight."""
        self._ranks: dict[int, RankBackend] = {}
        self._running: list[RankBackend] = []
        """Ranks with a batch in the step in flight."""
        self._is_due = False
        self._clock: RunClock | None = None

    def join(self, place: int, rank: "RankBackend") -> None:
        """Add a rank, perhaps in place of one that crashed."""
        self._ranks[place] = rank

    def wake(self) -> None:
        """Schedule a step for a rank's batch, unless one is in flight."""
        if self._running or self._is_due:
            return
        if self._clock is None:
            self._clock = run_clock()
        self._is_due = True
        self._clock.enter(self._clock.now_s(), Event.STEP_BEGIN, self._key, CallTimer(self.begin))

    def begin(self) -> None:
        """Begin a step with each rank's batch; empty batches are answered first."""
        assert self._clock is not None
        now_s, self._is_due = self._clock.now_s(), False
        ranks = list(self._ranks.values())
        num_empty = sum(rank.answer_empty(max(now_s, self._end_s)) for rank in ranks)
        if num_empty:  # their schedulers may have more to say in this instant
            if any(rank.has_batch for rank in ranks):
                self.wake()
            return
        self._running = [rank for rank in ranks if rank.has_batch]
        if not self._running:
            return
        try:
            works = [rank.begin() for rank in self._running]
            continues = any(rank.continues for rank in self._running)
            start = max(self.pace.planned_tick(now_s, continues), instant(self._end_s))
            ticks = to_ticks(self._cost.step_among_s(works))
        except Exception as error:  # noqa: BLE001  # all engines crash: none goes on without the others' experts
            running, self._running = self._running, []
            for rank in running:
                rank.fail(error)
            return
        self._end_s = max(to_s(start + ticks), now_s)
        self._clock.enter(self._end_s - self.pace.early_s, Event.STEP_END, self._key, CallTimer(self.end))

    def end(self) -> None:
        """End the step of all ranks."""
        running, self._running = self._running, []
        self.pace.done(self._end_s)
        for rank in running:
            rank.end(self._end_s)
        if any(rank.has_batch for rank in self._ranks.values()):
            self.wake()


class RankBackend:
    """Backend of one of the ranks that step together. A batch is one step."""

    __slots__ = ("_capacity", "_fold", "_queue", "_source", "_wave")

    def __init__(self, wave: Wave, place: int, source: TokenSource, capacity: Capacity) -> None:
        self._wave, self._source, self._capacity = wave, source, capacity
        self._fold = WorkFold(capacity.block_size)
        self._queue: deque[tuple[Batch, Reply[StepResult]]] = deque()
        wave.join(place, self)

    async def load(self) -> Capacity:
        """Return the capacity that was passed in."""
        return self._capacity

    def execute(self, batch: Batch) -> Reply[StepResult]:
        """Queue a step for the next common one."""
        assert batch.max_steps == 1, "what other ranks do changes each step"
        reply: Reply[StepResult] = Reply()
        self._queue.append((batch, reply))
        self._wave.wake()
        return reply

    def step_s(self, prefill_tokens: int, decodes: int, context_tokens: int) -> float:
        """Return the seconds of a step while the other ranks are idle, for policies."""
        return self._wave.pace.step_s(prefill_tokens, decodes, context_tokens)

    async def close(self) -> None:
        """Drop the queued batches, since the engine has ended."""
        self._queue.clear()

    @property
    def has_batch(self) -> bool:
        return bool(self._queue)

    @property
    def continues(self) -> bool:
        """Whether the rank had work all the time up to the last batch that was begun."""
        return self._fold.continues

    def answer_empty(self, now_s: float) -> int:
        """Answer the empty batches at the front of the queue; return their number."""
        count = 0
        while self._queue and not self._queue[0][0].num_tokens:
            self.begin()
            self.end(now_s)
            count += 1
        return count

    def begin(self) -> StepWork:
        """Begin the next batch, which stays in the queue until its end; return its work."""
        batch, _ = self._queue[0]
        work = self._fold.begin(batch)
        self._source.begin(batch)
        return work

    def fail(self, error: Exception) -> None:
        """Fail the batch, and drop those planned after it, since the engine ends."""
        _, reply = self._queue.popleft()
        self._queue.clear()
        reply.fail(error)

    def end(self, end_s: float) -> None:
        """Answer the batch, if its engine is still there."""
        if not self._queue:
            return
        batch, reply = self._queue.popleft()
        sampled = self._source.sample(1)
        self._fold.advance(1, sampled.accepted)
        reply.set(sampled.result(batch.step, (end_s,)))


def waves_of(costs: Sequence[CostModel]) -> list[Wave | None]:
    """Return the wave of each engine, if any; the ranks of a group are consecutive."""
    waves: list[Wave | None] = []
    while len(waves) < len(costs):
        cost = costs[len(waves)]
        waves += [Wave(cost, len(set(waves)))] * cost.num_ranks if isinstance(cost, InStep) else [None]
    return waves
