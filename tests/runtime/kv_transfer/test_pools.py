"""Prompts computed on one engine and continued on another, with real tokens, on the virtual clock."""

import random
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from math import inf

import pytest
import trio

pytest.importorskip("torch", reason="the engine extra is not installed")

from sundog.actors.config import EngineConfig, SchedulerConfig
from sundog.actors.config.pools import EnginePool
from sundog.actors.core.chance import is_lost
from sundog.actors.core.params.sampling import Sampling
from sundog.actors.front.async_llm import FromClients
from sundog.actors.kernel.actor import Ref
from sundog.actors.kernel.clock import now_s
from sundog.actors.messages import Capacity, Generate
from sundog.runtime.kv_transfer.mover import KvMover
from sundog.runtime.kv_transfer.port import KvPort
from sundog.runtime.serve import RealModel, torch_backends
from sundog.sim.backend import CostBackend, Pace, Paced
from sundog.sim.client import Client
from sundog.sim.cost.calibrated import Calibrated
from sundog.sim.fleet.links import KvLinks
from sundog.sim.oracle import Oracle
from sundog.sim.record.journal import Journal, Past, decisions
from sundog.sim.replay import Surroundings, replay_on
from sundog.sim.trace.record import TraceRequest
from tests.runtime.variants import RUNNABLE

COST = Calibrated(0.004, 0.0002, 1e-6, 1e-4, 1e-7)
CAPACITY = Capacity(14, 16)
Asked = Callable[[TraceRequest], Generate]


def config(*, apart: bool, **limits: int) -> EngineConfig:
    """Tiny limits: prompts are chunked, and requests preempt one another."""
    known = {"max_num_seqs": 6, "max_num_batched_tokens": 40, "num_gpu_blocks": CAPACITY.num_blocks}
    scheduler = SchedulerConfig(max_model_len=192, **{**known, **limits})
    if not apart:
        return EngineConfig(scheduler=scheduler, debug=True)
    pools = (EnginePool("prefill", 1, scheduler), EnginePool("decode", 1, scheduler))
    return EngineConfig(scheduler=scheduler, replicas=2, pools=pools, debug=True)


def requests(seed: int, *, logprobs: bool = False) -> tuple[list[TraceRequest], Asked]:
    """Prompts of random tokens, half of them with one prefix; half of the answers are drawn by a seed."""
    rng = random.Random(seed)
    shared = tuple(rng.randrange(5, 900) for _ in range(40))
    generate_for, rows, now_s = {}, [], 0.0
    for number in range(12):
        tokens = tuple(rng.randrange(5, 900) for _ in range(rng.randint(3, 70)))
        prompt = shared + tokens if number % 2 else tokens
        sampling = Sampling(
            temperature=1.0 if number % 3 else 0.0,
            seed=number,
            max_tokens=rng.randint(2, 60),
            ignore_eos=rng.random() < 0.8,
            logprobs=2 if logprobs else None,
            prompt_logprobs=1 if logprobs else None,
        )
        name = f"r{number}"
        generate_for[name] = Generate(prompt, sampling, request_id=name)
        rows.append(TraceRequest(name, now_s, len(prompt), 1))
        now_s += rng.expovariate(40)
    return rows, lambda row: generate_for[row.request_id]


def real(
    rows: list[TraceRequest],
    generate_for: Asked,
    settings: EngineConfig,
    timeout_s: float | None = None,
    loss_rates: tuple[float, ...] = (),
    dtype: str = "float32",
) -> tuple[Journal, KvMover]:
    """What torch computes, with a mover between its engines if there are two."""
    model, journal, mover = RealModel.open(None), Journal(), KvMover()
    new_backend = torch_backends(model, settings, dtype=dtype)
    engines = [new_backend(replica) for replica in range(settings.replicas)]
    for rate in loss_rates:
        mover.lose(rate, more=True)
    ports = [KvPort(f"kv-port-{replica}", engine) for replica, engine in enumerate(engines)]
    for replica, port in enumerate(ports):
        mover.connect(replica, port.ref(mover.name))

    async def run_ports(llm: Ref[FromClients], client: Client) -> None:
        async with trio.open_nursery() as nursery:
            for port in ports:
                nursery.start_soon(port.live)

    replay_on(
        rows,
        settings,
        [Paced(engine, Pace(COST, f"runner-{replica}")) for replica, engine in enumerate(engines)],
        CAPACITY,
        generate_for=generate_for,
        listeners=[journal],
        vocabulary=model.vocabulary,
        client_timeout_s=timeout_s,
        surroundings=Surroundings(links=mover if settings.pools else None, drivers=[run_ports]),
    )
    return journal, mover


def answers(journal: Journal) -> dict[str, list[int]]:
    """The tokens that each client is given; the first engine gives none."""
    found = defaultdict[str, list[int]](list)
    for output in journal.outputs:
        handed = {finish.request_id for finish in output.finished if finish.reason == "handed"}
        for name, token in output.tokens or ():
            if name not in handed:
                found[name].append(token)
    return found


@pytest.mark.long(keep=1, reason="more seeds of the law whose first cases `make test` runs")
@pytest.mark.skipif(not RUNNABLE, reason="torch's kernels compute, whose sums depend on the batch")
@pytest.mark.parametrize(("seed", "dtype"), [(0, "float32"), (1, "float32"), (2, "float32"), (2, "bfloat16")])
def test_answers_of_pools_are_token_for_token_those_of_one_engine(seed: int, dtype: str) -> None:
    """Greedy and drawn by a seed, also where requests are preempted."""
    apart, mover = real(*requests(seed), config(apart=True), dtype=dtype)
    whole, _ = real(*requests(seed), config(apart=False, num_gpu_blocks=200), dtype=dtype)
    assert answers(apart) == answers(whole) and len(answers(apart)) == 12
    assert mover.totals.num_transfers == 12 and mover.totals.num_lost == 0
    assert any(batch.preempted for _, batch in decisions(apart.outputs)), "nothing was preempted"
    assert mover.totals.num_bytes > 0


@pytest.mark.long(keep=2, reason="more seeds of the law whose first cases `make test` runs")
@pytest.mark.parametrize("loss_rates", [(), (0.3, 0.2)], ids=["", "losses"])
@pytest.mark.parametrize("seed", range(3))
def test_pools_form_the_batches_that_a_simulation_forms(seed: int, loss_rates: tuple[float, ...]) -> None:
    """Each engine's batches, block by block, and their instants, where links cost nothing in either world.

    Faults lose the same transfers in both, and requests begin again.
    """
    settings = config(apart=True)
    there, mover = real(*requests(seed), settings, loss_rates=loss_rates)
    assert bool(mover.totals.num_lost) == bool(loss_rates)
    past, lengths = Past.of(there), {name: len(tokens) for name, tokens in answers(there).items()}
    here = Journal()
    oracles = [Oracle(), Oracle(lengths)]
    replay_on(
        [row._replace(num_output_tokens=lengths.get(row.request_id, 1)) for row in past.trace()],
        settings,
        [CostBackend(Pace(COST, f"runner-{n}"), each, CAPACITY) for n, each in enumerate(oracles)],
        CAPACITY,
        generate_for=past.counted,
        listeners=[here],
        surroundings=Surroundings(
            links=KvLinks([inf, inf], is_lost=lambda name: is_lost(0, name, now_s(), loss_rates))
        ),
    )
    for replica in range(2):
        one = [decisions([o for o in each.outputs if o.replica == replica]) for each in (there, here)]
        assert one[0] == one[1] and one[0]


@pytest.mark.long(keep=1, reason="more cases of the law whose first `make test` runs", moderate=True)
@pytest.mark.parametrize("seed", range(3))
def test_clients_that_leave_end_once_and_free_what_they_held_on_both_sides(seed: int) -> None:
    """With `debug` every engine verifies its blocks when it is idle; a last request needs them all."""
    rows, generate_for = requests(seed)
    longest = Generate(tuple(range(5, 180)), Sampling(temperature=0.0, max_tokens=8, ignore_eos=True))

    def asked(row: TraceRequest) -> Generate:
        return replace(longest, request_id="last") if row.request_id == "last" else generate_for(row)

    rows.append(TraceRequest("last", 60.0, 175, 1))
    journal, _ = real(rows, asked, config(apart=True), timeout_s=0.3)
    ends = [end for output in journal.outputs for end in output.finished if end.reason != "handed"]
    names = [end.request_id for end in ends]
    assert len(names) == len(set(names)) and {"abort", "length"} <= {end.reason for end in ends}
    assert len(answers(journal)["last"]) == 8


@pytest.mark.long(reason="starts a server, and asks it over sockets", moderate=True)
def test_log_probabilities_of_prompts_come_from_where_they_are_computed() -> None:
    """Once for each token of a prompt but its first."""
    rows, generate_for = requests(1, logprobs=True)
    apart, _ = real(rows, generate_for, config(apart=True))
    whole, _ = real(rows, generate_for, config(apart=False, num_gpu_blocks=200))

    def scored(journal: Journal) -> dict[str, list[int]]:
        found = defaultdict[str, list[int]](list)
        for output in journal.outputs:
            for part in output.prompt_logprobs:
                found[part.request_id] += [token.token_id for token in part.tokens]
        return found

    assert scored(apart) == scored(whole) and len(scored(apart)) == 12
