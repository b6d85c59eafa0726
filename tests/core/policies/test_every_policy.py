"""Invariants under every policy and option: requests, blocks, and equal decisions in each mode."""

from functools import partial

import pytest

from sundog.actors.core.policies import POLICIES
from sundog.actors.core.policies.guard import PolicyError
from tests.core.drive import Driven, Log, Planned, Updated
from tests.core.policies.world import EXAMPLES, HASTY_MLFQ, RESTLESS, World, policy_trace
from tests.core.traces import Trace, num_cases

NAMES = [*(name for name in POLICIES if name != "decode-first"), HASTY_MLFQ, *EXAMPLES]
SEEDS = range(num_cases(16))


def ends(log: Log) -> list[Updated]:
    return [event for event in log if isinstance(event, Updated) and event.finished]


@pytest.mark.long(keep=1, reason="more cases of the law whose first `make test` runs", moderate=True)
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


@pytest.mark.long(keep=1, reason="more cases of the law whose first `make test` runs", moderate=True)
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


def outcome(trace: Trace, *, decode_runs: bool) -> list[Updated] | str:
    """Who ended when; or why requests take each other's place again and again, as such policies let them."""
    try:
        return ends(Driven(trace, counts=True, decode_runs=decode_runs).run())
    except BaseExceptionGroup as group:
        failed = group.subgroup(PolicyError)
        if failed is None:
            raise
        while isinstance(failed, BaseExceptionGroup):
            failed = failed.exceptions[0]
        return str(failed)


@pytest.mark.long(keep=1, reason="more cases of the law whose first `make test` runs", moderate=True)
@pytest.mark.parametrize("policy", RESTLESS)
def test_decode_runs_change_nothing_under_policies_that_turn_with_anything(policy: str) -> None:
    """With the time, the step, the queue or what was counted; whatever they declare."""
    num_ended, seeds = 0, range(num_cases(12))
    for seed in seeds:
        trace = policy_trace(seed, f"{policy}:seed={seed}")
        alone = outcome(trace, decode_runs=False)
        assert outcome(trace, decode_runs=True) == alone, f"seed {seed}"
        num_ended += not isinstance(alone, str)
    assert num_ended > len(seeds) // 2


def test_a_step_is_planned_at_the_same_time_alone_or_after_a_run() -> None:
    """So that ranks that turn with the time turn alike; with steps planned ahead, too."""
    num_ahead = 0
    for seed in SEEDS:
        trace = policy_trace(seed, "fcfs")
        seen: list[dict[int, float]] = []
        for decode_runs in (False, True):
            driven = Driven(trace, counts=True, decode_runs=decode_runs)
            times = dict[int, float]()
            driven.watch = partial(note_time, driven, times)
            driven.run()
            seen.append(times)
        assert seen[1].items() <= seen[0].items(), f"seed {seed}"
        num_ahead += trace["config"]["async_scheduling"] and len(seen[1]) < len(seen[0])
    assert num_ahead, "no trace that is planned ahead had a run"


def note_time(driven: Driven, times: dict[int, float], event: Planned | Updated) -> None:
    if isinstance(event, Planned):
        times[event.step] = driven.state.view.now_s


@pytest.mark.parametrize("policy", ["fcfs", "vtc", "prefill-first", HASTY_MLFQ])
def test_nobody_starves_while_others_keep_coming(policy: str) -> None:
    """A long request behind endless short ones of another tenant ends all the same."""
    world = World(policy, {"max_num_seqs": 2, "max_num_batched_tokens": 32})
    world.add("long", 40, 20, tenant="long")
    for number in range(400):
        world.add(f"short-{number}", 1, 2, tenant="short")
        world.step()
    assert "long" in world.finished
