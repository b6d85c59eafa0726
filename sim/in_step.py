"""The backends of data-parallel ranks that go in step, as the experts they share make them.

Ranks are engines of their own, each with its scheduler and its KV cache. A step begins for all of them at
once: when the last one has ended, or, if none is under way, when any rank has a batch. What schedulers plan
in that instant is in it; a batch that comes later waits for the next, and so does a request at an idle rank.
"""

from collections import deque
from collections.abc import Sequence

from actors.actor import Reply
from actors.clock import Event, RunClock, Timer
from actors.core.batch import Batch, StepResult
from actors.messages import Capacity
from sim.cost.in_step import InStep
from sim.cost.work import StepWork
from sim.cost.work_fold import WorkFold
from sim.ticks import instant, to_s, to_ticks
from sim.token_source import TokenSource

LAST = "~"
"""Behind the name of any scheduler: a step begins when all that begin theirs in this instant have planned."""


class Wave:
    """The ranks that go in step, and the step under way."""

    __slots__ = ("_clock", "_cost", "_is_due", "_key", "_ranks", "_running")

    def __init__(self, cost: InStep, number: int) -> None:
        self._cost, self._key = cost, f"{LAST}wave-{number}"
        self._ranks: list[RankBackend] = []
        self._running: list[RankBackend] = []
        """Those with a batch in the step under way."""
        self._is_due = False
        self._clock: RunClock | None = None

    def join(self, rank: "RankBackend") -> None:
        self._ranks.append(rank)

    def wake(self) -> None:
        """A rank has a batch: a step is due, unless one is under way."""
        if self._running or self._is_due:
            return
        if self._clock is None:
            self._clock = RunClock()
        self._is_due = True
        self._clock.enter(self._clock.now_s(), Event.STEP_BEGIN, self._key, _StepBegins(self))

    def begin(self) -> None:
        """Begin a step with what each rank has; batches that compute nothing are answered first."""
        assert self._clock is not None
        now_s, self._is_due = self._clock.now_s(), False
        num_empty = sum(rank.answer_empty(now_s) for rank in self._ranks)
        if num_empty:  # their schedulers may have more to say in this instant
            if any(rank.has_batch for rank in self._ranks):
                self.wake()
            return
        works: list[StepWork] = []
        for rank in self._ranks:
            if rank.has_batch:
                self._running.append(rank)
                works.append(rank.begin())
        if works:
            ticks = to_ticks(self._cost.step_among_s(works))
            end_s = to_s(instant(now_s) + ticks)
            self._clock.enter(end_s, Event.STEP_END, self._key, _StepEnds(self, end_s))

    def end(self, end_s: float) -> None:
        """All ranks are through."""
        running, self._running = self._running, []
        for rank in running:
            rank.end(end_s)
        if any(rank.has_batch for rank in self._ranks):
            self.wake()


class RankBackend:
    """The Backend of one of these ranks. A batch is one step."""

    __slots__ = ("_capacity", "_fold", "_queue", "_source", "_wave")

    def __init__(self, wave: Wave, source: TokenSource, capacity: Capacity) -> None:
        self._wave, self._source, self._capacity = wave, source, capacity
        self._fold = WorkFold(capacity.block_size)
        self._queue: deque[tuple[Batch, Reply[StepResult]]] = deque()
        wave.join(self)

    async def load(self) -> Capacity:
        """The capacity that was handed in."""
        return self._capacity

    def execute(self, batch: Batch) -> Reply[StepResult]:
        """Do a step with the other ranks when it is due."""
        assert batch.max_steps == 1, "what other ranks do changes each step"
        reply: Reply[StepResult] = Reply()
        self._queue.append((batch, reply))
        self._wave.wake()
        return reply

    async def close(self) -> None:
        """Nothing was taken."""

    @property
    def has_batch(self) -> bool:
        return bool(self._queue)

    def answer_empty(self, now_s: float) -> int:
        """Answer the batches in front that compute nothing; returns their number."""
        count = 0
        while self._queue and not self._queue[0][0].num_tokens:
            self.begin()
            self.end(now_s)
            count += 1
        return count

    def begin(self) -> StepWork:
        """Take up the next batch, which stays in the queue until its end; its work."""
        batch, _ = self._queue[0]
        work = self._fold.begin(batch)
        self._source.begin(batch)
        return work

    def end(self, end_s: float) -> None:
        """The batch is done."""
        batch, reply = self._queue.popleft()
        sampled = self._source.sample(1)
        self._fold.advance(1, sampled.accepted)
        reply.set(sampled.result(batch.step, (end_s,)))


class _StepBegins(Timer):
    __slots__ = ("_wave",)

    def __init__(self, wave: Wave) -> None:
        super().__init__()
        self._wave = wave

    def call(self) -> None:
        self._wave.begin()


class _StepEnds(Timer):
    __slots__ = ("_end_s", "_wave")

    def __init__(self, wave: Wave, end_s: float) -> None:
        super().__init__()
        self._wave, self._end_s = wave, end_s

    def call(self) -> None:
        self._wave.end(self._end_s)


def ranks_in_step(cost: InStep, sources: Sequence[TokenSource], capacity: Capacity) -> list[RankBackend]:
    """A backend for each source: every `cost.num_ranks` of them go in step."""
    backends: list[RankBackend] = []
    for rank, source in enumerate(sources):
        if rank % cost.num_ranks == 0:
            wave = Wave(cost, rank // cost.num_ranks)
        backends.append(RankBackend(wave, source, capacity))
    return backends
