"""KV blocks in host memory: closed forms, and invariants with tiny tiers and pools."""

import random
from dataclasses import replace
from typing import Any

import pytest

from sundog.actors.config import EngineConfig, SchedulerConfig
from sundog.actors.core.config import HostMemory
from sundog.actors.core.policies import Policy, Priority
from sundog.actors.messages import Capacity
from sundog.sim.cost.work import StepWork
from sundog.sim.figures.metrics import summarize
from sundog.sim.record.recorder import Recorder
from sundog.sim.record.rows import Rows, steps_table
from sundog.sim.replay import replay
from sundog.sim.trace.record import TraceRequest
from tests.core.traces import num_cases
from tests.sim.fleet.fleets import crowd, fleet, limits, played, with_witness
from tests.sim.toy import COST

BLOCK, BLOCKS = 16, 21
"""One request of the full context."""
LOAD_S = 0.01
HOST = HostMemory(40, LOAD_S, 0.02)


def config(host: HostMemory | None = HOST, policy: Policy | None = None, **fields: Any) -> EngineConfig:
    own = {"decode_runs": fields.pop("decode_runs", True), "debug": True}
    chosen = {"policy": policy} if policy is not None else {}
    return EngineConfig(limits(host_memory=host, **fields), **own, **chosen)


def run(rows: list[TraceRequest], own: EngineConfig, num_blocks: int = BLOCKS, **options: Any) -> Recorder:
    return replay(rows, own, COST, Capacity(num_blocks, BLOCK), **options)


def prompt(name: str, at_s: float, first_id: int, num_tokens: int, num_output: int = 4) -> TraceRequest:
    ids = tuple(range(first_id, first_id + num_tokens // BLOCK))
    return TraceRequest(name, at_s, num_tokens, num_output, hash_ids=ids, hash_block_tokens=BLOCK)


FORGOTTEN = [prompt("first", 0.0, 0, 165), prompt("other", 10.0, 100, 310), prompt("again", 20.0, 0, 165)]
"""Between two equal prompts one that takes every block of the GPU."""


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
def test_a_prompt_on_the_host_takes_its_bytes_over_the_bandwidth_and_one_step(is_async: bool) -> None:
    """To a nanosecond: ten blocks, and the step of the five tokens behind them."""
    rows = Rows.of(run(FORGOTTEN, config(async_scheduling=is_async)).columns)
    step_s = COST.step_s(StepWork(0, 0, ((5, 160),), 1))
    assert rows.first_token_s[2] - 20.0 == pytest.approx(10 * LOAD_S + step_s, abs=1e-9)
    assert list(rows.prefix_hit_tokens) == [0, 0, 160]


def test_a_prompt_that_is_there_to_its_last_token_computes_that_one_again() -> None:
    """All of its blocks are loaded, and one token is left to sample from."""
    rows = [prompt("first", 0.0, 0, 160), FORGOTTEN[1], prompt("again", 20.0, 0, 160)]
    found = Rows.of(run(rows, config()).columns)
    step_s = COST.step_s(StepWork(0, 0, ((1, 159),), 1))
    assert found.first_token_s[2] - 20.0 == pytest.approx(10 * LOAD_S + step_s, abs=1e-9)
    assert found.prefix_hit_tokens[2] == 159


def test_what_the_gpu_holds_is_not_loaded() -> None:
    """The longest run on the GPU first, then what the host has beyond it."""
    rows = [prompt("first", 0.0, 0, 165), prompt("short", 10.0, 100, 200), prompt("again", 20.0, 0, 165)]
    own = config()
    summary = summarize(run(rows, own))
    on_gpu = summarize(run(rows, config(None))).prefix_hit_tokens
    assert summary.host is not None and on_gpu
    assert summary.prefix_hit_tokens == 160 and summary.host.hit_tokens == 160 - on_gpu


def test_loads_queue_for_one_channel_and_equal_prompts_share_a_load() -> None:
    """A second prompt waits for the first one's load; a third that is the same finds it on the GPU."""
    rows = [
        *(prompt("a", 0.0, 0, 85), prompt("b", 5.0, 50, 85), prompt("wide", 10.0, 100, 310)),
        *(prompt("a2", 20.0, 0, 85), prompt("b2", 20.0, 50, 85), prompt("a3", 20.0, 0, 85)),
    ]
    recorder = run(rows, config())
    found, summary = Rows.of(recorder.columns), summarize(recorder)
    first_s = [found.first_scheduled_s[index] - 20.0 for index in (3, 4, 5)]
    assert first_s[0] == pytest.approx(5 * LOAD_S, abs=1e-9) and first_s[1] >= 10 * LOAD_S - 1e-9
    assert first_s[2] < 6 * LOAD_S
    assert summary.host is not None and summary.host.hit_tokens == 160 and summary.prefix_hit_tokens == 240


def test_a_preempted_request_is_loaded_back_instead_of_computed_again() -> None:
    """Its answer's blocks, too: the host's memory takes what the GPU has to give up."""
    rows = [TraceRequest(f"r{n}", 0.0, 100, 100) for n in range(3)]
    quick = HostMemory(200, 1e-6, 1e-6)
    computed, loaded = (summarize(run(rows, config(host))) for host in (None, quick))
    assert computed.num_preemptions and computed.recomputed_tokens
    assert loaded.host is not None and loaded.host.reloaded_tokens > 0 and not loaded.host.hit_tokens
    assert loaded.recomputed_tokens is not None and loaded.num_preemptions is not None
    assert loaded.recomputed_tokens <= BLOCK * loaded.num_preemptions < computed.recomputed_tokens


def tiny(rng: random.Random) -> HostMemory:
    num_blocks = rng.choice([1, 7, 20, 60, 1000])
    return HostMemory(num_blocks, rng.choice([0.0, 1e-4, 3e-3]), rng.choice([0.0, 1e-3]))


@pytest.mark.long(keep=1, reason="more cases of the law whose first `make test` runs", moderate=True)
@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
def test_blocks_are_conserved_and_each_request_ends_once_with_tiny_tiers(is_async: bool) -> None:
    """At the end each request needs every block; the laws are checked whenever the engine is idle."""
    num_loads = 0
    for seed in range(num_cases(12)):
        rng = random.Random(seed)
        fields: dict[str, Any] = {"scheduler_reserve_full_isl": rng.random() < 0.5, "watermark": 0.05}
        policy = rng.choice([None, Priority()])
        own = config(tiny(rng), policy, async_scheduling=is_async, **fields)
        rows = [row._replace(priority=rng.randrange(3)) for row in with_witness(crowd(seed))]
        recorder = run(rows, own, rng.choice([21, 30, 48]))
        columns = recorder.columns
        assert columns.reason == ["stop"] * len(rows)
        assert list(columns.num_output_tokens) == [row.num_output_tokens for row in rows]
        assert recorder.host_hits is not None
        num_loads += recorder.host_hits.hit_tokens + recorder.host_hits.reloaded_tokens
    assert num_loads


def test_clients_that_leave_while_their_blocks_are_loaded_lose_none() -> None:
    """Whenever they leave, every block is free in the end, and each request ends once."""
    for seed in range(num_cases(6)):
        rng = random.Random(seed)
        own = config(HostMemory(300, 0.02, 0.0))
        rows = with_witness(crowd(seed))
        columns = run(rows, own, 48, client_timeout_s=rng.choice([0.1, 0.2, 0.4])).columns
        assert set(columns.reason[:-16]) == {"stop", "abort"}
        again = run(rows, own, 48).columns
        assert again.reason == ["stop"] * len(rows)


@pytest.mark.long(keep=1, reason="more cases of the law whose first `make test` runs", moderate=True)
@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
def test_decode_runs_change_no_instant_and_again_is_the_same_bytes(is_async: bool) -> None:
    """Same seed, same bytes, whether steps are grouped or not."""
    for seed in range(num_cases(6)):
        tables = []
        for decode_runs in (True, True, False):
            own = config(tiny(random.Random(seed)), decode_runs=decode_runs, async_scheduling=is_async)
            recorder = run(crowd(seed, per_s=40.0), own, 48)
            steps = steps_table(0, recorder.steps[0]).to_pydict()
            steps.pop("num_waiting")
            tables.append((summarize(recorder).to_json(), steps))
        assert tables[0] == tables[1] == tables[2]


def test_a_tier_that_holds_nothing_of_use_changes_no_decision() -> None:
    """Requests that have nothing in common are served at the same instants, byte for byte."""
    rows = [TraceRequest(f"r{n}", 0.01 * n, 20 + n, 5 + n % 7) for n in range(40)]
    with_tier, without = summarize(run(rows, config(), 200)), summarize(run(rows, config(None), 200))
    assert with_tier.host is not None and not with_tier.host.hit_tokens
    assert replace(with_tier, host=None).to_json() == without.to_json()
    assert '"host"' not in without.to_json()


def test_pools_that_prefill_and_decode_keep_blocks_on_their_hosts() -> None:
    """Prompts are loaded where they are prefilled, and preempted answers where they are decoded."""
    for seed in range(num_cases(4)):
        scheduler = limits(host_memory=tiny(random.Random(seed)))
        own, plan = fleet(rate=4000.0, latency_s=0.001, scheduler=scheduler, seed=seed)
        rows = with_witness(crowd(seed))
        columns = played(rows, own, plan).columns
        assert columns.reason == ["stop"] * len(rows)
        assert list(columns.num_output_tokens) == [row.num_output_tokens for row in rows]


def test_a_tier_without_a_prefix_cache_is_refused() -> None:
    with pytest.raises(ValueError, match="needs prefix caching"):
        SchedulerConfig(host_memory=HOST, enable_prefix_caching=False)
