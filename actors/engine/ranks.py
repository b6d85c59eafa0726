"""One batch on many ranks: their results are gathered, or the rank that differs is named."""

from collections.abc import Sequence
from functools import partial

from actors.kernel.actor import ActorDied, Reply
from actors.messages import StepResult


class RankDied(ActorDied):
    """A rank will not answer."""


class RanksDisagree(Exception):
    """A rank did other steps than rank 0: its state no longer agrees with the others'."""


class AllRanks:
    """Gathers the answers of all ranks to a batch: `reply` is rank 0's result, once all have come."""

    __slots__ = ("_names", "_num_missing", "_results", "_step", "reply")

    def __init__(self, step: int, names: Sequence[str], replies: Sequence[Reply[StepResult]]) -> None:
        self._step = step
        self._names = names
        self._results: list[StepResult | None] = [None] * len(replies)
        self._num_missing = len(replies)
        self.reply: Reply[StepResult] = Reply()
        for rank, reply in enumerate(replies):
            reply.then(partial(self._came, rank))

    def _came(self, rank: int, result: StepResult | None, error: BaseException | None) -> None:
        if self.reply.is_settled:
            return
        if error is not None:
            died = RankDied(f"rank {rank} ({self._names[rank]}) did not answer step {self._step}: {error}")
            died.__cause__ = error
            return self.reply.fail(died)
        self._results[rank] = result
        self._num_missing -= 1
        if not self._num_missing:
            self._compare([each for each in self._results if each is not None])

    def _compare(self, results: Sequence[StepResult]) -> None:
        first = results[0]
        for rank, result in enumerate(results):
            if (result.step, result.num_steps) != (first.step, first.num_steps):
                error = (
                    f"rank {rank} ({self._names[rank]}) did {result.num_steps} steps from step {result.step}"
                    f" on, where rank 0 did {first.num_steps} from step {first.step} on"
                )
                return self.reply.fail(RanksDisagree(error))
        self.reply.set(first)
