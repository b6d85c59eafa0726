"""The options that vLLM does not have: overtaking, preemption for priority, least recompute."""

import random

import pytest

from sundog.actors.config import EngineConfig
from sundog.actors.core.config import ConfigError, SchedulerConfig
from sundog.actors.policy_file import find_policy
from tests.core.policies.world import World

SMALL = {"num_gpu_blocks": 11, "max_model_len": 40, "enable_prefix_caching": False}
"""Ten blocks of four tokens."""


def crowded(**options: int) -> World:
    """One request holds six of ten blocks, a large one waits for six, and a small one behind it."""
    world = World("fcfs", {**SMALL, **options})
    world.add("runs", 21, 3)
    world.step()
    world.add("large", 24, 2)
    world.add("small", 4, 2)
    return world


def test_without_the_option_the_first_that_does_not_fit_blocks_all() -> None:
    """vLLM's order."""
    assert crowded().run().admissions == ["runs", "large", "small"]


def test_a_small_request_may_overtake_a_large_one_that_lacks_blocks() -> None:
    """And the report still names the large one and what it lacks."""
    world = crowded(max_overtakes=1)
    world.step()
    assert world.blocked is not None
    assert (world.blocked.request_id, world.blocked.reason) == ("large", "KV blocks")
    assert world.admissions == ["runs", "small"]
    assert sorted(world.run().finished) == ["large", "runs", "small"]


@pytest.mark.parametrize("most", [1, 3])
def test_nobody_is_overtaken_more_often_than_allowed(most: int) -> None:
    """So a large request waits for a bounded number of others under any flood."""
    world = World("fcfs", {**SMALL, "max_overtakes": most})
    rng = random.Random(most)
    world.add("runs", 24, 16)
    world.step()
    large = world.add("large", 36, 2)
    for number in range(300):
        world.add(f"small-{number}", rng.randint(1, 4), rng.randint(1, 5))
        world.step()
        assert large.num_overtakes <= most
        if "large" in world.finished:
            break
    ahead = set(world.admissions[: world.admissions.index("large")])
    assert len(ahead - {"runs"}) == most


def test_an_urgent_arrival_takes_the_place_of_the_least_urgent() -> None:
    """As few as needed, the least urgent and latest first; they come back and finish."""
    world = World("priority", {**SMALL, "preempt_for_priority": True})
    for name, priority in (("a", 1), ("b", 5), ("c", 5)):
        world.add(name, 10, 4, priority=priority)
    world.step()
    world.add("urgent", 16, 2, priority=0)
    batch = world.step()
    assert batch.preempted == ("c",) and world.admissions[-1] == "urgent"
    assert batch.preempted_for == ("urgent",)
    assert sorted(world.run().finished) == ["a", "b", "c", "urgent"]


def test_an_urgent_arrival_takes_a_seat_too() -> None:
    """`max_num_seqs` is a lack like any other."""
    world = World("priority", {"max_num_seqs": 1, "preempt_for_priority": True})
    world.add("idle", 4, 9, priority=3)
    world.step()
    world.add("urgent", 4, 2, priority=2)
    assert world.run().finished == ["urgent", "idle"]


def test_nobody_is_preempted_in_vain_or_by_an_equal() -> None:
    """What would not let the arrival in is not done."""
    world = World("priority", {**SMALL, "preempt_for_priority": True})
    world.add("equal", 24, 2, priority=1)
    world.add("less", 8, 4, priority=2)
    world.step()
    world.add("large", 36, 1, priority=1)
    world.step()
    assert not world.preemptions
    assert sorted(world.run().finished) == ["equal", "large", "less"]


def test_preemption_for_priority_needs_an_order_of_urgency() -> None:
    """Fcfs has none: the configuration is refused, and says what would do."""
    scheduler = SchedulerConfig(preempt_for_priority=True)
    with pytest.raises(ConfigError, match=r"Fcfs does not: try priority"):
        EngineConfig(scheduler, find_policy("fcfs"))
    EngineConfig(scheduler, find_policy("earliest-deadline"))


@pytest.mark.parametrize("victim", ["policy", "least-recompute"])
def test_the_victim_is_who_loses_the_fewest_computed_tokens(victim: str) -> None:
    """Where the policy would take the latest admitted, whatever that costs."""
    world = World("fcfs", {**SMALL, "victim": victim})
    world.add("first", 8, 12)
    world.add("short", 4, 12)
    world.add("long", 24, 12)
    while not world.preemptions:
        world.step()
    assert world.preemptions == (["long"] if victim == "policy" else ["short"])
    assert sorted(world.run().finished) == ["first", "long", "short"]


def test_shared_blocks_are_not_lost() -> None:
    """A request whose prefix another holds too loses only the rest."""
    world = World("fcfs", {"block_size": 4})
    world.add("one", 16, 9, block_hashes=tuple("abcd"))
    world.add("two", 17, 9, block_hashes=tuple("abcd"))
    world.step()
    lost = [world.state.view.num_lost_tokens(r) for r in world.state.running.values()]
    assert lost == [0, 1]


@pytest.mark.parametrize(
    "wrong", [{"max_overtakes": -1}, {"victim": "nobody"}], ids=lambda wrong: next(iter(wrong))
)
def test_a_wrong_option_is_an_error_that_names_it(wrong: dict[str, int]) -> None:
    """Once, at the start."""
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        SchedulerConfig(**wrong)  # type: ignore[arg-type]
