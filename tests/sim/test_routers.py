"""Routers in simulation: same bytes however steps are grouped, and hits on shared prefixes."""

import pytest

from sundog.actors.config import EngineConfig, SchedulerConfig
from sundog.actors.messages import Capacity
from sundog.actors.policy_file import find_router
from sundog.sim.figures.metrics import Summary, summarize
from sundog.sim.replay import replay
from sundog.sim.trace.record import TraceRequest
from tests.core.routers.test_routers import EXAMPLES, NAMES
from tests.sim.toy import COST

BLOCKS = 400


def conversations() -> list[TraceRequest]:
    """Thirteen sessions of eight turns, each of which begins with all that came before it."""
    rows = []
    for turn in range(8):
        for session in range(13):
            ids = tuple(range(session * 1000, session * 1000 + 4 * (turn + 1)))
            rows.append(
                TraceRequest(
                    f"s{session}-{turn}",
                    turn * 4.0 + session * 0.3 + (session * turn % 5) * 0.01,
                    num_prompt_tokens=16 * len(ids) + 3,
                    num_output_tokens=5 + (session + turn) % 7,
                    hash_ids=ids,
                    hash_block_tokens=16,
                    session=f"s{session}",
                )
            )
    return sorted(rows, key=lambda row: row.arrival_s)


def summary(
    router: str, *, decode_runs: bool = True, async_scheduling: bool = False, replicas: int = 4
) -> Summary:
    scheduler = SchedulerConfig(num_gpu_blocks=BLOCKS, max_num_seqs=8, async_scheduling=async_scheduling)
    config = EngineConfig(scheduler, replicas=replicas, router=find_router(router), decode_runs=decode_runs)
    return summarize(replay(conversations(), config, COST, Capacity(BLOCKS, 16)))


@pytest.mark.long(keep=4, reason="more seeds of the law whose first cases `make test` runs")
@pytest.mark.parametrize("router", NAMES, ids=lambda name: EXAMPLES.get(name, name))
def test_decode_runs_change_no_choice(router: str) -> None:
    """A Router hears nothing at an instant that depends on how steps are grouped; again is the same bytes."""
    for is_async in (False, True):
        alone = summary(router, async_scheduling=is_async).to_json()
        assert alone == summary(router, async_scheduling=is_async).to_json()
        assert alone == summary(router, async_scheduling=is_async, decode_runs=False).to_json()


def test_what_looks_at_prompts_or_sessions_finds_them_again() -> None:
    """Turns take turns under round-robin, and miss."""
    rates = {
        router: summary(router).prefix_hit_rate
        for router in ("round-robin", "session-affinity", "prefix-aware", "prefix-aware:index=events")
    }
    blind = rates.pop("round-robin")
    assert all(rate > 1.5 * blind for rate in rates.values()), rates
