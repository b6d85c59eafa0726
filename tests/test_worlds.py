"""Real and simulated engines take the same decisions: torch on the virtual clock against the cost backend."""

import random
from collections.abc import Callable
from dataclasses import replace

import pytest

from sundog.actors.config import EngineConfig, SchedulerConfig
from sundog.actors.core.params.sampling import Sampling
from sundog.actors.messages import Capacity, Generate
from sundog.actors.policy_file import find_policy
from sundog.sim.backend import CostBackend, Pace, Paced
from sundog.sim.cost.calibrated import Calibrated
from sundog.sim.oracle import Oracle
from sundog.sim.record.journal import Journal, Past, decisions
from sundog.sim.replay import replay_on
from sundog.sim.trace.record import TraceRequest
from tests.core.policies.world import OF_DOCS

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


def for_policies(seed: int) -> tuple[list[TraceRequest], Callable[[TraceRequest], Generate]]:
    """The same, with all that policies look at."""
    rng = random.Random(f"policies {seed}")
    rows, generate_for = requests(seed)
    wants = {
        row.request_id: {
            "tenant": rng.choice(["a", "batch", "b"]),
            "priority": rng.randrange(3),
            "session": rng.choice([None, "s"]),
            "predicted_tokens": rng.choice([None, rng.randrange(1, 60)]),
            "slo_ttft_s": rng.choice([None, rng.uniform(0.01, 0.6)]),
            "slo_tpot_s": rng.choice([None, 0.02]),
            "slo_e2e_s": rng.choice([None, 1.0]),
        }
        for row in rows
    }
    return rows, lambda row: replace(generate_for(row), **wants[row.request_id])


def real(
    rows: list[TraceRequest], generate_for: Callable[[TraceRequest], Generate], settings: EngineConfig
) -> Journal:
    """What torch computes, on the virtual clock."""
    from sundog.runtime.serve import RealModel, torch_backends

    model, journal = RealModel.open(None), Journal()
    backend = Paced(torch_backends(model, settings, dtype="float32")(0), Pace(COST, "runner-0"))
    replay_on(
        rows,
        settings,
        [backend],
        CAPACITY,
        generate_for=generate_for,
        listeners=[journal],
        vocabulary=model.vocabulary,
    )
    return journal


def simulated(past: Past, settings: EngineConfig) -> Journal:
    """What a cost backend makes of the same requests, with an oracle that knows only lengths."""
    trace, journal = past.trace(), Journal()
    oracle = Oracle({row.request_id: row.num_output_tokens for row in trace})
    replay_on(
        trace,
        settings,
        [CostBackend(Pace(COST, "runner-0"), oracle, CAPACITY)],
        CAPACITY,
        generate_for=past.counted,
        listeners=[journal],
    )
    return journal


@pytest.mark.long(keep=3, reason="more seeds of the law whose first cases `make test` runs")
@pytest.mark.parametrize("async_scheduling", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_both_worlds_form_the_same_batches(seed: int, async_scheduling: bool) -> None:
    """Chunks, hits, block ids, preemptions and instants."""
    settings = config(async_scheduling=async_scheduling)
    there = real(*requests(seed), settings)
    assert sum(len(batch.preempted) for _, batch in decisions(there.outputs)) > 0, "nothing was preempted"
    assert decisions(simulated(Past.of(there), settings).outputs) == decisions(there.outputs)


@pytest.mark.long(keep=3, reason="more seeds of the law whose first cases `make test` runs")
@pytest.mark.parametrize("async_scheduling", [False, True])
@pytest.mark.parametrize("policy", OF_DOCS, ids=lambda name: name.rpartition("/")[2])
def test_both_worlds_decide_alike_under_every_policy_of_the_docs(policy: str, async_scheduling: bool) -> None:
    """Batches, ranks, ends and refusals; and they are others than first come, first served."""
    first_come, differs = config(async_scheduling=async_scheduling), False
    settings = replace(first_come, policy=find_policy(policy))
    for seed in range(2):
        there = real(*for_policies(seed), settings)
        here = simulated(Past.of(there), settings)
        assert decisions(here.outputs) == decisions(there.outputs), f"seed {seed}"
        assert [o.ranks for o in here.outputs] == [o.ranks for o in there.outputs], f"seed {seed}"
        assert ends(here) == ends(there), f"seed {seed}"
        differs |= decisions(simulated(Past.of(there), first_come).outputs) != decisions(there.outputs)
    assert differs, "the policy decides nothing here"


def ends(journal: Journal) -> list[tuple[str, bool, str | None, float | None]]:
    """Who ended in turn, and whether it was refused, with what its client is told."""
    return [
        (end.request_id, end.reason == "refused", end.error, end.retry_after_s)
        for output in journal.outputs
        for end in output.finished
    ]
