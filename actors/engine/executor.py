"""The Executor sends a batch to the Runner of every rank, and returns one result."""

from collections.abc import Sequence
from functools import partial

from mypy_extensions import mypyc_attr

from sundog.actors.engine.backend import Backend, DoesRuns, LoadsAdapters
from sundog.actors.kernel.actor import Actor, ActorDied, Handled, Ref, Reply, Tap, answer
from sundog.actors.kernel.reply import Answered, Reader
from sundog.actors.messages import (
    Batch,
    Capacity,
    ChangeAdapters,
    Done,
    Interrupt,
    Load,
    Refused,
    StepResult,
    ToRunner,
)


@mypyc_attr(allow_interpreted_subclasses=True)
class QueuesBatches:
    """Backend that queues batches and answers each itself, which spares a reply for each."""

    def enqueue(self, batch: Batch, reply: Reader) -> None:
        """Execute a batch behind all earlier ones; `reply` gets the StepResult, or an error."""
        raise NotImplementedError


class Runner(Actor[ToRunner]):
    """The actor around the Backend of one rank. It executes one message after another."""

    def __init__(self, name: str, backend: Backend, *, tap: Tap | None = None) -> None:
        super().__init__(name, capacity=4, tap=tap)
        self._backend = backend
        self._queues = backend if isinstance(backend, QueuesBatches) else None
        self._does_runs = backend if isinstance(backend, DoesRuns) else None

    def handle(self, message: ToRunner) -> Handled:
        match message:
            case Batch():
                if self._queues is None:
                    return answer(message, self._backend.execute(message))
                self._queues.enqueue(message, self.leave_reply())
            case Interrupt():
                self._interrupt()
            case Load():
                return answer(message, self._backend.load())
            case ChangeAdapters():
                return Answered(self._change_adapters(message))
            case _:
                self.unknown(message)
        return None

    async def _change_adapters(self, change: ChangeAdapters) -> Done | Refused:
        """Load adapters into the backend; do nothing if it computes nothing."""
        loads = self._backend
        return await loads.change_adapters(change) if isinstance(loads, LoadsAdapters) else Done()

    def _interrupt(self) -> None:
        if self._does_runs is not None:
            self._does_runs.interrupt()


class RankDied(ActorDied):
    """Raised if a rank has ended and will not answer."""


class RanksDisagree(Exception):
    """Raised if a rank did other steps than rank 0: its state differs from the others'."""


class AllRanks:
    """Collector of all ranks' results of a batch. `reply` is rank 0's result, once all have come."""

    __slots__ = ("_names", "_num_missing", "_results", "_step", "reply")

    def __init__(self, step: int, names: Sequence[str], replies: Sequence[Reply[StepResult]]) -> None:
        self._step = step
        self._names = names
        self._results: list[StepResult | None] = [None] * len(replies)
        self._num_missing = len(replies)
        self.reply: Reply[StepResult] = Reply()
        for rank, reply in enumerate(replies):
            reply.then(partial(self._collect, rank))

    def _collect(self, rank: int, result: StepResult | None, error: BaseException | None) -> None:
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


class Executor(Actor[ToRunner]):
    """Actor that sends each batch to all ranks and returns rank 0's result.

    It does not block on the results, so it can handle an Interrupt meanwhile. If a rank dies, or returns
    other steps than rank 0, the reply is an error that names it.
    """

    def __init__(self, name: str, runners: Sequence[Ref[ToRunner]], *, tap: Tap | None = None) -> None:
        super().__init__(name, capacity=4, tap=tap)
        self._runners = tuple(runners)
        self._only = runners[0] if len(runners) == 1 else None
        """Single runner, without other ranks to compare with."""

    def handle(self, message: ToRunner) -> Handled:
        match message:
            case Batch():
                if self._only is None:
                    return answer(message, self._execute(message))
                self.pass_on(self._only, message)
            case Interrupt():
                self._interrupt(message)
            case Load():
                return answer(message, self._load(message))
            case ChangeAdapters():  # ranks that share a model have none
                return answer(message, self._runners[0].request(message))
            case _:
                self.unknown(message)
        return None

    def _execute(self, batch: Batch) -> Reply[StepResult]:
        replies = [runner.request(batch) for runner in self._runners]
        return AllRanks(batch.step, [runner.receiver for runner in self._runners], replies).reply

    def _interrupt(self, interrupt: Interrupt) -> None:
        for runner in self._runners:
            runner.tell(interrupt)

    async def _load(self, load: Load) -> Capacity:
        """Return the smallest capacity of all ranks.

        Raises:
            RanksDisagree: Ranks have different block sizes.
        """
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
