"""The Scheduler: one step after another, each in three beats: plan, execute, update.

New requests are taken in before a plan, aborts before a plan and before an update. With async
scheduling step k+1 is planned while step k runs; otherwise the queue of running steps has depth
one. Everything that is decided is decided in `actors/core/`.
"""

from collections import deque
from collections.abc import Sequence
from typing import Any

from actors.actor import Actor, Ref, Reply, Tap
from actors.clock import Event, now_s, sleep_until
from actors.core.plan import extend, plan
from actors.core.state import SchedulerState
from actors.core.update import update
from actors.messages import Abort, Batch, Blocked, Finish, Interrupt, StepOutput, StepResult, Submit


class Scheduler(Actor):
    """Owns the queues; borrows the pool; talks to one Executor and tells its listeners."""

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
        self._running: deque[tuple[Batch, Blocked | None, int, float, Reply]] = deque()
        self._arrivals: dict[str, Submit] = {}
        self._aborted: list[Finish] = []

    async def run(self) -> None:
        while await self._has_work():
            await sleep_until(now_s(), Event.STEP_BEGIN, self.name)
            self._drain()
            self._take_arrivals()
            num_tokens = await self._begin_step() if self._state.has_work else 0
            if self._running and (len(self._running) == self._depth or not num_tokens):
                await self._end_step()

    async def closed(self) -> None:
        self._executor.close()

    async def _has_work(self) -> bool:
        """Wait until there is something to do; False at the end."""
        if self._state.has_work or self._running or self._arrivals:
            return True
        if self._checks_when_idle:
            self._state.check()
        return await self.mailbox.wait()

    def _drain(self) -> None:
        """Read the mailbox: aborts take effect now, new requests with the next plan."""
        while self.mailbox.envelopes:
            message = self.mailbox.take().message
            match message:
                case Submit():
                    self._arrivals[message.request_id] = message
                case Abort():
                    self._abort(message)
                case _:
                    raise NotImplementedError(f"{self.name} does not understand {message!r}")

    def _abort(self, message: Abort) -> None:
        for name in message.request_ids:
            submit = self._arrivals.pop(name, None)
            if submit is not None:
                self._state.add(submit)
        self._aborted += self._state.abort(message.request_ids, message.reason)

    def _take_arrivals(self) -> None:
        for submit in self._arrivals.values():
            self._state.add(submit)
        self._arrivals.clear()

    async def _begin_step(self) -> int:
        """Plan and send one step; the number of its tokens."""
        batch, blocked = plan(self._state)
        num_free = self._state.kv.pool.num_free
        says_nothing = not (batch.num_tokens or batch.finished or batch.preempted)
        if says_nothing and not self._running:
            raise RuntimeError(
                f"nothing can be scheduled ({blocked}) although nothing runs:"
                f" {next(iter(self._state.waiting))!r} can never fit"
            )
        reply = await self._executor.request(batch)
        if batch.max_steps > 1:
            self.mailbox.doorbell = lambda: self._interrupt(batch.step)
        self._running.append((batch, blocked, num_free, now_s(), reply))
        return batch.num_tokens

    async def _end_step(self) -> None:
        """Wait for the oldest step, take in its result and tell the listeners."""
        batch, blocked, num_free, start_s, reply = self._running.popleft()
        result: StepResult = await reply.wait()
        self.mailbox.doorbell = None
        if result.num_steps > 1:
            extend(self._state, result.num_steps - 1)
        self._drain()
        finished = self._aborted + update(self._state, result)
        self._aborted = []
        output = StepOutput(
            replica=self._replica,
            batch=batch,
            start_s=start_s,
            end_times_s=tuple(result.end_times_s),
            tokens=result.tokens,
            finished=tuple(finished),
            num_running=len(self._state.running),
            num_waiting=len(self._state.waiting) + len(self._arrivals),
            num_free_blocks=self._state.kv.pool.num_free,
            blocked=blocked,
            num_free_blocks_planned=num_free,
        )
        for listener in self._listeners:
            listener.tell(output)

    def _interrupt(self, step: int) -> None:
        """Somebody is at the door: the run under way must not outlast this step."""
        self.mailbox.doorbell = None
        self._executor.tell(Interrupt(step))

    async def handle(self, message: Any) -> Any:
        raise NotImplementedError("the Scheduler reads its mailbox itself, between steps")
