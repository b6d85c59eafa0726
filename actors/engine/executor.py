"""The Executor: one batch out to every rank, one result back."""

from collections.abc import Sequence
from typing import Any

from actors.actor import Actor, Ref, Reply, Tap
from actors.messages import Batch, Capacity, Interrupt, Load


class Executor(Actor):
    """Keeps ranks in step: a batch goes to all of them, and rank 0 answers for all.

    It does not wait for the answer, so that an Interrupt finds it free.
    """

    def __init__(self, name: str, runners: Sequence[Ref], *, tap: Tap | None = None) -> None:
        super().__init__(name, capacity=4, tap=tap)
        self._runners = runners

    def handle(self, message: Any) -> Any:
        match message:
            case Batch():
                return self._request_all(message)[0]
            case Interrupt():
                for runner in self._runners:
                    runner.tell(message)
                return None
            case Load():
                return self._load(message)
        return super().handle(message)

    def _request_all(self, message: Any) -> list[Reply]:
        return [runner.request(message) for runner in self._runners]

    async def _load(self, message: Load) -> Capacity:
        """What every rank can hold."""
        capacities: list[Capacity] = [await reply.wait() for reply in self._request_all(message)]
        return min(capacities, key=lambda capacity: capacity.num_blocks)

    async def closed(self) -> None:
        for runner in self._runners:
            runner.close()
