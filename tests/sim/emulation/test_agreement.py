"""An emulated server and a replay of the same arrivals: the same graph, so the same times."""

from dataclasses import replace

import pytest
import trio

from sundog.actors.config import EngineConfig, SchedulerConfig
from sundog.actors.config.front_costs import NO_FRONT, FrontCosts
from sundog.actors.core.params.sampling import Sampling
from sundog.actors.front.front_end import FrontEnd
from sundog.actors.graph import open_graph
from sundog.actors.messages import Accepted, Capacity, Generate
from sundog.actors.metrics.totals import Lag
from sundog.sim.clock import run_virtual
from sundog.sim.cost.calibrated import Calibrated
from sundog.sim.emulation.answers import Answers, picked
from sundog.sim.emulation.backends import emulated_backends
from sundog.sim.replay import replay
from sundog.sim.trace.record import TraceRequest

COST = Calibrated(6e-3, 2e-5, 3.7e-9, 2e-4, 1e-10)
CAPACITY = Capacity(4001, 16)
CONFIG = EngineConfig(
    scheduler=SchedulerConfig(max_num_seqs=32, max_model_len=4096, enable_prefix_caching=False)
)
FRONT_END_S = 0.007
WITHIN_S = 1e-6


def trace(gap_s: float) -> list[TraceRequest]:
    return [
        TraceRequest(f"q{n}", n * gap_s, 100 + 97 * n % 700, 20 + 31 * n % 90, tenant=None) for n in range(60)
    ]


def seen(rows: list[TraceRequest], config: EngineConfig) -> dict[str, tuple[float, float, float]]:
    """TTFT, TPOT and E2E that clients of the emulated graph see, on the virtual clock."""
    found: dict[str, tuple[float, float, float]] = {}
    answers = Answers(picked([(5, 6)], 0), (7, 8))
    backend = emulated_backends(COST, CAPACITY, answers, 2, 100, Lag(1))(0)
    backend._pace.early_s = 0.0  # this clock is exact

    async def main() -> None:
        async with (
            open_graph(config, [backend], front_end=FrontEnd(FRONT_END_S, config.front.request)) as llm,
            trio.open_nursery() as nursery,
        ):

            async def client(row: TraceRequest) -> None:
                await trio.sleep_until(row.arrival_s)
                sampling = Sampling(max_tokens=row.num_output_tokens, ignore_eos=True)
                prompt = tuple(range(row.num_prompt_tokens))
                answer = await llm.ask(Generate(prompt, sampling, row.request_id))
                assert isinstance(answer, Accepted)
                times_s = []
                async for delta in answer.stream:
                    times_s += [trio.current_time()] * delta.num_tokens
                first_s, last_s = times_s[0] - row.arrival_s, times_s[-1] - row.arrival_s
                found[row.request_id] = first_s, (last_s - first_s) / (len(times_s) - 1), last_s

            for row in rows:
                nursery.start_soon(client, row)

    run_virtual(main)
    return found


THREE_LOOPS = FrontCosts(0.05, processes=3, stages=3)


@pytest.mark.long(keep=1, reason="more cases of the law whose first `make test` runs", moderate=True)
@pytest.mark.parametrize("front", [NO_FRONT, FrontCosts(0.015, 0.004), THREE_LOOPS])
@pytest.mark.parametrize("gap_s", [0.2, 0.02])
def test_an_emulated_server_agrees_with_a_replay(gap_s: float, front: FrontCosts) -> None:
    """At light load and near saturation: TTFT, TPOT and E2E of every request."""
    rows = trace(gap_s)
    config = replace(CONFIG, front=front)
    emulated = seen(rows, config)
    recorder = replay(rows, config, COST, CAPACITY, front_end_s=FRONT_END_S)
    columns = recorder.columns
    errors_s = []
    for index, name in enumerate(columns.request_id):
        arrival_s, first_s, finish_s = (
            column[index] for column in (columns.arrival_s, columns.first_token_s, columns.finish_s)
        )
        ttft_s, tpot_s, e2e_s = emulated[name]
        num_tokens = columns.num_output_tokens[index]
        errors_s += [
            ttft_s - (first_s - arrival_s + FRONT_END_S),
            tpot_s - (finish_s - first_s) / (num_tokens - 1),
            e2e_s - (finish_s - arrival_s + FRONT_END_S),
        ]
    assert max(map(abs, errors_s)) < WITHIN_S
