"""Engines that can be made to fail: at an instant of a run, and not only at the next step."""

from collections.abc import Callable, Sequence
from typing import Never

from sundog.actors.core.batch import Batch, StepResult
from sundog.actors.engine.executor import Runner
from sundog.actors.kernel.actor import Actor, ActorDied, Ref, Reply
from sundog.actors.kernel.clock import now_s, sleep_until
from sundog.actors.messages import Capacity, Interrupt, Load
from sundog.sim.backend import CostBackend


class KilledByFault(Exception):
    """An engine ended because a fault of the run said so."""


class MortalBackend:
    """A backend that is up at `up_s` at the soonest, and can be killed at any instant.

    Law: the steps that had ended by then have been told, whether they were one run or many; the step under
    way is lost. Until somebody notices, nothing more is answered.
    """

    def __init__(
        self,
        inner: CostBackend,
        up_s: Callable[[], float] = lambda: 0.0,
        on_up: Callable[[], None] = lambda: None,
    ) -> None:
        """`up_s` may become later while it loads; `on_up` is called when it has."""
        self._inner, self._up_s, self._on_up = inner, up_s, on_up
        self._runner: Ref[Batch | Interrupt | Load] | None = None
        self._is_killed = self._is_noticed = False
        self.missed: set[str] = set()

    async def load(self) -> Capacity:
        """Load as the inner backend does, once no fault keeps it down."""
        await sleep_until(max(self._up_s(), now_s()))
        while self._up_s() > now_s():
            await sleep_until(self._up_s())
        capacity = await self._inner.load()
        self._on_up()
        return capacity

    def execute(self, batch: Batch) -> Reply[StepResult]:
        """Do as the inner backend does, until the engine is killed."""
        self._check()
        if not self._is_killed:
            return self._inner.execute(batch)
        self.missed.update([each.request_id for each in batch.admitted])
        return Reply()

    def interrupt(self) -> None:
        """End the run under way at its next step boundary."""
        self._check()
        if not self._is_killed:
            self._inner.interrupt()

    async def close(self) -> None:
        """Close the inner backend as well."""
        await self._inner.close()

    def watch(self, actors: Sequence[Actor[Never]]) -> None:
        """Learn which Runner hands over the batches: it is the one that dies."""
        for actor in actors:
            if isinstance(actor, Runner):
                self._runner = actor.ref("faults", counted=False)

    def change_pace(self, change: Callable[[], None]) -> None:
        """Make a change to the cost that holds from the next step on, if it takes another."""
        if not self._is_killed:
            self._inner.interrupt()
        change()

    def kill(self) -> None:
        """Let the engine, which is up, do nothing more from now on."""
        self._inner.cut()
        self._is_killed = True

    def notice(self) -> bool:
        """Let the engine that was killed crash; False if it has crashed already."""
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
