"""The Executor sends every batch to every rank in order, and requires equal results from all."""

from typing import Any

import pytest
import trio

from sundog.actors.core.batch import Batch, StepResult
from sundog.actors.engine.engine_core import run_engine_core
from sundog.actors.engine.executor import Executor, RankDied, RanksDisagree, Runner
from sundog.actors.kernel.actor import ActorDied, Ref, Reply
from sundog.actors.kernel.clock import now_s
from sundog.actors.messages import Capacity, EngineRefs, Interrupt, Load, Submit
from tests.actors.fakes import EOS, FakeBackend, Listener, engine_config


class HeldBackend:
    """A rank that answers when it is told to, with as many steps as it is told."""

    def __init__(self, capacity: Capacity | None = None) -> None:
        self.capacity = capacity or Capacity(9, 4)
        self.batches: list[Batch] = []
        self.replies: list[Reply[StepResult]] = []
        self.num_interrupts = 0

    async def load(self) -> Capacity:
        return self.capacity

    def execute(self, batch: Batch) -> Reply[StepResult]:
        self.batches.append(batch)
        self.replies.append(Reply())
        return self.replies[-1]

    def interrupt(self) -> None:
        self.num_interrupts += 1

    async def close(self) -> None:
        """Nothing was taken."""

    def answer(self, num_steps: int = 1, token: int = 7) -> None:
        """The oldest batch that waits for its result."""
        index = next(i for i, reply in enumerate(self.replies) if not reply.is_settled)
        step = self.batches[index].step
        self.replies[index].set(StepResult(step, (now_s(),) * num_steps, (("r", token),)))


async def start(nursery: trio.Nursery, *backends: Any) -> Ref[Any]:
    """An Executor over a rank for each backend."""
    runners = [Runner(f"runner-0.{rank}", backend) for rank, backend in enumerate(backends)]
    executor = Executor("executor-0", [runner.ref("executor-0") for runner in runners])
    ref = executor.ref("test")
    for actor in (*runners, executor):
        await nursery.start(actor.live, name=actor.name)
    return ref


def leaves(error: BaseException) -> list[BaseException]:
    if not isinstance(error, BaseExceptionGroup):
        return [error]
    return [leaf for part in error.exceptions for leaf in leaves(part)]


async def test_every_rank_gets_every_batch_in_order_and_rank_0_answers_when_all_have() -> None:
    """Whoever is first; an interrupt goes to all while the batch runs."""
    first, second = HeldBackend(), HeldBackend()
    async with trio.open_nursery() as nursery:
        ref = await start(nursery, first, second)
        one, two = ref.request(Batch(1)), ref.request(Batch(2))
        assert first.batches == second.batches == [Batch(1), Batch(2)]
        ref.tell(Interrupt(1))
        assert (first.num_interrupts, second.num_interrupts) == (1, 1)
        second.answer(token=8)
        second.answer(token=8)
        assert not (one.is_settled or two.is_settled)
        first.answer()
        assert (await one.wait()).tokens == (("r", 7),) and not two.is_settled
        first.answer()
        assert (await two.wait()).step == 2
        ref.close()


async def test_a_rank_that_did_another_number_of_steps_is_named() -> None:
    """Its state is not that of the others any more."""
    first, second, third = HeldBackend(), HeldBackend(), HeldBackend()
    async with trio.open_nursery() as nursery:
        ref = await start(nursery, first, second, third)
        result = ref.request(Batch(5, max_steps=9))
        first.answer(3)
        third.answer(2)
        second.answer(3)
        with pytest.raises(RanksDisagree, match=r"rank 2 \(runner-0\.2\) did 2 steps .* where rank 0 did 3"):
            await result.wait()
        ref.close()


async def test_a_rank_that_dies_is_named_though_the_others_answer() -> None:
    """Whether it dies of this batch or before; its own error leaves the nursery."""

    class Faulty(HeldBackend):
        def execute(self, batch: Batch) -> Reply[StepResult]:
            raise ZeroDivisionError("a bug in rank 1")

    first = HeldBackend()
    with pytest.raises(ExceptionGroup) as caught:
        async with trio.open_nursery() as nursery:
            ref = await start(nursery, first, Faulty())
            result = ref.request(Batch(1))
            first.answer()
            with (
                trio.CancelScope(shield=True),
                pytest.raises(RankDied, match=r"rank 1 \(runner-0\.1\) did not"),
            ):
                await result.wait()
    assert any(isinstance(leaf, ZeroDivisionError) for leaf in leaves(caught.value))


async def test_what_all_ranks_hold_is_what_the_smallest_holds() -> None:
    """And their blocks must be of one size."""
    async with trio.open_nursery() as nursery:
        ref = await start(nursery, HeldBackend(Capacity(9, 4)), HeldBackend(Capacity(7, 4)))
        assert await ref.ask(Load()) == Capacity(7, 4)
        ref.close()
    with pytest.raises(ExceptionGroup) as caught:
        async with trio.open_nursery() as nursery:
            ref = await start(nursery, HeldBackend(Capacity(9, 4)), HeldBackend(Capacity(9, 8)))
            with trio.CancelScope(shield=True), pytest.raises(ActorDied):
                await ref.ask(Load())
    assert caught.group_contains(RanksDisagree, match=r"runner-0\.1 has blocks of 8 tokens, runner-0\.0 of 4")


class Recorded(FakeBackend):
    """Keeps its batches."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.batches: list[Batch] = []

    def execute(self, batch: Batch) -> Reply[StepResult]:
        self.batches.append(batch)
        return super().execute(batch)


@pytest.mark.parametrize("is_async", [False, True])
async def test_an_engine_of_two_ranks_serves_as_one_of_one(is_async: bool) -> None:
    """The same steps, tokens and ends; both ranks saw every batch, and were closed."""
    outputs = {f"r{n}": (*range(1, 5 + n), EOS) for n in range(6)}
    heard = []
    for num_ranks in (1, 2):
        backends = [Recorded(outputs, key=f"rank-{rank}") for rank in range(num_ranks)]
        listener = Listener()
        async with trio.open_nursery() as nursery:
            hold = listener.ref("test")
            await nursery.start(listener.live)
            config = engine_config(async_scheduling=is_async)
            engine = await nursery.start(serve_on, config, listener, backends)
            for number in range(6):
                prompt = tuple(range(10, 15 + number))
                engine.scheduler.tell(
                    Submit(f"r{number}", now_s(), len(prompt), 30, prompt, eos_token_id=EOS)
                )
                await trio.sleep(0.03)
            engine.close()
            await trio.sleep(10)
            hold.close()
        heard.append([(o.step, o.tokens, o.finished, o.batch) for o in listener.outputs])
        assert all(backend.batches == backends[0].batches for backend in backends)
        assert [backend.life for backend in backends] == [["load", "close"]] * num_ranks
    assert heard[0] == heard[1]
    assert sum(len(finished) for _, _, finished, _ in heard[0]) == 6


async def serve_on(
    config: Any, listener: Listener, backends: list[Recorded], *, task_status: trio.TaskStatus[EngineRefs]
) -> None:
    await run_engine_core(0, config, [listener], None, None, backends, on_up=task_status.started)
