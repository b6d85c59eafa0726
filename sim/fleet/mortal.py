"""Engines that can be killed at any time of a run, not only at the next step."""

from collections.abc import Callable, Sequence
from typing import Never

from sundog.actors.core.batch import Batch, StepResult
from sundog.actors.engine.executor import Runner
from sundog.actors.kernel.actor import Actor, ActorDied, Ref, Reply
from sundog.actors.kernel.clock import now_s, sleep_until
from sundog.actors.messages import Capacity, Interrupt, Load
from sundog.sim.backend import CostBackend


class KilledByFault(Exception):
    """Raised in an engine that a fault of the run has killed."""


class MortalBackend:
    """Backend that is up no earlier than `up_s`, and can be killed at any time.

    Law: steps that had ended by then have been reported, even within a decode run; the step in flight is
    lost. Until the crash is noticed, nothing more is answered.
    """

    def __init__(
        self,
        inner: CostBackend,
        up_s: Callable[[], float] = lambda: 0.0,
        on_up: Callable[[], None] = lambda: None,
    ) -> None:
        """Create the backend; `up_s` may become later while it loads, and `on_up` is called when it has
        loaded.
        """
        self._inner, self._up_s, self._on_up = inner, up_s, on_up
        self._runner: Ref[Batch | Interrupt | Load] | None = None
        self._is_killed = self._is_noticed = False
        self.missed: set[str] = set()

    async def load(self) -> Capacity:
        """Load like the inner backend, once no fault is active."""
        await sleep_until(max(self._up_s(), now_s()))
        while self._up_s() > now_s():
            await sleep_until(self._up_s())
        capacity = await self._inner.load()
        self._on_up()
        return capacity

    def execute(self, batch: Batch) -> Reply[StepResult]:
        """Execute like the inner backend, until the engine is killed."""
        self._check()
        if not self._is_killed:
            return self._inner.execute(batch)
        self.missed.update([each.request_id for each in batch.admitted])
        return Reply()

    def interrupt(self) -> None:
        """End the current decode run at its next step boundary."""
        self._check()
        if not self._is_killed:
            self._inner.interrupt()

    def step_s(self, prefill_tokens: int, decodes: int, context_tokens: int) -> float:
        """Return the seconds of a step, for policies, whether or not the engine is killed."""
        return self._inner.step_s(prefill_tokens, decodes, context_tokens)

    async def close(self) -> None:
        """Close the inner backend as well."""
        await self._inner.close()

    def watch(self, actors: Sequence[Actor[Never]]) -> None:
        """Set the Runner to crash when a fault occurs: the one that passes the batches."""
        for actor in actors:
            if isinstance(actor, Runner):
                self._runner = actor.ref("faults", counted=False)

    def change_pace(self, change: Callable[[], None]) -> None:
        """Apply a change to the cost from the next step on, if it supports one."""
        if not self._is_killed:
            self._inner.interrupt()
        change()

    def kill(self) -> None:
        """Make the running engine stop answering, as if it had crashed."""
        self._inner.cut()
        self._is_killed = True

    def notice(self) -> bool:
        """Report the crash of a killed engine; return False if that has been done."""
        assert self._runner is not None, "an engine that is up has a Runner"
        self._is_noticed = True
        try:
            self._runner.tell(Interrupt(0))
        except ActorDied:
            return False
        return True

    def _check(self) -> None:
        if self._is_noticed:
            raise KilledByFault("a fault of the run killed it")
