"""The Executor: one batch out to every rank, one result back."""

from collections.abc import Sequence

from actors.engine.ranks import AllRanks, RanksDisagree
from actors.kernel.actor import Actor, Handled, Ref, Reply, Tap, answer
from actors.messages import Batch, Capacity, Interrupt, Load, StepResult


class Executor(Actor[Batch | Interrupt | Load]):
    """Keeps ranks in step: a batch goes to all, and rank 0's answer is given once all have answered.

    The Executor does not block on the answers, so that an Interrupt finds it free. A rank that dies, or does
    other steps than rank 0, is named in the error given instead of an answer.
    """

    def __init__(
        self, name: str, runners: Sequence[Ref[Batch | Interrupt | Load]], *, tap: Tap | None = None
    ) -> None:
        super().__init__(name, capacity=4, tap=tap)
        self._runners = tuple(runners)

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
        if len(self._runners) == 1:  # no other rank to agree with: every step of most engines
            return self._runners[0].request(batch)
        replies = [runner.request(batch) for runner in self._runners]
        return AllRanks(batch.step, [runner.receiver for runner in self._runners], replies).reply

    def _interrupt(self, interrupt: Interrupt) -> None:
        for runner in self._runners:
            runner.tell(interrupt)

    async def _load(self, load: Load) -> Capacity:
        """The smallest capacity of all ranks."""
        replies = [runner.request(load) for runner in self._runners]
        capacities = [await reply.wait() for reply in replies]
        for runner, capacity in zip(self._runners, capacities, strict=True):
            if capacity.block_size != capacities[0].block_size:
                raise RanksDisagree(
                    f"{runner.receiver} has blocks of {capacity.block_size} tokens,"
                    f" {self._runners[0].receiver} of {capacities[0].block_size}: load them alike"
                )
        return min(capacities, key=lambda capacity: capacity.num_blocks)

    async def closed(self) -> None:
        for runner in self._runners:
            runner.close()
