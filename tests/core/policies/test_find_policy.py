"""Policies by name, with parameters, and from a user's own file."""

import dataclasses
from pathlib import Path

import pytest

from actors.core.config import ConfigError
from actors.core.policies import POLICIES, find_policy
from actors.core.policies.vtc import VirtualTokenCounter
from tests.core.policies.world import World

DOCS = Path(__file__).parents[3] / "docs"
EXAMPLE = DOCS / "interactive_first.py"


@pytest.mark.parametrize("name", POLICIES)
def test_every_policy_is_frozen_equal_by_value_and_documented(name: str) -> None:
    """A policy has no memory: two of the same name and parameters are the same."""
    policy = find_policy(name)
    assert policy == find_policy(name)
    assert dataclasses.is_dataclass(policy)
    with pytest.raises(dataclasses.FrozenInstanceError):
        policy.is_dynamic = True  # type: ignore[misc]
    assert type(policy).__doc__ and f"`{name}`" in (DOCS / "policies.md").read_text()


def test_parameters_follow_the_name() -> None:
    """As numbers, by the names of the policy's fields."""
    assert find_policy("vtc:output_weight=4,input_weight=0.5") == VirtualTokenCounter(0.5, 4)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("fcsf", "Did you mean fcfs"),
        ("vtc:weight=3", "weight"),
        ("vtc:input_weight", "not key=number"),
        ("vtc:input_weight=many", "not key=number"),
        ("vtc:input_weight=0", "above 0"),
        ("mlfq:num_levels=0", "at least 1"),
        ("nowhere.py:Mine", "does not exist"),
    ],
)
def test_a_wrong_policy_is_an_error_that_says_what_is_wrong(text: str, reason: str) -> None:
    """One line, for the command line."""
    with pytest.raises(ConfigError, match=reason):
        find_policy(text)


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("class Other: ...", "has no class Mine"),
        ("class Mine: ...", "inherit from"),
        ("import nothing_like_it", "cannot be loaded"),
    ],
)
def test_a_wrong_file_is_an_error_that_names_it(tmp_path: Path, source: str, reason: str) -> None:
    """And the class that was looked for."""
    file = tmp_path / "mine.py"
    file.write_text(source)
    with pytest.raises(ConfigError, match=rf"mine\.py.*{reason}|{reason}.*mine\.py"):
        find_policy(f"{file}:Mine")


def test_the_example_of_the_documentation_is_the_file_and_keeps_its_promise() -> None:
    """Batch requests come last, unless they have waited too long; parameters work for files too."""
    assert f"```python\n{EXAMPLE.read_text()}```" in (DOCS / "policies.md").read_text()
    orders = []
    for patience in (500, 30):
        world = World(f"{EXAMPLE}:InteractiveFirst:patience_steps={patience}", {"max_num_seqs": 1})
        world.add("first", 4, 5)
        world.step()
        world.add("batch", 4, 5, tenant="batch")
        for number in range(20):
            world.add(f"chat-{number}", 4, 5, tenant="chat")
        orders.append(world.run().admissions.index("batch"))
    assert orders[0] == 21 and 1 < orders[1] < 10
