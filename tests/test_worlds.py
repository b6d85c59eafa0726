"""Both worlds take the same decisions: torch on the virtual clock beside the cost backend."""

import random
from collections.abc import Callable

import pytest

from actors.config import EngineConfig, SchedulerConfig
from actors.core.sampling import Sampling
from actors.messages import Capacity, Generate
from sim.backend import CostBackend, Pace
from sim.cost.calibrated import Calibrated
from sim.oracle import Oracle
from sim.paced import Paced
from sim.record.journal import Journal, Past, decisions
from sim.replay import replay_on
from sim.trace.record import TraceRequest

torch = pytest.importorskip("torch", reason="the engine extra is not installed")

COST = Calibrated(0.004, 0.0002, 1e-6, 1e-4, 1e-7)
CAPACITY = Capacity(14, 16)


def config(*, async_scheduling: bool = False) -> EngineConfig:
    """Tiny limits: prompts are chunked, and requests preempt one another."""
    limits = SchedulerConfig(
        max_num_seqs=6,
        max_num_batched_tokens=40,
        max_model_len=192,
        num_gpu_blocks=CAPACITY.num_blocks,
        async_scheduling=async_scheduling,
    )
    return EngineConfig(scheduler=limits)


def requests(seed: int) -> tuple[list[TraceRequest], Callable[[TraceRequest], Generate]]:
    """Arrivals, and what each asks for: prompts of random tokens, half of them with one prefix."""
    rng = random.Random(seed)
    shared = tuple(rng.randrange(5, 900) for _ in range(40))
    generate_for, rows, now_s = {}, [], 0.0
    for number in range(12):
        tokens = tuple(rng.randrange(5, 900) for _ in range(rng.randint(3, 70)))
        prompt = shared + tokens if number % 2 else tokens
        sampling = Sampling(temperature=0.0, max_tokens=rng.randint(2, 60), ignore_eos=rng.random() < 0.8)
        name = f"r{number}"
        generate_for[name] = Generate(prompt, sampling, request_id=name)
        rows.append(TraceRequest(name, now_s, len(prompt), 1))
        now_s += rng.expovariate(40)
    return rows, lambda row: generate_for[row.request_id]


@pytest.mark.parametrize("async_scheduling", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_both_worlds_form_the_same_batches(seed: int, async_scheduling: bool) -> None:
    """Chunks, hits, block ids, preemptions and instants, with an oracle that knows only lengths."""
    from runtime.serve import RealModel, torch_backends

    rows, generate_for = requests(seed)
    settings = config(async_scheduling=async_scheduling)
    model = RealModel.open(None)
    real = Journal()
    backend = Paced(torch_backends(model, settings, dtype="float32")(0), Pace(COST, "runner-0"))
    replay_on(
        rows,
        settings,
        [backend],
        CAPACITY,
        generate_for=generate_for,
        listeners=[real],
        vocabulary=model.vocabulary,
    )

    past, simulated = Past.of(real), Journal()
    trace = past.trace()
    oracle = Oracle({row.request_id: row.num_output_tokens for row in trace})
    replay_on(
        trace,
        settings,
        [CostBackend(Pace(COST, "runner-0"), oracle, CAPACITY)],
        CAPACITY,
        generate_for=past.counted,
        listeners=[simulated],
    )
    there = decisions(real.outputs)
    assert sum(len(batch.preempted) for _, batch in there) > 0, "nothing was preempted"
    assert decisions(simulated.outputs) == there
