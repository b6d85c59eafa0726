"""Pools for prefill and decode: closed forms, and invariants under any load."""

import random
from collections.abc import Callable
from dataclasses import replace
from math import inf

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sundog.actors.config import EngineConfig
from sundog.actors.core.routers.fleet_state import Role
from sundog.sim.cost.composed import InStep
from sundog.sim.cost.work import StepWork
from sundog.sim.figures.metrics import summarize
from sundog.sim.fleet.figures import FleetFigures
from sundog.sim.fleet.links import Flow, share
from sundog.sim.fleet.plan import FleetPlan, quantile
from sundog.sim.record.rows import Rows, steps_table
from sundog.sim.replay import replay
from sundog.sim.trace.record import TraceRequest
from tests.core.traces import num_cases
from tests.sim.fleet.fleets import BLOCK, crowd, fleet, limits, played, wide, with_witness
from tests.sim.toy import COST

PROMPT, ANSWER = 50, 12
ALONE = [TraceRequest("alone", 1.0, PROMPT, ANSWER)]
ONE_EACH: tuple[Role, ...] = ("prefill", "decode")
FOUR: tuple[Role, ...] = ("prefill", "prefill", "decode", "decode")
Make = Callable[..., tuple[EngineConfig, FleetPlan]]


def test_one_request_alone_waits_for_its_prefill_its_transfer_and_one_step() -> None:
    """TTFT is the prefill, latency, whole blocks over the bandwidth, and the last token again."""
    config, plan = fleet(ONE_EACH, rate=1000.0, latency_s=0.25)
    recorder = played(ALONE, config, plan)
    rows = Rows.of(recorder.columns)
    prefill_s = COST.step_s(StepWork(0, 0, ((PROMPT, 0),), 1))
    again_s = COST.step_s(StepWork(0, 0, ((1, PROMPT - 1),), 1))
    moved_tokens = -(-PROMPT // BLOCK) * BLOCK
    expected_s = prefill_s + 0.25 + moved_tokens / 1000.0 + again_s
    assert rows.first_token_s[0] - 1.0 == pytest.approx(expected_s, abs=1e-9)
    assert rows.num_output_tokens[0] == ANSWER and rows.reason == ["stop"]


@pytest.mark.parametrize("make", [fleet, wide], ids=["engines", "ranks in step"])
def test_over_a_link_of_no_cost_one_request_is_computed_as_by_one_engine(make: Make) -> None:
    """The prefill step ends at the same instant; then each step takes as long, to the last bit.

    What pools add is one step, the last token of the prompt again, before the first token.
    """
    config, plan = make(ONE_EACH)
    apart = played(ALONE, config, plan)
    whole_config, whole_plan = make(("both",))
    whole = played(ALONE, whole_config, whole_plan)
    ends = np.array(whole.steps[0].end_s)[:ANSWER]
    decoded = np.array(apart.steps[len(plan.engines) // 2].end_s)[:ANSWER]
    assert apart.steps[0].end_s[:1].tobytes() == ends[:1].tobytes()
    assert np.diff(ends).tobytes() == np.diff(decoded).tobytes()
    again_s = COST.step_s(StepWork(0, 0, ((1, PROMPT - 1),), 1))
    assert decoded[0] - ends[0] == pytest.approx(again_s, abs=1e-9)
    assert len(ends) == len(decoded) == ANSWER


def test_equal_engines_that_do_whole_requests_are_a_fleet_without_pools() -> None:
    """Byte for byte: roles and pools add nothing where there is one role."""
    config, plan = fleet(("both", "both"))
    rows = crowd(3)
    pooled = summarize(played(rows, config, plan))
    plain = replay(rows, replace(config, pools=()), COST, plan.engines[0].capacity)
    assert replace(pooled, fleet=None).to_json() == summarize(plain).to_json()


def test_a_group_of_ranks_in_step_is_the_same_as_without_pools() -> None:
    """Byte for byte: two groups of two in a pool."""
    config, plan = wide(("both", "both"))
    rows = crowd(3)
    pooled = summarize(played(rows, config, plan))
    plain = replay(rows, replace(config, pools=()), InStep(COST, 2), plan.engines[0].capacity)
    assert replace(pooled, fleet=None).to_json() == summarize(plain).to_json()


@pytest.mark.long(keep=1, reason="more cases of the law whose first `make test` runs", moderate=True)
@pytest.mark.parametrize("make", [fleet, wide], ids=["engines", "ranks in step"])
@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("rate", [inf, 4000.0])
def test_blocks_are_conserved_in_both_pools_and_in_flight(rate: float, is_async: bool, make: Make) -> None:
    """At the end requests are served that need every block of every engine; each request ends once, whole."""
    for seed in range(num_cases(4)):
        scheduler = limits(async_scheduling=is_async)
        roles = ONE_EACH if make is wide else FOUR
        config, plan = make(roles, rate=rate, latency_s=0.001, scheduler=scheduler, seed=seed)
        rows = with_witness(crowd(seed))
        columns = played(rows, config, plan).columns
        assert columns.reason == ["stop"] * len(rows)
        assert list(columns.num_output_tokens) == [row.num_output_tokens for row in rows]
        assert max(columns.num_preemptions) > 0, "the caches are to be too small"


def test_clients_that_leave_free_what_they_held_wherever_they_are() -> None:
    """In either engine, between them, or on the link."""
    seen: set[str | None] = set()
    for seed in range(num_cases(6)):
        config, plan = fleet(rate=3000.0, latency_s=0.01, seed=seed)
        rows = with_witness(crowd(seed))
        patience_s = random.Random(seed).choice([0.1, 0.2, 0.3])
        columns = played(rows, config, plan, client_timeout_s=patience_s).columns
        seen |= set(columns.reason[:-16])
        late = [reason for reason in columns.reason[-16:] if reason != "stop"]
        assert set(late) <= {"abort"}
        again = played(rows, config, plan, client_timeout_s=None).columns
        assert again.reason == ["stop"] * len(rows)
    assert seen == {"stop", "abort"}


def test_decode_runs_change_no_instant_in_pools_and_again_is_the_same_bytes() -> None:
    """Same seed, same bytes, whether steps are grouped or not."""
    for seed in range(num_cases(3)):
        tables = []
        for decode_runs in (True, True, False):
            config, plan = fleet(rate=5000.0, latency_s=0.002, decode_runs=decode_runs, seed=seed)
            recorder = played(crowd(seed, per_s=40.0), config, plan)
            steps = [steps_table(number, each).to_pydict() for number, each in enumerate(recorder.steps)]
            for table in steps:
                table.pop("num_waiting")
            tables.append((summarize(recorder).to_json(), steps))
        assert tables[0] == tables[1] == tables[2]


def test_transfers_share_links_by_max_min_fairness() -> None:
    """None could be faster without slowing one that is no faster; no link carries more than it can."""
    rng = random.Random(5)
    for _ in range(num_cases(200)):
        rates = [rng.choice([0.0, 1.0, 2.0, 5.0]) for _ in range(5)]
        flows = [Flow(rng.randrange(5), rng.randrange(5), 1.0) for _ in range(rng.randint(1, 9))]
        share(flows, rates)
        loads: dict[tuple[bool, int], list[float]] = {}
        for flow in flows:
            loads.setdefault((True, flow.source), []).append(flow.rate)
            loads.setdefault((False, flow.target), []).append(flow.rate)
        assert all(sum(load) <= rates[link[1]] + 1e-9 for link, load in loads.items())
        for flow in flows:
            is_bound = [
                sum(loads[link]) >= rates[link[1]] - 1e-9 and flow.rate >= max(loads[link]) - 1e-9
                for link in ((True, flow.source), (False, flow.target))
            ]
            assert any(is_bound)


def test_two_requests_from_one_engine_share_its_link() -> None:
    """Each takes twice as long as alone, to one target or to two."""
    rows = [TraceRequest(name, 0.0, 32, 4) for name in ("a", "b")]
    alone_s = 32 / 100.0
    for roles in (ONE_EACH, ("prefill", "decode", "decode")):
        config, plan = fleet(roles, rate=100.0)
        figures = summarize(played(rows, config, plan)).fleet
        assert isinstance(figures, FleetFigures) and figures.transfers is not None
        assert figures.transfers.mean_s == pytest.approx(2 * alone_s)


def test_what_is_cached_where_it_is_decoded_is_not_fetched() -> None:
    """The second of two equal prompts fetches its last block alone."""
    ids = tuple(range(4))
    rows = [TraceRequest(f"r{n}", 10.0 * n, 70, 4, hash_ids=ids, hash_block_tokens=BLOCK) for n in range(2)]
    config, plan = fleet(ONE_EACH, rate=1000.0)
    figures = summarize(played(rows, config, plan)).fleet
    assert isinstance(figures, FleetFigures) and figures.transfers is not None
    assert figures.transfers.num_tokens == 5 * BLOCK + BLOCK


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=40), st.floats(0, 1))
def test_a_quantile_has_the_bits_of_numpys(values: list[float], part: float) -> None:
    """Ours loads no masked arrays."""
    assert quantile(np.array(values), part) == np.quantile(np.array(values), part)
