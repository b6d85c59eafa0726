"""Times that policies see (tokens, deadlines, steps), pauses, and the hook called for every token."""

import random
from math import inf
from pathlib import Path

import pytest

from sundog.actors.core.config import ConfigError
from sundog.actors.core.policies.guard import PolicyError
from sundog.actors.core.queue.step_times import MeasuredSteps
from sundog.actors.policy_file import find_policy
from tests.core.policies.world import World

HERE = f"{Path(__file__).with_name('timed.py')}"


def test_every_token_is_told_with_the_end_of_its_step() -> None:
    """In order of admission; the first token's time stays, the latest's moves on."""
    world = World(f"{HERE}:Clerk", step_s=0.5)
    world.add("a", 4, 3)
    world.step()
    world.add("b", 4, 2)
    world.run()
    assert world.state.view.memory == [
        ("a", 0.5, 0.5, 1),
        ("a", 0.5, 1.0, 2),
        ("b", 1.0, 1.0, 1),
        ("a", 0.5, 1.5, 3),
        ("b", 1.0, 1.5, 2),
    ]


def test_every_preemption_is_told_between_an_admission_and_the_next() -> None:
    """Whoever keeps count of what runs is never wrong."""
    world = World(f"{HERE}:Ledger", {"num_gpu_blocks": 6, "max_num_seqs": 2})
    requests = [world.add(name, 6, 8) for name in "abc"]
    world.run()
    assert sum(request.num_preemptions for request in requests) > 0
    for request in requests:
        told = [what for name, what in world.state.view.memory if name == request.request_id]
        assert told == ["runs", "waits again"] * request.num_preemptions + ["runs", "ended"]


@pytest.mark.parametrize("policy", ["fcfs", f"{HERE}:Clerk"])
def test_times_of_tokens_are_exact_in_and_out_of_lockstep(policy: str) -> None:
    """None before the first token; a request that waits again keeps the times that it had."""
    world = World(policy, {"num_gpu_blocks": 6, "max_num_seqs": 2}, step_s=1.0)
    first, second = world.add("a", 6, 8), world.add("b", 6, 8)
    view = world.state.view
    assert (view.first_token_s(first), view.last_token_s(first)) == (None, None)
    for step in range(1, 4):
        world.step()
        assert (view.first_token_s(first), view.last_token_s(first)) == (1.0, float(step))
    while not second.num_preemptions:
        world.step()
    lost_s = view.last_token_s(second)
    world.step()
    assert view.first_token_s(second) == 1.0 and view.last_token_s(second) == lost_s < view.last_token_s(
        first
    )


@pytest.mark.parametrize(
    ("limits", "due_s"),
    [
        ({}, [inf, inf, inf]),
        ({"slo_ttft_s": 2.0}, [12.0, inf, inf]),
        ({"slo_ttft_s": 2.0, "slo_tpot_s": 0.5}, [12.0, 12.5, 13.0]),
        ({"slo_tpot_s": 0.5}, [inf, 1.5, 2.0]),
        ({"slo_ttft_s": 2.0, "slo_tpot_s": 0.5, "slo_e2e_s": 2.7}, [12.0, 12.5, 12.7]),
        ({"slo_e2e_s": 3.0}, [13.0, 13.0, 13.0]),
    ],
)
def test_a_token_is_due_by_the_limits_of_its_request(limits: dict[str, float], due_s: list[float]) -> None:
    """Before each of three tokens; the first came at 1 s."""
    world = World("fcfs", step_s=1.0)
    request = world.add("a", 4, 3, arrival_s=10.0, **limits)
    found = []
    for _ in range(3):
        found.append(world.state.view.token_due_s(request))
        world.step()
    assert found == pytest.approx(due_s)


def test_a_paused_decode_keeps_its_blocks_and_goes_on_where_it_was() -> None:
    """Its steps are those of the others, less the ones that it was paused in."""
    world = World(f"{HERE}:PausesOdd")
    odd, even = world.add("odd", 4, 6), world.add("even", 4, 6)
    view = world.state.view
    seen = []
    for _ in range(7):
        world.step()
        seen.append((view.num_output_tokens(odd), view.num_output_tokens(even), len(odd.block_ids)))
    assert seen == [(1, 1, 1), (2, 2, 2), (3, 3, 2), (3, 4, 2), (3, 5, 2), (3, 6, 2), (4, 6, 2)]
    assert world.run().finished == ["even", "odd"]


def test_a_paused_prefill_waits_and_so_does_a_paused_head() -> None:
    """A running prompt stands still, a waiting one is not admitted."""
    world = World(f"{HERE}:PausesOdd", {"max_num_batched_tokens": 4})
    for name in ("even", "odd", "odd-too"):
        world.add(name, 8, 2)
    world.step()
    world.step()
    world.step()  # even samples again, odd computes 3 tokens
    assert world.state.view.num_computed_tokens(world.state.requests["odd"]) == 3
    for _ in range(3):
        world.step()
        assert "odd" in world.state.running and "odd-too" not in world.state.running
        assert world.blocked is not None and world.blocked.reason == "quota"
        assert world.state.view.num_computed_tokens(world.state.requests["odd"]) == 3
    assert world.run().finished == ["even", "odd", "odd-too"]


@pytest.mark.parametrize("version", ["0.32", "0.33"])
def test_whoever_waits_behind_a_paused_head_is_admitted_from_033_on(version: str) -> None:
    """As vLLM does: the head keeps its place, and is admitted when it is no longer paused."""
    world = World(f"{HERE}:PausesOdd", {"engine_version": version})
    world.add("even", 4, 9)
    for _ in range(3):
        world.step()
    for name in ("odd", "even-too", "odd-too", "even-three"):
        world.add(name, 8, 2)
    world.step()
    assert list(world.state.running) == (
        ["even"] if version == "0.32" else ["even", "even-too", "even-three"]
    )
    assert world.blocked == ("odd", "quota")
    waiting = [request.request_id for request in world.state.waiting]
    assert waiting == (
        ["odd", "even-too", "odd-too", "even-three"] if version == "0.32" else ["odd", "odd-too"]
    )
    world.run()
    assert world.admissions[-2:] == (["odd-too", "even-three"] if version == "0.32" else ["odd", "odd-too"])


def test_what_a_request_behind_a_paused_head_lacks_is_said() -> None:
    """Not that the policy pauses the head, which keeps nobody waiting."""
    world = World(f"{HERE}:PausesOdd", {"max_num_seqs": 2})
    world.add("even", 4, 9)
    for _ in range(3):
        world.step()
    for name in ("odd", "even-too", "even-three"):
        world.add(name, 8, 5)
    world.step()
    assert list(world.state.running) == ["even", "even-too"]
    assert world.blocked == ("even-three", "max_num_seqs")


def test_a_quota_of_nought_is_refused_unless_the_policy_pauses() -> None:
    """The error says how to say so."""
    world = World(f"{HERE}:Forgets")
    world.add("a", 4, 2)
    with pytest.raises(PolicyError, match=r"Forgets: quota of a returned 0: .*0 needs `pauses"):
        world.step()


def test_claims_to_pause_are_checked() -> None:
    """As other claims are."""
    with pytest.raises(ConfigError, match="pauses is 1: it must be True or False"):
        find_policy(f"{HERE}:Claims")


def test_measured_steps_give_back_what_steps_take() -> None:
    """The fit of steps that follow a line is that line; before the first nothing is known."""
    measured, rng = MeasuredSteps(), random.Random(5)
    assert measured.step_s(10, 2, 0) is None
    for _ in range(200):
        prompt, decodes = rng.choice([0, 0, 64, 512]), rng.randint(1, 40)
        measured.seen(prompt, decodes, 0.004 + 2e-5 * prompt + 1e-4 * decodes)
    assert measured.step_s(300, 20, 0) == pytest.approx(0.004 + 6e-3 + 2e-3)


def test_measured_steps_follow_an_engine_that_has_changed() -> None:
    """A few hundred steps later the old ones count for nothing; no part is ever negative."""
    measured = MeasuredSteps()
    for seconds in (0.1, 0.02):
        for number in range(1500):
            measured.seen(0, number % 7, seconds - 1e-4 * (number % 7))
    assert measured.step_s(0, 3, 0) == pytest.approx(0.02, rel=0.05)
    assert measured.step_s(0, 1000, 0) >= 0.015
