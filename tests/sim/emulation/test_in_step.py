"""Emulated data-parallel ranks that share experts: they step together, as a replay of them does."""

import pytest
import trio

from sundog.actors.config import EngineConfig, SchedulerConfig
from sundog.actors.core.params.sampling import Sampling
from sundog.actors.core.routers import RoundRobin
from sundog.actors.graph import open_graph
from sundog.actors.messages import Accepted, Capacity, Generate
from sundog.actors.metrics.totals import Lag
from sundog.sim.clock import run_virtual
from sundog.sim.cost.composed import InStep
from sundog.sim.cost.work import CostModel, StepWork
from sundog.sim.emulation.answers import Answers, picked
from sundog.sim.emulation.backends import emulated_backends
from sundog.sim.replay import replay
from sundog.sim.trace.record import TraceRequest

CAPACITY = Capacity(4001, 16)
ROWS = [TraceRequest(f"q{n}", n * 0.0137, 100 + 97 * n % 700, 20 + 31 * n % 90) for n in range(40)]


class Steady(CostModel):
    """Longer by each token of the rank, and of all ranks."""

    def step_s(self, work: StepWork) -> float:
        return 5e-3 + 3e-5 * work.num_tokens + 1e-5 * work.num_routed_tokens


def config(num_ranks: int) -> EngineConfig:
    limits = SchedulerConfig(max_num_seqs=32, max_model_len=4096, enable_prefix_caching=False)
    return EngineConfig(scheduler=limits, replicas=num_ranks, router=RoundRobin())


def finishes(num_ranks: int, num_in_step: int) -> dict[str, float]:
    """When clients of the emulated graph have all of each answer, on the virtual clock."""
    found: dict[str, float] = {}
    answers, lag = Answers(picked([(5, 6)], 0), (7, 8)), Lag(num_ranks)
    make = emulated_backends(InStep(Steady(), num_in_step), CAPACITY, answers, 2, 100, lag)
    backends = [make(rank) for rank in range(num_ranks)]
    for backend in backends:
        backend._wave.pace.early_s = 0.0  # type: ignore[union-attr]  # this clock is exact

    async def main() -> None:
        async with open_graph(config(num_ranks), backends) as llm, trio.open_nursery() as nursery:

            async def client(row: TraceRequest) -> None:
                await trio.sleep_until(row.arrival_s)
                sampling = Sampling(max_tokens=row.num_output_tokens, ignore_eos=True)
                answer = await llm.ask(
                    Generate(tuple(range(row.num_prompt_tokens)), sampling, row.request_id)
                )
                assert isinstance(answer, Accepted)
                async for _ in answer.stream:
                    found[row.request_id] = trio.current_time()

            for row in ROWS:
                nursery.start_soon(client, row)

    run_virtual(main)
    assert lag.lost_s == [0.0] * num_ranks
    return found


@pytest.mark.parametrize(("num_ranks", "num_in_step"), [(2, 2), (4, 2)])
def test_they_take_what_a_replay_of_them_takes(num_ranks: int, num_in_step: int) -> None:
    """Request by request, of one group of ranks and of two."""
    recorder = replay(ROWS, config(num_ranks), InStep(Steady(), num_in_step), CAPACITY)
    columns = recorder.columns
    replayed = dict(zip(columns.request_id, columns.finish_s, strict=True))
    emulated = finishes(num_ranks, num_in_step)
    assert emulated == {name: pytest.approx(replayed[name], abs=1e-6) for name in emulated}
    assert len(emulated) == len(ROWS)
