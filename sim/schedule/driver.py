"""Driver of a Scheduler by steps: events before a plan, or while a step executes.

The Scheduler, KVCacheManager, Executor and Runner are the graph's own. Whenever all tasks are idle the driver
checks the Scheduler's phase: if it is about to begin a step, or idle, it gets the events before that step; if
it waits for a step to end, the events during the step, and then the step's result. Step k lasts from k to k +
1 on the virtual clock. Without work the step number jumps to the next arrival or event before a plan; events
during a step wait for one.
"""

from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple, Never

import trio

from sundog.actors.block_hash import block_hasher
from sundog.actors.core.queue.step_times import MeasuredSteps
from sundog.actors.core.step.progress import Stalled, cannot_go_on, why_stalled
from sundog.actors.core.step.state import SchedulerState
from sundog.actors.engine.executor import Executor, Runner
from sundog.actors.engine.kv_cache_manager import KVCacheManager
from sundog.actors.engine.scheduler import Phase, Scheduler
from sundog.actors.kernel.actor import Actor, Reply
from sundog.actors.kernel.clock import Event, now_s, sleep_until
from sundog.actors.messages import Abort, Batch, Blocked, Capacity, Done, Finish, ResetPrefixCache, StepResult
from sundog.sim.backend import TokenSource
from sundog.sim.clock import run_virtual
from sundog.sim.schedule.step_trace import AbortAt, ResetAt, StepTrace, StepTraceRow, When


class Added(NamedTuple):
    """Request that was sent; `step` is the next to be planned."""

    step: int
    request_id: str


class WasRefused(NamedTuple):
    """Refusal by the policy of a request that came before the plan of `step`."""

    step: int
    finish: Finish


class Aborted(NamedTuple):
    """Abort that took effect; `finished` are the requests that had not ended."""

    step: int
    when: When
    request_ids: tuple[str, ...]
    finished: tuple[Finish, ...]


class WasReset(NamedTuple):
    """Reset of the prefix cache, `done` or refused."""

    step: int
    done: bool


class HasPlanned(NamedTuple):
    """Step that was planned; a run of steps is one batch."""

    step: int
    batch: Batch
    blocked: Blocked | None


class Updated(NamedTuple):
    """Result of a step, or of the last of a run, that was applied; that of `dropped` was ignored."""

    step: int
    result: StepResult
    dropped: frozenset[str]
    finished: tuple[Finish, ...]


class HasStalled(NamedTuple):
    """Stall: too many steps in a row without progress ended the run."""

    step: int
    reason: str


class HasEnded(NamedTuple):
    """End of the trace: nothing remains."""

    step: int


Happening = Added | WasRefused | Aborted | WasReset | HasPlanned | Updated | HasStalled | HasEnded


MAX_RUN = 2**30
"""Largest number of steps in a decode run, above that of any batch."""


class HeldBackend:
    """Backend whose steps end when the driver says so."""

    def __init__(self, capacity: Capacity) -> None:
        self._capacity = capacity
        self.queue: deque[tuple[Batch, Reply[StepResult]]] = deque()
        self.is_interrupted = False
        """Whether the next run to end must end with its first step."""

    async def load(self) -> Capacity:
        return self._capacity

    def execute(self, batch: Batch) -> Reply[StepResult]:
        reply: Reply[StepResult] = Reply()
        self.queue.append((batch, reply))
        return reply

    def interrupt(self) -> None:
        self.is_interrupted = True

    async def close(self) -> None:
        """Do nothing: the backend holds no resources."""


class Driver:
    """Driver of a trace, as a Tracer of its Scheduler; `watch` is called with events.

    At that time `state` is the one after the event.
    """

    def __init__(
        self,
        trace: StepTrace,
        source: TokenSource,
        watch: Callable[[Happening], None],
        *,
        lockstep: bool = True,
        decode_runs: bool = False,
    ) -> None:
        config = trace.config
        self._source = source
        self._watch = watch
        self._manager = KVCacheManager("kv-cache-manager", config, block_hasher(trace.hash_algo))
        self.state = SchedulerState(
            config,
            trace.policy,
            self._manager.lend(),
            lockstep_enabled=lockstep,
            decode_runs=decode_runs,
            step_times=MeasuredSteps(),
        )
        self._backend = HeldBackend(Capacity(self.state.kv.pool.num_blocks, config.block_size))
        runner = Runner("runner", self._backend)
        executor = Executor("executor", [runner.ref("executor")])
        self._scheduler = Scheduler(
            "scheduler", 0, state=self.state, executor=executor.ref("scheduler"), listeners=[], tracer=self
        )
        self._manager.connect(self._scheduler.ref(self._manager.name))
        self._actors: Sequence[Actor[Never]] = (runner, executor, self._scheduler, self._manager)
        self._to_scheduler = self._scheduler.ref("driver")
        self._to_manager = self._manager.ref("driver")
        self._rows: deque[StepTraceRow] = deque(trace.rows)
        self._before: deque[AbortAt | ResetAt] = deque(e for e in trace.events if e.when == "input")
        self._meanwhile = deque(e for e in trace.events if e.when == "executing" and isinstance(e, AbortAt))
        self._step = 0
        """Number of the next step to be planned."""
        self._step_of: dict[int, int] = {}
        """Number in the trace of each running step: the Scheduler's have no gaps."""
        self._ending_step: int | None = None
        """Step whose result is about to be applied."""
        self._dropped: set[str] = set()

    def run(self) -> None:
        """Run the whole trace on a virtual clock of its own."""
        try:
            run_virtual(self._play)
        except* Stalled:
            self._step -= 1
            state = self.state
            cannot = cannot_go_on(state.requests, state.lockstep, state.kv, state.config.max_model_len)
            reason = cannot or why_stalled(state, None)
            self._watch(HasStalled(self._step, reason))
        self._watch(HasEnded(self._step))

    # --- as a Tracer -----------------------------------------------------------------------------

    def planned(self, batch: Batch, blocked: Blocked | None) -> None:
        self._step_of[batch.step] = self._step
        self._watch(HasPlanned(self._step, batch, blocked))
        self._step += 1

    def refused(self, finish: Finish) -> None:
        self._watch(WasRefused(self._step, finish))

    def aborted(self, abort: Abort, finished: Sequence[Finish]) -> None:
        step = self._ending_step
        if step is None:
            self._watch(Aborted(self._step, "input", abort.request_ids, tuple(finished)))
        else:
            self._watch(Aborted(step, "executing", abort.request_ids, tuple(finished)))

    def updated(self, result: StepResult, finished: Sequence[Finish]) -> None:
        assert self._ending_step is not None
        dropped = frozenset(self._dropped)
        self._watch(Updated(self._ending_step, result, dropped, tuple(finished)))

    # --- as its world ----------------------------------------------------------------------------

    async def _play(self) -> None:
        async with trio.open_nursery() as nursery:
            for actor in self._actors:
                await nursery.start(actor.live, name=actor.name)
            while await self._go_on():
                pass
            self._to_scheduler.close()
            self._to_manager.close()

    async def _go_on(self) -> bool:
        match self._scheduler.phase:
            case Phase.IDLE:
                if not (self._rows or self._before):
                    return False
                step = self._step = max(self._step, self._next_input())
                await sleep_until(float(step), Event.ARRIVAL)
                await self._begin_step()
                self._step = max(self._step, step + 1)
            case Phase.BEGINNING:
                await self._begin_step()
            case _:
                await self._end_step()
        return True

    def _next_input(self) -> int:
        steps = [self._rows[0].arrival_step] if self._rows else []
        return min([*steps, self._before[0].step] if self._before else steps)

    async def _begin_step(self) -> None:
        while self._rows and self._rows[0].arrival_step <= self._step:
            submit = self._rows.popleft().submit
            self._to_scheduler.tell(submit)
            self._watch(Added(self._step, submit.request_id))
        while self._before and self._before[0].step <= self._step:
            event = self._before.popleft()
            if isinstance(event, AbortAt):
                self._to_scheduler.tell(Abort(event.request_ids))
            else:
                self._to_manager.request(ResetPrefixCache(event.reset_running)).then(self._was_reset)
        # After the BeginStep that is due, and before one that may follow it in this instant.
        await sleep_until(now_s(), Event.STEP_BEGIN, self._scheduler.name)

    def _was_reset(self, answer: object, error: BaseException | None) -> None:
        if error is None:
            self._watch(WasReset(self._step, isinstance(answer, Done)))

    async def _end_step(self) -> None:
        if not self._backend.queue:
            await trio.sleep_forever()  # The Scheduler has failed, and ends this task when it is its turn.
        batch, reply = self._backend.queue.popleft()
        first = self._step_of.pop(batch.step)
        await sleep_until(float(first + 1), Event.STEP_END)
        num_steps = min(self._source.begin(batch), self._steps_until_anything(first))
        last = first + num_steps - 1
        sampled = self._source.sample(num_steps)
        if num_steps > 1:
            self._step += num_steps - 1
            await sleep_until(float(last + 1), Event.STEP_END)
        self._ending_step = last
        while self._meanwhile and self._meanwhile[0].step <= last:
            self._to_scheduler.tell(Abort(self._meanwhile.popleft().request_ids))
        self._dropped = self.state.lockstep.dropped
        end_times_s = tuple(float(step + 1) for step in range(first, last + 1))
        self._backend.is_interrupted = False
        reply.set(sampled.result(batch.step, end_times_s))
        self._ending_step = None

    def _steps_until_anything(self, first: int) -> int:
        if self._backend.is_interrupted:
            return 1
        is_late = self.state.config.async_scheduling
        limits = [self._next_input() - first - is_late] if self._rows or self._before else []
        limits += [self._meanwhile[0].step - first + 1] if self._meanwhile else []
        return max(1, min(limits, default=MAX_RUN))
