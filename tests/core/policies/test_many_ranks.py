"""A slow dynamic rank is reported by a warning that names the policy."""

import logging
from pathlib import Path

import pytest

from sundog.actors.core.policies.guard import MANY_RANKS, GuardedPolicy
from tests.core.policies.world import World

POLICY = """
from sundog.actors.core.policies import Policy, Rank


class Slow(Policy):
    is_dynamic = True

    def rank(self, request, view):
        return request.submit.arrival_s - view.now_s


class Quick(Policy):
    def rank(self, request, view):
        return Rank(request.submit.arrival_s, per_s=-1.0)
"""


@pytest.mark.parametrize(("name", "num_lines"), [("Slow", 1), ("Quick", 0)])
def test_a_dynamic_rank_that_is_asked_for_a_million_times_is_named_once(
    name: str, num_lines: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """In one line, with the form that is quick; replicas count together."""
    path = tmp_path / "mine.py"
    path.write_text(POLICY)
    world = World(f"{path}:{name}")
    policy = world.state.policy
    assert isinstance(policy, GuardedPolicy)
    twin = policy.for_replica()
    twin.show(world.state.view)
    request = world.add("a", 6, 20)
    policy._num_asked[0] = MANY_RANKS - 2
    with caplog.at_level(logging.WARNING):
        for each in (policy, twin, policy, twin):
            each.rank(request, world.state.view)
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == num_lines
    assert all("1,000,000" in line and "per_s" in line and f"{path}:{name}" in line for line in lines)
