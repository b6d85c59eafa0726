"""The Executor: one batch out to every rank, one result back."""

from collections.abc import Sequence

from actors.actor import Actor, Handled, Ref, Reply, Tap, answer
from actors.messages import Batch, Capacity, Interrupt, Load, StepResult


class Executor(Actor[Batch | Interrupt | Load]):
    """Keeps ranks in step: a batch goes to all of them, and rank 0 answers for all.

    It does not wait for the answer, so that an Interrupt finds it free.
    """

    def __init__(
        self, name: str, runners: Sequence[Ref[Batch | Interrupt | Load]], *, tap: Tap | None = None
    ) -> None:
        super().__init__(name, capacity=4, tap=tap)
        self._runners = runners

    def handle(self, message: Batch | Interrupt | Load) -> Handled:
        match message:
            case Batch():
                return answer(message, self._execute(message))
            case Interrupt():
                self._interrupt(message)
            case Load():
                return answer(message, self._load(message))
            case _:
                self.unknown(message)
        return None

    def _execute(self, batch: Batch) -> Reply[StepResult]:
        replies = [runner.request(batch) for runner in self._runners]
        return replies[0]

    def _interrupt(self, interrupt: Interrupt) -> None:
        for runner in self._runners:
            runner.tell(interrupt)

    async def _load(self, message: Load) -> Capacity:
        """What every rank can hold."""
        replies = [runner.request(message) for runner in self._runners]
        capacities = [await reply.wait() for reply in replies]
        return min(capacities, key=lambda capacity: capacity.num_blocks)

    async def closed(self) -> None:
        for runner in self._runners:
            runner.close()
