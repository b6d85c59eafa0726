"""The Executor: one batch out to every rank, one result back."""

from collections.abc import Sequence
from typing import Any

from actors.actor import Actor, Ref, Tap
from actors.messages import Batch, Capacity, Load


class Executor(Actor):
    """Keeps ranks in step: a batch goes to all of them, and rank 0 answers for all."""

    def __init__(self, name: str, runners: Sequence[Ref], *, tap: Tap | None = None) -> None:
        super().__init__(name, capacity=4, tap=tap)
        self._runners = runners

    async def handle(self, message: Any) -> Any:
        match message:
            case Batch():
                return (await self._ask_all(message))[0]
            case Load():
                capacities: list[Capacity] = await self._ask_all(message)
                return min(capacities, key=lambda capacity: capacity.num_blocks)
        return await super().handle(message)

    async def _ask_all(self, message: Any) -> list[Any]:
        if len(self._runners) == 1:
            return [await self._runners[0].ask(message)]
        replies = [await runner.request(message) for runner in self._runners]
        return [await reply.wait() for reply in replies]

    async def closed(self) -> None:
        for runner in self._runners:
            runner.close()
