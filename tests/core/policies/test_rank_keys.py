"""Rank keys reduce calls of the policy, and change no decision."""

import random
from pathlib import Path

import pytest

from sundog.actors.core.policies.guard import PolicyError
from sundog.actors.core.queue import waiting
from sundog.actors.core.queue.policy import gives_keys
from sundog.actors.core.queue.view import View
from sundog.actors.core.request import Request
from sundog.actors.policy_file import find_policy
from tests.core.drive import Driven, Log, Updated
from tests.core.policies.world import DOCS, HASTY_MLFQ, World, policy_trace
from tests.core.traces import num_cases

LEARNED = f"{DOCS / 'learned_lengths.py'}:LearnedLengths"
KEYED = ["vtc", HASTY_MLFQ, LEARNED]


@pytest.mark.long(keep=1, reason="more cases of the law whose first `make test` runs", moderate=True)
@pytest.mark.parametrize("policy", KEYED)
def test_the_next_request_is_that_of_the_smallest_rank_of_all(policy: str) -> None:
    """Of equal ranks the one that came first, through preemptions and absences; `min` asks for every rank."""
    rng = random.Random(policy)
    world = World(policy, {"num_gpu_blocks": 20, "max_num_seqs": 4, "max_model_len": 100})
    queue, num_mixed = world.state.waiting, 0

    def place(request: Request) -> tuple[object, int]:
        return world.state.policy.rank(request, world.state.view), queue.places[request.request_id].turn

    for number in range(120):
        for copy in range(rng.randrange(3)):
            tenant = rng.choice(["a", "batch", None])
            world.add(f"{number}-{copy}", rng.randint(1, 60), rng.randint(1, 30), tenant=tenant)
        queue.rerank()
        requests = list(queue)
        assert queue.peek() is min(requests, key=place, default=None)
        num_mixed += len({place(request)[0] for request in requests}) > 1
        world.step()
    assert num_mixed > 10 and world.preemptions


@pytest.mark.long(keep=1, reason="more cases of the law whose first `make test` runs", moderate=True)
@pytest.mark.parametrize("policy", KEYED)
def test_keys_change_no_decision(policy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches, ends and the pool are those of a queue that asks for every rank."""

    def logs() -> list[Log]:
        return [Driven(policy_trace(seed, policy)).run() for seed in range(num_cases(40))]

    assert gives_keys(find_policy(policy))
    keyed = logs()
    monkeypatch.setattr(waiting, "gives_keys", lambda policy: False)
    for with_keys, without in zip(keyed, logs(), strict=True):
        assert [e if isinstance(e, Updated) else e.batch for e in with_keys] == [
            e if isinstance(e, Updated) else e.batch for e in without
        ]


def test_a_token_that_comes_late_may_change_the_key() -> None:
    """As after a preemption under async scheduling: the request goes down a level, behind others."""
    world = World(HASTY_MLFQ)
    demoted, behind = world.add("demoted", 1), world.add("behind", 1)
    demoted.num_tokens += 1
    world.state.waiting.renew(demoted)
    assert world.state.waiting.peek() is behind


def test_one_rank_is_asked_for_each_key_at_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many wait, and whether the key is ours or a user's."""
    world = World(LEARNED, {"max_num_seqs": 1})
    for number in range(50):
        world.add(f"r{number}", 1, 5, tenant="batch" if number % 2 else None)
    asked: list[str] = []
    rank = type(world.state.policy).rank

    def counted(self: object, request: Request, view: View) -> object:
        asked.append(request.request_id)
        return rank(self, request, view)  # type: ignore[arg-type]  # it is the method's own object

    monkeypatch.setattr(type(world.state.policy), "rank", counted)
    for _ in range(10):
        world.step()
    assert 0 < len(asked) <= 2 * 2 * len(world.admissions), "at most before and after each"


OWN = """from sundog.actors.core.policies import VirtualTokenCounter

class Own(VirtualTokenCounter):
    def rank(self, request, view):
        return -request.submit.arrival_s
"""


def test_a_key_of_another_rank_is_not_heeded(tmp_path: Path) -> None:
    """Who inherits a key and ranks otherwise is asked for every request."""
    file = tmp_path / "own.py"
    file.write_text(OWN)
    world = World(f"{file}:Own", {"max_num_seqs": 1})
    for name in ("first", "second", "third"):
        world.add(name, 5)
    assert world.run().admissions == ["third", "second", "first"]


def test_a_key_that_cannot_be_looked_up_is_named(tmp_path: Path) -> None:
    """A list, say."""
    file = tmp_path / "own.py"
    file.write_text(
        OWN + "    is_dynamic = True\n    def rank_key(self, request, view):\n        return [1]\n"
    )
    with pytest.raises(PolicyError, match=r"Own: rank_key of r returned \[1\]: it must be a number, text"):
        World(f"{file}:Own").add("r", 5)
