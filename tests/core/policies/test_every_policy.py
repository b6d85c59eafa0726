"""What every policy keeps, with every option: requests, blocks, and the same decisions any way."""

import pytest

from actors.core.policies import POLICIES
from tests.core.drive import Driven, Log, Planned, Updated
from tests.core.policies.world import EXAMPLES, HASTY_MLFQ, World, policy_trace
from tests.core.traces import num_cases

NAMES = [*(name for name in POLICIES if name != "decode-first"), HASTY_MLFQ, *EXAMPLES]
SEEDS = range(num_cases(40))


def ends(log: Log) -> list[Updated]:
    return [event for event in log if isinstance(event, Updated) and event.finished]


@pytest.mark.parametrize("policy", NAMES)
def test_lockstep_changes_no_decision_and_nobody_is_lost(policy: str) -> None:
    """Batches are equal with and without; each request ends once; every block comes back."""
    for seed in SEEDS:
        trace = policy_trace(seed, policy)
        driven, plain = Driven(trace), Driven(trace, lockstep=False)
        assert driven.run() == plain.run(), f"seed {seed}"
        assert not driven.stalled, f"seed {seed}"
        names = sorted(finish.request_id for finish in driven.ended)
        assert names == sorted(row["id"] for row in trace["requests"]), f"seed {seed}"
        assert driven.state.kv.pool.num_free == trace["config"]["num_gpu_blocks"] - 1


@pytest.mark.parametrize("policy", NAMES)
def test_decode_runs_change_no_end_and_no_block(policy: str) -> None:
    """Whoever ends, ends in the same step and leaves the same pool, one event or many."""
    num_runs = 0
    for seed in SEEDS:
        trace = policy_trace(seed, policy)
        logs = [Driven(trace, counts=True, decode_runs=runs).run() for runs in (False, True)]
        assert ends(logs[0]) == ends(logs[1]), f"seed {seed}"
        num_runs += any(e.batch.max_steps > 1 for e in logs[1] if isinstance(e, Planned))
    assert num_runs, "no trace had a run"


@pytest.mark.parametrize("policy", ["fcfs", "vtc", "prefill-first", HASTY_MLFQ])
def test_nobody_starves_while_others_keep_coming(policy: str) -> None:
    """A long request behind endless short ones of another tenant ends all the same."""
    world = World(policy, {"max_num_seqs": 2, "max_num_batched_tokens": 32})
    world.add("long", 40, 20, tenant="long")
    for number in range(400):
        world.add(f"short-{number}", 1, 2, tenant="short")
        world.step()
    assert "long" in world.finished
