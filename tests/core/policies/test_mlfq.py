"""Multi-level feedback queues with skip-join: FastServe's rules."""

from sundog.actors.core.policies.orders import Mlfq
from tests.core.policies.world import World

PREEMPTIVE = {"max_num_seqs": 1, "preempt_for_priority": True}


def test_a_request_is_demoted_when_its_quantum_is_used_up() -> None:
    """Quanta double from level to level; the lowest has no end."""
    policy = Mlfq(quantum_steps=2, num_levels=4)
    assert [policy.level(1, outputs) for outputs in (0, 1, 2, 5, 6, 13, 14, 500)] == [0, 0, 1, 1, 2, 2, 3, 3]


def test_a_long_prompt_skips_the_levels_that_it_would_not_fit_into() -> None:
    """Skip-join: the first level whose quantum holds the prefill."""
    policy = Mlfq(quantum_steps=2, num_levels=4, prompt_tokens_per_step=10)
    assert [policy.level(prompt, 0) for prompt in (1, 20, 21, 40, 41, 10_000)] == [0, 0, 1, 1, 2, 3]
    assert policy.level(21, 3) == 1 and policy.level(21, 4) == 2


def test_a_short_answer_overtakes_a_long_one_that_was_demoted() -> None:
    """Nobody said which is short: the long one has used its quantum, the short one has not."""
    world = World("mlfq:quantum_steps=4", PREEMPTIVE)
    world.add("long", 4, 60)
    for _ in range(10):
        world.step()
    world.add("short", 4, 3)
    world.run()
    assert world.finished == ["short", "long"]
    assert world.preemptions == ["long"]


def test_a_request_within_its_quantum_is_not_overtaken() -> None:
    """Equal levels are first come, first served."""
    world = World("mlfq:quantum_steps=4", PREEMPTIVE)
    world.add("first", 4, 3)
    world.step()
    world.add("second", 4, 3)
    assert world.run().finished == ["first", "second"]
    assert not world.preemptions


def flooded(starve_steps: int) -> World:
    """A long request while short ones, of higher level, keep the only seat busy."""
    world = World(f"mlfq:quantum_steps=4,starve_steps={starve_steps}", PREEMPTIVE)
    world.add("long", 4, 24)
    for number in range(300):
        world.add(f"short-{number}", 4, 2)
        world.step()
        world.step()
    return world


def test_who_waits_too_long_is_promoted_and_gets_a_top_quantum() -> None:
    """Under a flood the long one gets on, a quantum a time; without promotion it starves."""
    assert "long" not in flooded(starve_steps=10**6).finished
    world = flooded(starve_steps=20)
    assert "long" in world.finished
    assert 3 <= world.preemptions.count("long") <= 6
