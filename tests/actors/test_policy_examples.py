"""The example policies of docs/policies.md do what they claim, and can be served."""

from collections.abc import Sequence

import pytest

from sundog.actors.policy_file import find_policy
from tests.actors.fakes import read
from tests.core.policies.world import DOCS, EXAMPLES, World
from tests.test_fates import ask, health, served

ONE_AT_A_TIME = {"max_num_seqs": 1}


@pytest.mark.parametrize("name", EXAMPLES, ids=lambda name: name.rpartition("/")[2])
async def test_an_example_is_served(name: str) -> None:
    """Every answer is whole, and the policy has not failed."""
    async with served(policy=find_policy(name), replicas=2, max_num_seqs=2) as (_, client):
        answers = [
            await ask(client, f"r{number}", 3, tenant="ab"[number % 2], slo_ttft_s=float(number + 1))
            for number in range(12)
        ]
        assert [(await read(answer)).num_tokens for answer in answers] == [3] * 12
        assert (await health(client)).status == "healthy"


def chunks(world: World, name: str, num_steps: int) -> list[int]:
    """How many tokens of a prompt each of the next steps computes."""
    given = []
    for _ in range(num_steps):
        batch = world.step()
        given.append(sum(chunk.num_tokens for chunk in batch.chunks if chunk.request_id == name))
    return given


def test_a_quota_bounds_the_chunk_of_one_request() -> None:
    """While an answer runs, and not before; others take what it leaves of the budget."""
    world = World(f"{DOCS}/small_chunks.py:SmallChunks:chunk_tokens=8", {"max_num_batched_tokens": 64})
    world.add("alone", 30, 50)
    assert chunks(world, "alone", 1) == [30]
    world.add("prompt", 40, 2)
    world.add("other", 40, 2)
    assert chunks(world, "prompt", 5) == [40, 0, 0, 0, 0]
    world.add("third", 20, 2)
    assert chunks(world, "third", 4) == [8, 8, 4, 0]


def admissions(seed: int, tenants: Sequence[str]) -> list[str]:
    world = World(f"{DOCS}/lottery.py:Lottery:favoured=rich,tickets=4", ONE_AT_A_TIME, seed=seed)
    for number, tenant in enumerate(tenants):
        world.add(f"r{number}", 4, 1, tenant=tenant)
    return world.run().admissions


@pytest.mark.long(reason="replays many requests, or many random cases", moderate=True)
def test_a_lottery_follows_from_the_seed_and_favours_by_tickets() -> None:
    """Same seed, same order; over many draws the favoured one comes first 4 of 5 times."""
    tenants = ["rich", "poor"]
    assert admissions(1, tenants * 9) == admissions(1, tenants * 9) != admissions(2, tenants * 9)
    wins = sum(admissions(seed, tenants)[0] == "r0" for seed in range(1000))
    assert 750 < wins < 850


def test_memory_learns_which_tenant_has_short_answers() -> None:
    """Nothing is known at first; then the tenant of short answers goes before the other."""
    world = World(f"{DOCS}/learned_lengths.py:LearnedLengths", ONE_AT_A_TIME)
    for name, output in (("long-0", 30), ("short-0", 2)):
        world.add(name, 4, output, tenant=name[0])
    world.run()
    for number in range(1, 4):
        world.add(f"long-{number}", 4, 30, tenant="l")
        world.add(f"short-{number}", 4, 2, tenant="s")
    order = world.run().admissions[2:]
    assert [name.split("-")[0] for name in order] == ["short"] * 3 + ["long"] * 3


def test_memory_is_each_replicas_own() -> None:
    """Two schedulers of one policy learn apart."""
    worlds = [World(f"{DOCS}/learned_lengths.py:LearnedLengths") for _ in range(2)]
    worlds[0].add("r", 4, 3, tenant="t")
    worlds[0].run()
    assert [world.state.view.memory for world in worlds] == [{"t": (3, 1)}, {}]


def test_slack_is_measured_on_the_runs_clock() -> None:
    """The nearest target first; one that is missed already comes last."""
    world = World(f"{DOCS}/least_slack.py:LeastSlack", ONE_AT_A_TIME)
    world.add("runs", 4, 2, arrival_s=0.0)
    world.step()
    for name, target_s in (("relaxed", 90.0), ("missed", 5.0), ("urgent", 20.0), ("none", None)):
        world.add(name, 4, 1, arrival_s=0.0, slo_ttft_s=target_s)
    world.state.view.advance(10.0)
    assert world.run().admissions == ["runs", "urgent", "relaxed", "none", "missed"]
