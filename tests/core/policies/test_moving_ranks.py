"""Ranks linear in time: the order always equals that of recomputing all of them."""

import random
from pathlib import Path

import pytest

from sundog.actors.core.policies.guard import PolicyError
from sundog.actors.core.queue.tournament import Place, Tournament
from tests.core.drive import Driven
from tests.core.policies.world import DOCS, World, policy_trace
from tests.core.requests import request
from tests.core.traces import num_cases

RATIO = f"{DOCS / 'response_ratio.py'}:ResponseRatio"
ASKED = """from sundog.actors.core.policies import Policy

class Asked(Policy):
    is_dynamic = True

    def rank(self, request, view):
        tokens = request.submit.num_prompt_tokens
        return request.submit.arrival_s / tokens + -1 / tokens * view.now_s
"""


@pytest.mark.parametrize("seed", range(num_cases(20)))
def test_the_first_place_is_that_of_the_smallest_rank(seed: int) -> None:
    """Through arrivals, departures, times back and forth, and ranks that meet in one instant or nearly so."""
    rng = random.Random(seed)
    order, places, now_s = Tournament(), {}, 0.0
    values = [0.1 * number for number in range(6)] + [rng.uniform(0, 5) for _ in range(6)]
    speeds = [-1 / number for number in range(1, 6)] + [0.0, 0.0, 0.25, 1e-15]
    for turn in range(400):
        name = f"r{rng.randrange(40)}"
        if rng.random() < 0.6:
            value = rng.choice(values) * rng.choice([1, 1, 1 + 2**-52, 1e9])
            place = places[name] = Place(value, rng.choice(speeds), turn, request(name))
            order.put(name, place, now_s)
        else:
            places.pop(name, None)
            order.remove(name, now_s)
        now_s += rng.choice([0.0, 0.1, 0.3, rng.random(), 1e6]) * (rng.random() < 0.5)
        if rng.random() < 0.05:
            now_s = rng.uniform(0, now_s)
        first = min(places.values(), key=lambda place: (place.rank(now_s), place.turn), default=None)
        assert order.first(now_s) is first
        others = [place for place in places.values() if place is not first]
        assert order.may_turn or all(first.is_before(other, 10 * now_s) for other in others)


def test_a_rank_that_moves_decides_like_one_that_is_asked_each_time(tmp_path: Path) -> None:
    """Batches, the queue after each, and ends, with preemptions and steps planned ahead."""
    file = tmp_path / "asked.py"
    file.write_text(ASKED)
    for seed in range(num_cases(40)):
        trace = policy_trace(seed, RATIO)
        asking = trace | {"config": trace["config"] | {"policy": f"{file}:Asked"}}
        assert Driven(trace).run() == Driven(asking).run(), f"seed {seed}"


def test_requests_overtake_while_they_wait() -> None:
    """A short one that came late goes first; a long one has waited long enough before the next short one."""
    world = World(RATIO, {"max_num_seqs": 1, "num_gpu_blocks": 1001}, step_s=1.0)
    world.add("running", 1, 30, arrival_s=0.0)
    world.step()
    world.add("long", 100, 1, arrival_s=0.0)
    world.add("short", 1, 30, arrival_s=29.5)
    world.add("later", 1, 1, arrival_s=59.9)
    assert world.run().admissions == ["running", "short", "long", "later"]


MINE = """from sundog.actors.core.policies import Policy, Rank

class Mine(Policy):
    def rank(self, request, view):
"""


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ("Rank((1, 2), per_s=1.0)", "per_s is a number, and so is a value that moves"),
        ("Rank(1, per_s='fast')", "per_s is a number, and so is a value that moves"),
        ("Rank(float('inf'), per_s=1)", "a rank that moves is finite, and so is per_s"),
    ],
)
def test_what_cannot_move_is_refused_by_name(tmp_path: Path, answer: str, reason: str) -> None:
    """A text or a tuple, and what is at no distance from anything."""
    file = tmp_path / "mine.py"
    file.write_text(f"{MINE}        return {answer}\n")
    with pytest.raises(PolicyError, match=f"Mine: rank of r returned .*{reason}"):
        World(f"{file}:Mine").add("r", 5)


def test_a_place_that_was_given_up_is_used_again() -> None:
    """However many come and go, the tree has room for those that wait at once."""
    tournament = Tournament()
    for turn in range(1000):
        name = f"r{turn}"
        tournament.put(name, Place(float(turn), 0.0, turn, request(name)), 0.0)
        first = tournament.first(0.0)
        assert first is not None and first.request.request_id == name
        tournament.remove(name, 0.0)
    assert tournament.first(0.0) is None and len(tournament._winners) == 2
