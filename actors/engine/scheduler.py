"""The Scheduler: one step after another, each in three beats: plan, execute, update.

New requests are taken in before a plan, aborts before a plan and before an update. With async
scheduling step k+1 is planned while step k runs; otherwise the queue of running steps has depth
one. Everything that is decided is decided in `actors/core/`.

A run of steps is asked for as one batch, and interrupted when something comes that a step of it
would have to see. With async scheduling each step of a run is planned while the one before it runs,
so nothing that comes changes the next: when a run ends, that next step is planned as it would have
been a step ago, and then the one after it, which sees everything.
"""

from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple

from actors.actor import Actor, Ref, Tap
from actors.clock import Event, now_s
from actors.core.plan import extend, plan
from actors.core.state import SchedulerState
from actors.core.update import update
from actors.messages import Abort, Batch, Blocked, Finish, Interrupt, StepOutput, StepResult, Submit


class BeginStep:
    """The Scheduler's reminder to itself: an event of its own, so that whatever comes in an
    instant is in the step that begins in it."""


class Planned(NamedTuple):
    """A step whose result is to come."""

    batch: Batch
    blocked: Blocked | None
    num_free_blocks: int
    num_waiting: int
    start_s: float


BEGIN_STEP = BeginStep()


class Scheduler(Actor):
    """Owns the queues; borrows the pool; talks to one Executor and tells its listeners.

    Always one of: idle; about to begin a step; waiting for the oldest running step to end.
    `start_s` of what listeners are told is when the step's own work began, though it was planned
    before.
    """

    def __init__(
        self,
        name: str,
        replica: int,
        state: SchedulerState,
        executor: Ref,
        listeners: Sequence[Ref],
        *,
        checks_when_idle: bool = False,
        tap: Tap | None = None,
    ) -> None:
        super().__init__(name, tap=tap)
        self._replica = replica
        self._state = state
        self._executor = executor
        self._listeners = listeners
        self._checks_when_idle = checks_when_idle
        self._depth = 2 if state.config.async_scheduling else 1
        self._running: deque[Planned] = deque()
        self._results: deque[StepResult] = deque()
        self._letters: list[Submit | Abort] = []
        self._arrivals: dict[str, Submit] = {}
        self._aborted: list[Finish] = []
        self._is_beginning = False
        self._run_step: int | None = None
        """The step of a run that is under way and has not been interrupted."""
        self._plans_late = False
        """Whether the step after the run under way is planned only when the run ends."""
        self._has_changed = False
        """Whether anybody ended with the last step."""
        self._last_end_s = 0.0

    @property
    def idle(self) -> bool:
        return not (self._is_beginning or self._running)

    def handle(self, message: Any) -> Any:
        match message:
            case StepResult():
                self._results.append(message)
                if not self._is_beginning:
                    self._end_step()
            case BeginStep():
                self._is_beginning = False
                self._begin_step()
            case Submit() | Abort():
                self._letters.append(message)
                if self._run_step is not None:
                    self._interrupt()
                elif self.idle:
                    self._go_on()
            case _:
                super().handle(message)

    async def closed(self) -> None:
        self._executor.close()

    def _go_on(self) -> None:
        self._is_beginning = True
        self.remind(now_s(), Event.STEP_BEGIN, BEGIN_STEP)

    def _interrupt(self) -> None:
        assert self._run_step is not None
        self._executor.tell(Interrupt(self._run_step))
        self._run_step = None

    def _begin_step(self) -> None:
        """Plan a step and send it, if there is work for one."""
        if self._depth > 1 and self._running and self._running[0].batch.max_steps > 1:
            self._run_step = self._running[0].batch.step
            if not (self._letters or self._arrivals or self._has_changed):
                self._plans_late = True
                return
            self._interrupt()
        self._read()
        for submit in self._arrivals.values():
            self._state.add(submit)
        self._arrivals.clear()
        num_tokens = self._send_step() if self._state.has_work else 0
        if self._running and (len(self._running) == self._depth or not num_tokens):
            if self._results:
                self._end_step()
        elif self._running or self._state.has_work:
            self._go_on()
        elif self._checks_when_idle:
            self._state.check()

    def _read(self) -> None:
        """Open the letters: aborts take effect now, new requests with the next plan."""
        for letter in self._letters:
            if isinstance(letter, Submit):
                self._arrivals[letter.request_id] = letter
                continue
            for name in letter.request_ids:
                submit = self._arrivals.pop(name, None)
                if submit is not None:
                    self._state.add(submit)
            self._aborted += self._state.abort(letter.request_ids, letter.reason)
        self._letters.clear()

    def _send_step(self, *, may_run: bool = True) -> int:
        """Plan one step, or a run of them, and have it executed; the number of a step's tokens."""
        state = self._state
        batch, blocked = plan(state, may_run=may_run)
        num_tokens = batch.num_tokens
        if not (num_tokens or self._running or batch.finished or batch.preempted):
            raise RuntimeError(
                f"nothing can be scheduled ({blocked}) although nothing runs:"
                f" {next(iter(state.waiting))!r} can never fit"
            )
        num_free = state.kv.pool.num_free
        self._running.append(Planned(batch, blocked, num_free, len(state.waiting), now_s()))
        if batch.max_steps > 1 and self._depth == 1:
            self._run_step = batch.step
        self.expect(self._executor.request(batch), self._executor.receiver)
        return num_tokens

    def _end_step(self) -> None:
        """Take in the result of the oldest step, tell the listeners, and go on."""
        state, result = self._state, self._results.popleft()
        self._run_step = None
        if result.num_steps > 1:
            extend(state, result.num_steps - 1)
        if self._plans_late:
            self._plans_late = False
            self._send_step(may_run=False)
        planned = self._running.popleft()
        self._read()
        finished = self._aborted + update(state, result)
        self._aborted = []
        self._has_changed = bool(finished)
        output = StepOutput(
            replica=self._replica,
            batch=planned.batch,
            start_s=max(planned.start_s, self._last_end_s),
            end_times_s=tuple(result.end_times_s),
            tokens=result.tokens,
            finished=tuple(finished),
            num_running=len(state.running),
            num_waiting=len(state.waiting) + len(self._arrivals),
            num_free_blocks=state.kv.pool.num_free,
            blocked=planned.blocked,
            num_free_blocks_planned=planned.num_free_blocks,
            num_waiting_planned=planned.num_waiting,
        )
        self._last_end_s = result.end_times_s[-1]
        for listener in self._listeners:
            listener.tell(output)
        if self._arrivals or self._running or state.has_work:
            self._go_on()
        elif self._checks_when_idle:
            state.check()
