"""Random configurations over every option that changes decisions keep every law (`python -m tests.fuzz`)."""

import os
from collections.abc import Iterable

import pytest

from tests.core.traces import num_cases
from tests.fuzz.lattice import configuration
from tests.fuzz.laws import Broken, check

CONFIGURATIONS = 48
"""Half of them in `make test`; the long test has six times as many."""


def held_against_every_law(seeds: Iterable[int]) -> None:
    """Time moves on, each request ends once and is counted everywhere, no block is lost, and bytes repeat."""
    reasons: list[str] = []
    num_checked = 0
    for seed in seeds:
        try:
            found = check(configuration(seed), thoroughly=seed % 5 == 0, on_refusal=reasons.append)
        except Broken as error:
            pytest.fail(f"python -m tests.fuzz --configurations 1 --seed {seed}: {error}")
        num_checked += found is not None
    assert num_checked > 3 * len(reasons), reasons


@pytest.mark.parametrize("part", range(4))
def test_features_that_meet_keep_every_law(part: int) -> None:
    held_against_every_law(range(part, num_cases(CONFIGURATIONS), 4))


@pytest.mark.long
@pytest.mark.parametrize("part", range(4))
def test_more_features_that_meet_keep_every_law(part: int) -> None:
    first = 1000 + int(os.environ.get("SUNDOG_FUZZ_SEED", "0"))
    held_against_every_law(range(first + part, first + 300, 4))
