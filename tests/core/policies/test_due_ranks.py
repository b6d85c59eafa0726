"""Ranks are recomputed only when they may have changed, which changes no decision."""

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sundog.actors.core.policies.guard import GuardedPolicy
from sundog.actors.core.queue.view import View
from sundog.actors.core.queue.waiting import WaitingQueue
from sundog.actors.core.request import Request
from tests.core.drive import Driven, Log, Planned
from tests.core.policies.world import EXAMPLES, RESTLESS, World, policy_trace
from tests.core.traces import num_cases
from tests.core.work import has_work

HERE = Path(__file__).parent
PICKY = [f"{HERE / 'picky.py'}:{name}" for name in ("Picky", "PickyByTenant", "Holding", "HoldingByTenant")]
SEEDS = range(num_cases(24))


def log(policy: str, seed: int) -> tuple[Log, list[Any]]:
    """Batches, the queue after each, ends and the pool; and the ranks that listeners are told."""
    driven = Driven(policy_trace(seed, policy))
    told: list[Any] = []

    def watch(event: object) -> None:
        if isinstance(event, Planned):
            told.append((event.waiting, driven.state.waiting.take_ranks()))

    driven.watch = watch
    return driven.run(), told


@pytest.mark.long(keep=1, reason="more cases of the law whose first `make test` runs", moderate=True)
@pytest.mark.parametrize("policy", [*EXAMPLES, *PICKY, *RESTLESS], ids=lambda name: name.rpartition("/")[2])
def test_a_rank_that_is_not_asked_again_would_be_answered_alike(
    policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Batches, queues, told ranks and ends are those of a queue that asks for every rank each time."""
    names = [f"{policy}:seed={seed}" if policy in (*PICKY, *RESTLESS) else policy for seed in SEEDS]
    saving = [log(name, seed) for seed, name in enumerate(names)]
    rerank = WaitingQueue.rerank

    def rerank_all(self: WaitingQueue) -> None:
        if self._asks_again:
            self._unranked.update(dict.fromkeys(self._firsts()))
        rerank(self)

    monkeypatch.setattr(WaitingQueue, "rerank", rerank_all)
    monkeypatch.setattr(WaitingQueue, "may_turn", True)
    num_ranked = 0
    for seed, name in enumerate(names):
        asking, told = log(name, seed)
        assert saving[seed][0] == asking, f"seed {seed}"
        assert dict(latest(saving[seed][1])) == dict(latest(told)), f"seed {seed}"
        num_ranked += bool(told)
    assert num_ranked


def latest(told: list[Any]) -> Iterator[tuple[str, Any]]:
    """The ranks that were told, in order: some are told again, alike."""
    return (pair for _, ranks in told for pair in ranks)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The request of each rank that a user's policy was asked for."""
    asked: list[str] = []
    rank = GuardedPolicy.rank

    def counted(self: GuardedPolicy, request: Request, view: View) -> object:
        asked.append(request.request_id)
        return rank(self, request, view)

    monkeypatch.setattr(GuardedPolicy, "rank", counted)
    return asked


def overloaded(policy: str, num_requests: int, calls: list[str]) -> int:
    """How many ranks are asked for when this many requests come at once and leave one by one."""
    calls.clear()
    rng = random.Random(num_requests)
    world = World(policy, {"max_num_seqs": 4})
    for number in range(num_requests):
        world.add(
            f"r{number}",
            rng.randint(1, 30),
            rng.randint(1, 9),
            tenant=rng.choice("abc"),
            arrival_s=number / 100,
            slo_ttft_s=rng.uniform(0, num_requests),
        )
    for step in range(10_000):
        if not has_work(world.state):
            return len(calls)
        world.state.view.advance(float(step))
        world.step()
    raise AssertionError("unfinished")


TIMED = """from sundog.actors.core.policies import Policy

class Timed(Policy):
    is_dynamic = True

    def rank(self, request, view):
        return request.submit.slo_ttft_s - view.now_s
"""


@pytest.mark.long(keep=2, reason="more seeds of the law whose first cases `make test` runs")
@pytest.mark.parametrize("policy", EXAMPLES, ids=lambda name: name.rpartition("/")[2])
def test_questions_grow_with_the_requests_and_not_with_their_square(policy: str, calls: list[str]) -> None:
    """Of requests that all wait for the same few running slots."""
    few, many = overloaded(policy, 25, calls), overloaded(policy, 150, calls)
    assert many <= 9 * few
    assert many <= 4 * 150


def test_a_rank_of_a_dynamic_policy_is_asked_before_each_admission(tmp_path: Path, calls: list[str]) -> None:
    """It may look at anything, and says nothing of when it changes."""
    file = tmp_path / "timed.py"
    file.write_text(TIMED)
    world = World(f"{file}:Timed", {"max_num_seqs": 10})
    for number in range(30):
        world.add(f"r{number}", 1, 5, slo_ttft_s=float(number))
    calls.clear()
    world.state.view.advance(1.0)
    world.step()
    assert len(world.admissions) == 10 and len(set(calls)) == 30
    assert len(calls) == sum(range(20, 31))


FAR = """from sundog.actors.core.policies import Policy, Rank

class Far(Policy):
    def rank(self, request, view):
        return Rank(0, until_s=1e12, until_step=10**12)
"""


def test_limits_of_requests_that_are_over_do_not_stay(tmp_path: Path) -> None:
    """Of a server's, whose clock never comes to what they waited for."""
    file = tmp_path / "far.py"
    file.write_text(FAR)
    world = World(f"{file}:Far", {"max_num_seqs": 2})
    for number in range(500):
        world.add(f"r{number}", 1)
        world.state.view.advance(float(number))
        world.step()
    queue = world.state.waiting
    assert len(world.finished) > 400
    assert len(queue._by_time._heap) < 100 and len(queue._by_step._heap) < 100
