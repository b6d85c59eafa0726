"""The order of each policy, as a law."""

import random

import pytest

from tests.core.policies.world import World
from tests.core.work import has_work

ONE_AT_A_TIME = {"max_num_seqs": 1}


def lengths(seed: int, count: int = 30) -> list[int]:
    return random.Random(seed).choices(range(1, 60), k=count)


def test_fcfs_admits_in_order_of_arrival() -> None:
    """Whatever their lengths."""
    world = World("fcfs", ONE_AT_A_TIME)
    names = [world.add(f"r{i}", length).request_id for i, length in enumerate(lengths(1))]
    assert world.run().admissions == names


def test_the_shortest_prompt_is_admitted_first() -> None:
    """Equal ones in order of arrival."""
    world = World("shortest-prompt", ONE_AT_A_TIME)
    prompts = {f"r{i}": length for i, length in enumerate(lengths(2))}
    for name, length in prompts.items():
        world.add(name, length)
    assert world.run().admissions == sorted(prompts, key=prompts.__getitem__)


def test_the_shortest_prediction_is_admitted_first_be_it_right_or_wrong() -> None:
    """The true lengths, here the other way round, are nothing that the policy could see."""
    world = World("shortest-remaining", ONE_AT_A_TIME)
    guesses = {f"r{i}": length for i, length in enumerate(lengths(3))}
    for name, guess in guesses.items():
        world.add(name, 5, 70 - guess, predicted_tokens=guess)
    assert world.run().admissions == sorted(guesses, key=guesses.__getitem__)


def test_without_a_prediction_the_limit_counts() -> None:
    """And a prediction beyond the limit counts as the limit."""
    world = World("shortest-remaining", ONE_AT_A_TIME)
    world.add("long", 5, max_tokens=50)
    world.add("guessed", 5, max_tokens=20, predicted_tokens=900)
    world.add("short", 5, max_tokens=10)
    assert world.run().admissions == ["short", "guessed", "long"]


def test_a_request_that_came_back_counts_what_remains_of_it() -> None:
    """Remaining is predicted less generated, never below 0."""
    world = World("shortest-remaining")
    request = world.add("r", 5, 20, predicted_tokens=6)
    urgency = world.state.policy.urgency
    seen = []
    for _ in range(8):
        world.step()
        seen.append(urgency(request, world.state.view))
    assert seen == [5, 4, 3, 2, 1, 0, 0, 0]


def test_the_longest_hit_is_admitted_first_and_hits_are_looked_up_anew() -> None:
    """What an admitted request brings into the cache counts for the next choice."""
    world = World("longest-prefix", ONE_AT_A_TIME)
    world.add("warm", 12, block_hashes=("a", "b", "c"))
    world.run()
    world.add("none", 12, block_hashes=("x", "y", "z"))
    world.add("one", 12, block_hashes=("a", "q", "r"))
    world.add("two", 12, block_hashes=("a", "b", "s"))
    world.add("after-none", 13, block_hashes=("x", "y", "z"))
    assert world.run().admissions == ["warm", "two", "one", "none", "after-none"]


def test_no_later_deadline_is_admitted_first() -> None:
    """With equal lengths, at every admission, over those that wait then."""
    rng = random.Random(4)
    world = World("earliest-deadline", {"max_num_seqs": 2})
    deadlines: dict[str, float] = {}
    for number in range(200):
        slo_s = rng.choice([None, rng.uniform(1, 50)])
        name, arrival_s = f"r{number}", float(number)
        deadlines[name] = float("inf") if slo_s is None else arrival_s + slo_s
        world.add(name, 8, 3, arrival_s=arrival_s, slo_ttft_s=slo_s)
        waiting = {request.request_id for request in world.state.waiting}
        known = len(world.admissions)
        world.step()
        for admitted in world.admissions[known:]:
            waiting.discard(admitted)
            assert all(deadlines[admitted] <= deadlines[other] for other in waiting)


def test_a_default_target_orders_those_without_one() -> None:
    """Parameters of a policy come after its name."""
    world = World("earliest-deadline:default_slo_s=3", ONE_AT_A_TIME)
    world.add("none", 8, arrival_s=0.0)
    world.add("late", 8, arrival_s=0.0, slo_ttft_s=9.0)
    world.add("soon", 8, arrival_s=0.0, slo_ttft_s=1.0)
    assert world.run().admissions == ["soon", "none", "late"]


@pytest.mark.parametrize("policy", ["fcfs", "prefill-first"])
def test_who_gets_a_budget_that_is_too_small_for_all(policy: str) -> None:
    """Prefill-first: a waiting prefill before decodes, which idle; decode-first: what is left."""
    world = World(policy, {"max_num_batched_tokens": 8})
    for name in "abcdef":
        world.add(name, 1, 30)
    world.step()
    world.add("prompt", 14, 5)
    chunks = [world.step() for _ in range(3)]
    given = [sum(c.num_tokens for c in b.chunks if c.request_id == "prompt") for b in chunks]
    idle = [len(batch.idle) for batch in chunks]
    if policy == "fcfs":
        assert (given, idle) == ([2, 2, 2], [0, 0, 0])
    else:
        assert (given, idle) == ([8, 6, 0], [6, 4, 0])
    assert all(batch.num_tokens <= 8 for batch in chunks)
    assert sorted(world.run().finished) == [*"abcdef", "prompt"]


def test_prefill_first_leaves_the_blocks_that_running_requests_need() -> None:
    """Nobody is admitted and preempted in one step, and nobody is preempted for an arrival."""
    limits = {"num_gpu_blocks": 9, "max_model_len": 32, "max_num_batched_tokens": 16}
    world = World("prefill-first", limits)
    for number, length in enumerate(lengths(5, 40)):
        world.add(f"r{number}", length % 12 + 1, length % 9 + 1)
    while has_work(world.state):
        batch = world.step()
        admitted = {admission.request_id for admission in batch.admitted}
        assert not (batch.preempted and admitted)
    assert len(world.finished) == 40
