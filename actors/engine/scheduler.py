"""The Scheduler: one step after another, each in three beats: plan, execute, update.

New requests and resets take effect before a plan; aborts take effect before a plan and before an update. With
async scheduling step k+1 is planned while step k runs; with pipeline stages as many steps run at once as
there are stages; otherwise one at a time. All decisions are made in `actors/core/`. The Scheduler is in one
of five phases:

    IDLE ---message--> BEGINNING ---plan--> EXECUTING ---result--> BEGINNING, or IDLE without work
                           |                    ^
                           +--plan a run--> RUN +--message--> INTERRUPTED ---result--> (the same)

| phase | what it waits for | a message comes | it ends with |
|---|---|---|---|
| IDLE | a message | `_begin_soon` | |
| BEGINNING | its own BeginStep, later in this instant | is read then | `_begin_step` |
| EXECUTING | the result of the oldest step | is read then | `_end_step` |
| RUN | the result of a decode run | `_interrupt` | `_end_step` |
| INTERRUPTED | the same, at the run's next step boundary | is read then | `_end_step` |

With async scheduling, a BEGINNING that leaves room in the queue of steps is followed by another one. Each
step of a decode run counts as planned while the previous one runs, so that a message cannot change the next
step: when the run ends, that step is planned as it would have been one step earlier, and then the one
behind it, which sees every message.
"""

import enum
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from sundog.actors.core.batch import Blocked
from sundog.actors.core.policies.guard import GuardedPolicy
from sundog.actors.core.queue.step_times import MeasuredSteps
from sundog.actors.core.records import dataclass
from sundog.actors.core.step.commit import extend
from sundog.actors.core.step.plan import plan
from sundog.actors.core.step.progress import Progress
from sundog.actors.core.step.state import SchedulerState
from sundog.actors.core.step.update import cut, update
from sundog.actors.engine.compiler import Compiled
from sundog.actors.engine.grammars_ahead import GrammarsAhead
from sundog.actors.engine.inbox import Due, Hold, Inbox, LoadDone, PullDue, Reset, Tracer
from sundog.actors.kernel.actor import Actor, Handled, Ref, Reply, Tap, answer
from sundog.actors.kernel.clock import ARRIVAL, NOW_S, STEP_BEGIN
from sundog.actors.kernel.owner import MessageTimer
from sundog.actors.messages import (
    Abort,
    Batch,
    ChangeAdapters,
    Done,
    Finish,
    Freeze,
    HandOver,
    Interrupt,
    KvFetched,
    Pull,
    Refused,
    Reserved,
    ResetPrefixCache,
    StepOutput,
    StepResult,
    Submit,
    TakenIn,
    ToEngine,
    Withdraw,
)


class Phase(enum.Enum):
    IDLE = "idle"
    BEGINNING = "beginning"
    EXECUTING = "executing"
    RUN = "run"
    INTERRUPTED = "interrupted"


IDLE: Final = Phase.IDLE
BEGINNING: Final = Phase.BEGINNING
EXECUTING: Final = Phase.EXECUTING
RUN: Final = Phase.RUN
INTERRUPTED: Final = Phase.INTERRUPTED


@dataclass(slots=True)
class Planned:
    """Step whose result is pending.

    `num_taken_blocks` is the number of blocks that its plan (of a decode run, that of the first step) took
    from the pool, less those that preemptions returned. The two other numbers are as of the end of the plan.
    """

    batch: Batch
    num_tokens: int
    blocked: Blocked | None
    num_taken_blocks: int
    num_free_blocks: int
    num_waiting: int
    start_s: float


class BeginStep:
    """Message of the Scheduler to itself: begin a step.

    It is an event of its own, so that everything that arrives in an instant is in the step of that instant.
    """


BEGIN_STEP = BeginStep()


ToScheduler = ToEngine | ResetPrefixCache | StepResult | BeginStep | LoadDone | Compiled


class Scheduler(Actor[ToScheduler]):
    """The actor that owns the queues, borrows the block pool, and sends batches to one Executor.

    Listeners receive each StepOutput. Its `start_s` is when the step's own work began, even if it was planned
    earlier.
    """

    def __init__(
        self,
        name: str,
        replica: int,
        state: SchedulerState,
        executor: Ref[Batch | Interrupt | ChangeAdapters],
        listeners: Sequence[Ref[StepOutput]],
        *,
        grammars: GrammarsAhead | None = None,
        taken_in: Ref[TakenIn] | None = None,
        checks_when_idle: bool = False,
        tracer: Tracer | None = None,
        tap: Tap | None = None,
    ) -> None:
        """Create the actor; `taken_in` gets the requests of each batch before it runs, in case the batch
        kills the process.
        """
        super().__init__(name, tap=tap)
        self._taken_in = taken_in
        self.phase = IDLE
        self._replica = replica
        self._state = state
        self._executor, self._executor_name = executor, executor.receiver
        self._listeners = tuple(listeners)
        self._grammars = grammars
        self._checks_when_idle = checks_when_idle
        times, may_ask = state.step_times, isinstance(state.policy, GuardedPolicy)
        self._measured = times if may_ask and isinstance(times, MeasuredSteps) else None
        """Measured step times, if a user's policy may need them and no model has them."""
        self._tracer = tracer
        self._depth = state.config.max_concurrent_batches
        self._oldest: Planned | None = None
        """First step in flight."""
        self._ahead: list[Planned] = []
        """Steps in flight behind it; with it at most `_depth`."""
        self._results: list[StepResult] = []
        """Results that arrived while a step was beginning."""
        self._inbox = Inbox(state, tracer)
        self._aborted: list[Finish] = []
        """Aborted and refused requests, which the next StepOutput lists with those that tokens ended."""
        self._somebody_ended = False
        """Whether a request ended with the last step: the next batch has to list it."""
        self._progress = Progress()
        self._begin_timer = MessageTimer(self, BEGIN_STEP)
        self._last_end_s = 0.0
        self._interrupted_s = 0.0
        """Time of the latest Interrupt; the messages that caused it came then or later."""

    @property
    def idle(self) -> bool:
        return self.phase is IDLE and not self._grammars

    def handle(self, message: ToScheduler) -> Handled:
        match message:
            case StepResult():
                if self.phase is BEGINNING:
                    self._results.append(message)
                else:
                    self._end_step(message)
            case BeginStep():
                self._begin_step()
            case Submit() | Abort() | KvFetched() | Withdraw() | LoadDone():
                self._take(message)
            case Compiled():
                self._compiled(message)
            case HandOver():
                self._inbox.leaving.append((message, self.clock.now_s()))
                self._hurry()
            case ResetPrefixCache():
                reset: Reply[Done | Refused] = Reply()
                self._take(Reset(message, reset))
                return answer(message, reset)
            case Pull():
                reserved: Reply[Reserved | Refused] = Reply()
                self._take(PullDue(message, reserved))
                return answer(message, reserved)
            case ChangeAdapters():
                return answer(message, self._executor.request(message))
            case Freeze():
                held: Reply[Done | Refused] = Reply()
                self._take(Hold(message, held))
                return answer(message, held)
            case _:
                self.unknown(message)
        return None

    async def closed(self) -> None:
        self._executor.close()
        if self._grammars is not None:
            self._grammars.close()

    @property
    def _has_work(self) -> bool:
        """Whether there is something to plan, and planning is not suspended."""
        state = self._state
        return bool(state.requests or state.finished_ids) and not self._inbox.is_frozen

    def _take(self, message: Due) -> None:
        """Store a message until it takes effect; end a decode run, if one is executed."""
        if self._grammars is not None and self._waits(self._grammars, message):
            return
        self._inbox.put(message)
        self._hurry()

    def _waits(self, grammars: GrammarsAhead, message: Due) -> bool:
        """Return whether a message has to wait for a grammar to be compiled; others are handled meanwhile."""
        if isinstance(message, Abort | Withdraw):
            for due in grammars.release(message.request_ids):
                self._inbox.put(due)
            if isinstance(message, Withdraw):
                self._let_go(grammars, message.request_ids)
        if not isinstance(message, Submit | PullDue) or not grammars.waits(message):
            return False
        self._expect_grammars(grammars)
        return True

    def _expect_grammars(self, grammars: GrammarsAhead) -> None:
        for compiled in grammars.take_asked():
            self.expect(compiled, grammars.receiver)

    def _compiled(self, message: Compiled) -> None:
        """Queue the requests that waited for a grammar."""
        assert self._grammars is not None
        for due in self._grammars.compiled(message.constraint):
            self._inbox.put(due)
        self._expect_grammars(self._grammars)
        self._hurry()

    def _let_go(self, grammars: GrammarsAhead, request_ids: Sequence[str]) -> None:
        """Release the grammars of requests that ended, and queue requests that waited for room."""
        for due in grammars.let_go(request_ids):
            self._inbox.put(due)
        self._expect_grammars(grammars)

    def _hurry(self) -> None:
        if self.phase is IDLE:
            self._begin_soon()
        elif self.phase is RUN:
            self._interrupt()

    def _begin_soon(self) -> None:
        self.phase = BEGINNING
        clock = self._clock or self.clock
        clock.enter(NOW_S, STEP_BEGIN, self.name, self._begin_timer)

    def _interrupt(self) -> None:
        assert self._oldest is not None, "no run is in flight"
        self.phase, self._interrupted_s = INTERRUPTED, (self._clock or self.clock).now_s()
        self._executor.tell(Interrupt(self._oldest.batch.step))

    # --- a step begins ---------------------------------------------------------------------------

    def _begin_step(self) -> None:
        state, inbox = self._state, self._inbox
        state.view.now_s = (self._clock or self.clock).now_s()
        oldest = self._oldest
        if oldest is not None and oldest.batch.max_steps > 1:
            self.phase = RUN
            # The run ended at this very instant: take its result in before anything is planned.
            if self._results:
                return self._end_step(self._results.pop(0))
            if not (inbox.messages or inbox.leaving or self._somebody_ended):
                return
            self._interrupt()
        if inbox.messages:
            self._aborted += inbox.take_all()
        # Who ended is told of it when the step ends: in a run, steps too late.
        pulls = state.handovers.pulls
        may_run = not (self._aborted or pulls or inbox.leaving)
        num_tokens = self._plan(may_run=may_run) if self._has_work else 0
        # After planning: requests that are fetched from other engines take blocks that this step left.
        if pulls:
            gone = inbox.reserve(self._is_blocked)
            if gone and self._grammars is not None:
                self._let_go(self._grammars, gone)
        if inbox.held and self._oldest is None:
            inbox.tell_held()
        # As in vLLM, stages are filled up with steps that compute nothing.
        goes_on = num_tokens or (state.is_pipelined and self._has_work)
        oldest = self._oldest
        if oldest is not None and (len(self._ahead) + 1 == self._depth or not goes_on):
            is_run = self._depth == 1 and oldest.batch.max_steps > 1
            self.phase = RUN if is_run else EXECUTING
            if self._results:
                self._end_step(self._results.pop(0))
        elif oldest is not None or self._has_work:
            self._begin_soon()
        else:
            self._fall_idle()

    @property
    def _is_blocked(self) -> bool:
        """Whether the last planned step in flight left requests waiting."""
        newest = self._ahead[-1] if self._ahead else self._oldest
        return newest is not None and newest.blocked is not None

    def _plan(self, *, may_run: bool = True) -> int:
        """Plan a step or a decode run and send it; return the number of tokens of one step."""
        state, pool = self._state, self._state.kv.pool
        num_before = pool.num_free
        batch, blocked = plan(state, may_run=may_run)
        num_tokens = batch.num_tokens
        self._progress.planned(state, batch)
        num_free, waiting = pool.num_free, state.waiting.places
        planned = Planned(
            batch,
            num_tokens,
            blocked,
            num_taken_blocks=num_before - num_free,
            num_free_blocks=num_free,
            num_waiting=len(waiting) if waiting else 0,
            start_s=(self._clock or self.clock).now_s(),
        )
        if self._oldest is None:
            self._oldest = planned
        else:
            self._ahead.append(planned)
        if self._tracer is not None:
            self._tracer.planned(batch, blocked)
        if (host := state.kv.host) is not None and host.begun:
            for name, end_s in host.begun:
                self.schedule(max(end_s, self.clock.now_s()), ARRIVAL, LoadDone(name))
            host.begun.clear()
        if self._taken_in is not None and (batch.admitted or batch.preempted):
            admitted = tuple([each.request_id for each in batch.admitted])
            self._taken_in.tell(TakenIn(admitted, batch.preempted))
        result = self._executor.request(batch)
        self.expect(result, self._executor_name)
        return num_tokens

    # --- a step ends -----------------------------------------------------------------------------

    def _end_step(self, result: StepResult) -> None:
        """Apply the result of the oldest step, send it to the listeners, and continue."""
        state = self._state
        # A run that a failing engine cuts ends in the past: what came later waits for the step that is lost.
        end_s, num_steps = result.end_times_s[-1], len(result.end_times_s)
        is_heard = self.phase is not INTERRUPTED or end_s >= self._interrupted_s
        if num_steps > 1:
            extend(state, num_steps - 1, result.end_times_s[-2])
        if self._depth > 1 and self.phase is not EXECUTING:
            # Planned as it would have been when the run's last step began.
            if num_steps > 1:
                state.view.now_s = result.end_times_s[-2]
            self._plan(may_run=False)
        num_ahead_blocks = sum([step.num_taken_blocks for step in self._ahead]) if self._ahead else 0
        planned, num_free = self._take_oldest(), state.kv.pool.num_free
        if is_heard and self._inbox.messages:
            self._aborted += self._inbox.take_aborts()
        state.view.now_s = end_s
        if state.speculates or state.lockstep.dropped:
            result = _what_counts(state, result)
        ended = update(state, result)
        if is_heard and self._inbox.leaving:
            ended = ended + self._inbox.hand_over(planned.start_s, end_s)
        finished = self._with_aborted(ended)
        self._somebody_ended = bool(finished)
        if self._tracer is not None:
            self._tracer.updated(result, ended)
        output = self._output(planned, result, finished, num_free, num_ahead_blocks)
        self._last_end_s = end_s
        if self._measured is not None:
            _measure(self._measured, output)
        if not (state.is_pipelined and output.says_nothing):
            for listener in self._listeners:
                listener.tell(output)
        if self._progress.is_stalled(state):
            self._progress.give_up(state, planned.blocked)
        self._go_on(planned, finished)

    def _with_aborted(self, ended: list[Finish]) -> list[Finish]:
        """Return these ends behind those since the last step."""
        if not self._aborted:
            return ended
        aborted, self._aborted = self._aborted, []
        return aborted + ended

    def _take_oldest(self) -> Planned:
        """Remove and return the first step in flight."""
        planned = self._oldest
        assert planned is not None, "no step is in flight"
        self._oldest = self._ahead.pop(0) if self._ahead else None
        return planned

    def _output(
        self,
        planned: Planned,
        result: StepResult,
        finished: Sequence[Finish],
        num_free_blocks: int,
        num_ahead_blocks: int,
    ) -> StepOutput:
        """Return the outcome of a step.

        `num_free_blocks` were free before it, and `num_ahead_blocks` belong to steps planned ahead.
        """
        state = self._state
        num_waiting = len(state.waiting.places) if state.waiting.places else 0
        if self._inbox.messages:
            num_waiting += self._inbox.num_new
        if self._grammars is not None:
            num_waiting += len(self._grammars)
        num_free_now, changes, start_s = state.kv.pool.num_free, state.kv.pool.changes, planned.start_s
        return StepOutput(
            replica=self._replica,
            batch=planned.batch,
            start_s=start_s if start_s > self._last_end_s else self._last_end_s,
            end_times_s=result.end_times_s,
            tokens=result.tokens,
            finished=tuple(finished) if finished else (),
            num_running=len(state.running),
            num_waiting=num_waiting,
            num_free_blocks=num_free_now,
            blocked=planned.blocked,
            num_free_blocks_planned=planned.num_free_blocks,
            num_taken_blocks=planned.num_taken_blocks,
            num_free_blocks_held=num_free_blocks + num_ahead_blocks,
            num_freed_blocks=num_free_now - num_free_blocks,
            num_waiting_planned=planned.num_waiting,
            logprobs=result.logprobs,
            prompt_logprobs=result.prompt_logprobs,
            accepted=result.accepted,
            surplus=result.surplus,
            ranks=state.waiting.take_ranks() if state.waiting.ranks else (),
            kv_events=None if changes is None else state.kv.take_events(planned.batch, bool(finished)),
            vectors=result.vectors,
        )

    def _go_on(self, planned: Planned, finished: Sequence[Finish]) -> None:
        """Begin the next step, or wait for what it needs."""
        if self._grammars is not None:
            self._let_go(self._grammars, [each.request_id for each in finished])
        if self._oldest is not None or self._has_work or self._inbox.held or self._inbox.messages:
            if not (self._state.handovers.is_used and self._waits_for_blocks(planned)):
                self._begin_soon()
            elif self._oldest is not None:
                self.phase = EXECUTING
                if self._results:
                    self._end_step(self._results.pop(0))
            else:
                self._fall_idle()
        else:
            self._fall_idle()

    def _waits_for_blocks(self, planned: Planned) -> bool:
        """Return whether only a message can end the wait, because blocks are held for, or by, other
        engines.
        """
        state = self._state
        if planned.num_tokens or not state.requests:
            return False
        if self._oldest is not None and self._oldest.num_tokens:
            return False
        if self._ahead and any([step.num_tokens for step in self._ahead]):
            return False
        goes_on = state.has_fetched or self._inbox.messages or self._inbox.held
        return state.handovers.has_blocks and not goes_on

    def _fall_idle(self) -> None:
        self.phase = IDLE
        if self._checks_when_idle:
            self._state.check()


def _what_counts(state: SchedulerState, result: StepResult) -> StepResult:
    """Return the result without tokens behind the end of a request, and without those of requests that have
    left.
    """
    dropped = state.lockstep.dropped
    if state.speculates:
        result = cut(state, result)
    if dropped and result.tokens:
        kept = tuple([pair for pair in result.tokens if pair[0] not in dropped])
        result = replace(result, tokens=kept)
    return result


def _measure(measured: MeasuredSteps, output: StepOutput) -> None:
    """Record the duration of the first step, if it computed tokens."""
    if num_tokens := output.batch.num_tokens:
        num_decodes = output.batch.num_decodes
        measured.seen(num_tokens - num_decodes, num_decodes, output.end_times_s[0] - output.start_s)
