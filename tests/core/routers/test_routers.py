"""Router policies as pure objects: choices, and invariants over lost and restarted replicas."""

import dataclasses
import random
from collections import Counter
from pathlib import Path

import pytest

from sundog.actors.core.request import Submit
from sundog.actors.core.routers import ROUTERS, Fleet, RouterPolicy
from sundog.actors.core.routers.fleet_state import FleetState
from sundog.actors.core.routers.prefix_index import new_index
from sundog.actors.policy_file import find_router
from tests.core.traces import num_cases

DOCS = Path(__file__).parents[3] / "docs"
EXAMPLES = {
    f"{DOCS}/routers/late_binding.py:LateBinding": "LateBinding",
    f"{DOCS}/routers/llumnix.py:Llumnix": "Llumnix",
    f"{DOCS}/routers/longest_apart.py:LongestApart:long_tokens=20": "LongestApart",
    f"{DOCS}/routers/shed_load.py:ShedLoad:most_waiting=100": "ShedLoad",
    f"{DOCS}/routers/sticky_prefix.py:StickyPrefix": "StickyPrefix",
}
NAMES = [
    *(name for name in ROUTERS if name != "weighted"),
    "prefix-aware:index=events",
    "session-affinity:bound=1.25",
    "weighted:prefix=1,load=0.5,tokens=0.2,prefill=1,session=0.1",
    *EXAMPLES,
]
BLOCK = 4


class World:
    """Some replicas under a policy; `sent` are those that requests went to, in order."""

    def __init__(self, router: str, num_replicas: int = 4, seed: int = 0, num_blocks: int = 100) -> None:
        self.policy = find_router(router)
        self.state = FleetState(new_index(self.policy.index), seed)
        for _ in range(num_replicas):
            self.state.add(num_blocks, BLOCK)
        self.fleet = Fleet(self.state, self.policy.new_memory())
        self.sent: list[int] = []

    def send(self, name: str, num_tokens: int = 9, keys: tuple[object, ...] = (), **fields: object) -> int:
        request = Submit(name, 0.0, num_tokens, 8, block_hashes=keys, **fields)  # type: ignore[arg-type]
        self.state.begin(float(len(self.sent)))
        replica = self.policy.choose(request, self.fleet)
        assert replica is not None
        self.state.send(request, replica)
        self.sent.append(replica)
        return replica


def history(router: str, seed: int) -> list[int]:
    """Where requests go while others end, and replicas are lost, drained, and come back."""
    rng, world, alive = random.Random(seed), World(router, seed=seed), dict[str, int]()
    for number in range(120):
        name, session = f"r{number}", rng.randrange(6)
        keys = tuple((session, place) for place in range(rng.randrange(1, 12)))
        alive[name] = world.send(
            name, 4 * len(keys) + 1, keys, session=f"s{session}", tenant=f"t{session % 2}"
        )
        assert alive[name] in world.state.up_for["both"]
        for other in [other for other in alive if rng.random() < 0.2]:
            world.state.end(other)
            del alive[other]
        if rng.random() < 0.1 and len(world.state.up_for["both"]) > 1:
            replica = rng.choice(world.state.up_for["both"])
            assert set(world.state.lose(replica)) == {n for n, where in alive.items() if where == replica}
            alive = {n: where for n, where in alive.items() if where != replica}
        elif rng.random() < 0.2:
            world.state.regain(rng.randrange(4))
        if rng.random() < 0.1 and len(world.fleet.up) > 1:
            world.state.drain(rng.choice(world.fleet.up), True)
        elif rng.random() < 0.3:
            world.state.drain(rng.randrange(4), False)
        assert world.state.num_requests == [list(alive.values()).count(replica) for replica in range(4)]
        if up := world.fleet.up:
            counts, tally = [world.state.num_requests[each] for each in up], world.state.tallies["both"]
            assert (tally.fewest, tally.most) == (min(counts), max(counts))
            assert world.fleet.idlest == up[counts.index(min(counts))]
    for name in alive:
        world.state.end(name)
    for counts in (world.state.num_requests, world.state.num_tokens, world.state.num_prefill_tokens):
        assert counts == [0] * 4
    return world.sent


@pytest.mark.parametrize("router", NAMES, ids=lambda name: EXAMPLES.get(name, name))
def test_what_is_down_gets_nothing_and_the_same_seed_gives_the_same_choices(router: str) -> None:
    """Counts are those of what has not ended, and nothing is left of what has."""
    for seed in range(num_cases(5)):
        assert history(router, seed) == history(router, seed)


@pytest.mark.parametrize("name", ROUTERS)
def test_every_router_is_frozen_equal_by_value_and_documented(name: str) -> None:
    """A router has no memory of its own: two of the same name and parameters are the same."""
    text = f"{name}:prefix=1" if name == "weighted" else name
    policy = find_router(text)
    assert policy == find_router(text) and dataclasses.is_dataclass(policy)
    with pytest.raises(dataclasses.FrozenInstanceError):
        policy.index = "own"
    assert type(policy).__doc__ and f"| `{name}" in (DOCS / "routing.md").read_text()


def test_round_robin_takes_turns_and_passes_over_what_is_down() -> None:
    """Whoever is busy."""
    world = World("round-robin", 3)
    assert [world.send(name) for name in "abcd"] == [0, 1, 2, 0]
    world.state.lose(1)
    assert [world.send(name) for name in "efg"] == [2, 0, 2]


def test_least_tokens_counts_prompts_and_what_is_said_of_answers() -> None:
    """A prediction counts, whatever else; requests that have ended do not."""
    world = World("least-tokens", 2)
    assert [world.send("long", 100), world.send("b", 30), world.send("c", 30)] == [0, 1, 1]
    assert world.send("d", 30, predicted_tokens=500) == 1
    assert world.send("e", 300) == 0
    world.state.end("d")
    assert world.send("f") == 1


def test_power_of_two_takes_the_less_busy_of_two_that_the_seed_draws() -> None:
    """Never the busiest, and of idle ones not always the first."""
    world = World("power-of-two", 8)
    for number in range(400):
        assert world.send(f"r{number}") in world.state.up_for["both"]
    counts = world.state.num_requests
    assert max(counts) - min(counts) < 10
    assert World("power-of-two", 1).send("alone") == 0
    firsts = Counter(World("power-of-two", 4, seed=seed).send("r") for seed in range(200))
    assert set(firsts) == {0, 1, 2, 3}


def test_a_lost_replica_moves_only_its_own_sessions_and_they_come_back() -> None:
    """Rendezvous hashing: the others stay where they were."""
    world, sessions = World("session-affinity", 5), [f"s{number}" for number in range(200)]
    where = [world.send(name, session=name) for name in sessions]
    assert [world.send(f"{name}-2", session=name) for name in sessions] == where
    assert min(Counter(where).values()) > 20
    world.state.lose(2)
    moved = [world.send(f"{name}-3", session=name) for name in sessions]
    assert all((now == before) == (before != 2) for now, before in zip(moved, where, strict=True))
    assert len({now for now, before in zip(moved, where, strict=True) if before == 2}) == 4
    world.state.regain(2)
    assert [world.send(f"{name}-4", session=name) for name in sessions] == where


def test_affinity_goes_by_tenant_where_there_is_no_session_and_else_to_the_least_busy() -> None:
    """By `key=tenant` always."""
    world = World("session-affinity", 4)
    assert len({world.send(f"t{number}", tenant="t") for number in range(5)}) == 1
    assert len({world.send(f"n{number}") for number in range(3)}) == 3
    world = World("session-affinity:key=tenant", 4)
    assert len({world.send(f"{n}", tenant="t", session=str(n)) for n in range(9)}) == 1


def test_a_bound_passes_the_session_on_before_its_replica_is_flooded() -> None:
    """No replica has more than the bound times the mean, rounded up."""
    world = World("session-affinity:bound=1.5", 4)
    for number in range(40):
        world.send(f"r{number}", session="the only one")
        assert max(world.state.num_requests) <= -(-1.5 * (number + 1) // 4)


def keys(prompt: str, num: int) -> tuple[object, ...]:
    return tuple((prompt, place) for place in range(num))


def test_prefix_aware_goes_where_the_prompt_is_cached_unless_more_waits_there() -> None:
    """Tokens against tokens; what was computed waits no more."""
    world = World("prefix-aware", 3)
    first = world.send("a", 41, keys("p", 10))
    assert world.send("other", 40, keys("q", 9)) != first
    world.state.end("a")
    assert world.send("b", 49, keys("p", 12)) == first
    # 9 tokens wait there now, and 40 are cached: less than 32 more would have to wait for the move to pay.
    assert world.send("big", 200, keys("r", 49)) != first
    assert world.send("c", 49, keys("p", 12)) == first
    world.state.lose(first)
    assert world.send("d", 49, keys("p", 12)) != first
    world.state.regain(first)
    assert world.state.indexes[first].num_hit_blocks(keys("p", 12)) == 0


def test_a_hit_leaves_a_token_to_compute() -> None:
    """As in the replica's own prefix cache."""
    world = World("prefix-aware", 1)
    world.send("a", 40, keys("p", 10))
    world.state.begin(0.0)
    assert world.fleet.num_hit_tokens(Submit("b", 0.0, 40, 8, block_hashes=keys("p", 10)), 0) == 36


def test_weights_say_what_counts_for_more() -> None:
    """The same history, and the other replica."""
    for weights, expected in (("prefix=1,load=0.5", 0), ("prefix=0.2,load=1", 1)):
        world = World(f"weighted:{weights}", 2)
        assert [world.send("a", 41, keys("p", 10)), world.send("b", 41, keys("q", 10))] == [0, 1]
        world.state.end("b")
        assert world.send("c", 41, keys("p", 10)) == expected


class Bare(RouterPolicy):
    """Nothing of its own."""


def test_what_a_policy_does_not_say_is_the_least_busy_replica() -> None:
    world = World("least-requests", 3)
    world.policy = Bare()
    assert [world.send(name) for name in "abcd"] == [0, 1, 2, 0]
