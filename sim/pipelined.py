"""Backend of a pipelined model: several batches in flight, each at another stage.

A batch passes the stages in order, and a stage takes batches in the order in which they were planned, one at
a time. So a stage begins when the batch has left the previous stage, and this stage has finished the previous
batch: with one batch in flight a step takes the sum of all stages, with as many as there are stages the
slowest determines the rate.

The host plans one batch at a time; if it plans ahead, the first stage need not wait for it. Decodes need the
tokens of their last batch, as many steps before as there are stages.
"""

from collections import deque

from sundog.actors.core.batch import Batch, StepResult
from sundog.actors.kernel.actor import Reply
from sundog.actors.kernel.clock import Event, RunClock, Timer, run_clock
from sundog.actors.messages import Capacity
from sundog.sim.backend import CostBackend, Pace, TokenSource, instant, to_s, to_ticks
from sundog.sim.cost.composed import Pipeline
from sundog.sim.cost.work import StepWork, WorkFold


def cost_backend(pace: Pace, source: TokenSource, capacity: Capacity) -> "CostBackend | PipelinedBackend":
    """Return the backend for the pace's kind of cost."""
    if isinstance(pace.cost, Pipeline):
        return PipelinedBackend(pace, pace.cost, source, capacity)
    return CostBackend(pace, source, capacity)


class Stages:
    """Times in ticks at which each stage becomes free; `end_tick` passes a batch through all stages."""

    __slots__ = ("_cost", "_ends", "_free", "_host_free")

    def __init__(self, cost: Pipeline) -> None:
        self._cost = cost
        self._free = [0.0] * len(cost.stages)
        self._host_free = 0.0
        self._ends: deque[float] = deque([0.0] * len(cost.stages), maxlen=len(cost.stages))
        """End times of the last batches, one per stage."""

    def end_tick(self, work: StepWork, planned_tick: float) -> float:
        """Return the end of a batch's last stage; for one without tokens, that of the previous batch."""
        cost, free = self._cost, self._free
        if not work.num_tokens:
            self._ends.append(max(planned_tick, self._ends[-1]))
            return self._ends[-1]
        host_ticks = to_ticks(cost.host_s(work))
        tick = max(planned_tick, self._host_free)
        self._host_free = tick + host_ticks
        if not cost.overhead.overlaps:
            tick = self._host_free
        if work.num_decodes:
            tick = max(tick, self._ends[0])
        send_ticks = to_ticks(cost.send_s(work))
        for stage, seconds in enumerate(cost.stages_s(work)):
            free[stage] = max(tick, free[stage]) + to_ticks(seconds)
            tick = free[stage] + send_ticks
        end = max(free[-1], self._ends[-1])
        self._ends.append(end)
        return end


class PipelinedBackend:
    """Backend of modelled time like `CostBackend`, whose batches overlap.

    The samples of a step are determined when it is planned, and reported when it ends. A batch is one step.
    """

    __slots__ = ("_capacity", "_clock", "_fold", "_pace", "_source", "_stages", "_under_way")

    def __init__(self, pace: Pace, cost: Pipeline, source: TokenSource, capacity: Capacity) -> None:
        self._pace, self._source, self._capacity = pace, source, capacity
        self._fold = WorkFold(capacity.block_size)
        self._stages = Stages(cost)
        self._clock: RunClock | None = None
        self._under_way: deque[_BatchLeaves] = deque()

    async def load(self) -> Capacity:
        """Return the capacity that was passed in."""
        return self._capacity

    def execute(self, batch: Batch) -> Reply[StepResult]:
        """Start a batch behind those in flight."""
        assert batch.max_steps == 1, "a decode run of several steps cannot overlap other batches"
        if self._clock is None:
            self._clock = run_clock()
        work = self._fold.begin(batch)
        self._source.begin(batch)
        sampled = self._source.sample(1)
        self._fold.advance(1, sampled.accepted)
        now_s = self._clock.now_s()
        planned_tick = (
            self._pace.planned_tick(now_s, self._fold.continues) if work.num_tokens else instant(now_s)
        )
        end_s = max(to_s(self._stages.end_tick(work, planned_tick)), now_s)
        reply: Reply[StepResult] = Reply()
        leaving = _BatchLeaves(self, reply, sampled.result(batch.step, (end_s,)))
        self._under_way.append(leaving)
        self._clock.enter(end_s - self._pace.early_s, Event.STEP_END, self._pace.key, leaving)
        return reply

    def step_s(self, prefill_tokens: int, decodes: int, context_tokens: int) -> float:
        """Return the seconds of a step that is alone in all stages, for policies."""
        return self._pace.step_s(prefill_tokens, decodes, context_tokens)

    async def close(self) -> None:
        """Do nothing: the backend holds no resources."""

    def answer(self) -> None:
        """Report the results that are due, in the order of their batches: real timers may fire out of
        order.
        """
        under_way = self._under_way
        while under_way and under_way[0].is_due:
            leaving = under_way.popleft()
            self._pace.done(leaving.result.end_times_s[-1])
            leaving.reply.set(leaving.result)


class _BatchLeaves(Timer):
    __slots__ = ("_backend", "is_due", "reply", "result")

    def __init__(self, backend: PipelinedBackend, reply: Reply[StepResult], result: StepResult) -> None:
        super().__init__()
        self._backend, self.reply, self.result = backend, reply, result
        self.is_due = False

    def call(self) -> None:
        self.is_due = True
        self._backend.answer()
