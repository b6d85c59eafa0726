"""The Executor: one batch out to every rank, one result back."""

from collections.abc import Sequence
from typing import Any

from actors.actor import Actor, Ref, Tap
from actors.messages import Batch, Capacity, Interrupt, Load


class Executor(Actor):
    """Keeps ranks in step: a batch goes to all of them, and rank 0 answers for all."""

    def __init__(self, name: str, runners: Sequence[Ref], *, tap: Tap | None = None) -> None:
        super().__init__(name, capacity=4, tap=tap)
        self._runners = runners

    async def handle(self, message: Any) -> Any:
        match message:
            case Batch(max_steps=1):
                return (await self._ask_all(message))[0]
            case Batch():
                return await self._run(message)
            case Interrupt():
                return None
            case Load():
                capacities: list[Capacity] = await self._ask_all(message)
                return min(capacities, key=lambda capacity: capacity.num_blocks)
        return await super().handle(message)

    async def _run(self, batch: Batch) -> Any:
        """Have a run of steps done; whatever arrives meanwhile is an Interrupt."""
        self.mailbox.doorbell = lambda: self._interrupt(batch.step)
        if len(self.mailbox.envelopes):
            self._interrupt(batch.step)
        results = await self._ask_all(batch)
        self.mailbox.doorbell = None
        return results[0]

    def _interrupt(self, step: int) -> None:
        self.mailbox.doorbell = None
        for runner in self._runners:
            runner.tell(Interrupt(step))

    async def _ask_all(self, message: Any) -> list[Any]:
        if len(self._runners) == 1:
            return [await self._runners[0].ask(message)]
        replies = [await runner.request(message) for runner in self._runners]
        return [await reply.wait() for reply in replies]

    async def closed(self) -> None:
        for runner in self._runners:
            runner.close()
