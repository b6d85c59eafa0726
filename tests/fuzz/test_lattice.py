"""Random configurations over every option that changes decisions keep every law (`python -m tests.fuzz`)."""

import os
from collections.abc import Iterable
from typing import get_args

import pytest

from sundog.actors.core.policies import POLICIES
from sundog.actors.core.routers import ROUTERS
from sundog.actors.core.scalers import SCALERS
from sundog.library.arguments import RECORDS
from sundog.options.row import rows
from sundog.sim.fleet.faults import PlannedFault
from sundog.sim.oracle import PREDICTORS
from sundog.sim.trace.record import TraceRequest
from tests.core.traces import num_cases
from tests.fuzz.lattice import DOCS, NOT_VARIED, configuration
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


@pytest.mark.long(keep=1, reason="more cases of the law whose first `make test` runs", moderate=True)
@pytest.mark.parametrize("part", range(4))
def test_features_that_meet_keep_every_law(part: int) -> None:
    held_against_every_law(range(part, num_cases(CONFIGURATIONS), 4))


@pytest.mark.long
@pytest.mark.parametrize("part", range(4))
def test_more_features_that_meet_keep_every_law(part: int) -> None:
    first = 1000 + int(os.environ.get("SUNDOG_FUZZ_SEED", "0"))
    held_against_every_law(range(first + part, first + 300, 4))


MANY = [configuration(seed) for seed in range(500)]


def test_every_option_that_changes_decisions_is_in_the_lattice() -> None:
    """A new option is either varied there or named with its reason."""
    known = {row.name for record in RECORDS for row in rows(record)}
    varied = {name for each in MANY for name in each.options} | {"faults"}
    assert varied | NOT_VARIED.keys() == known
    assert not varied & NOT_VARIED.keys()


def test_every_decider_and_every_fault_is_in_the_lattice() -> None:
    """Those that have a name, and those that the documentation shows."""
    given = " ".join(str(value) for each in MANY for value in each.options.values())
    assert not [name for name in (*POLICIES, *ROUTERS, *SCALERS, *PREDICTORS) if name not in given]
    rooms = [DOCS, *(DOCS / room for room in ("policies", "routers", "scalers"))]
    documented = [path for room in rooms for path in room.glob("*.py")]
    assert len(documented) > 15
    assert not [path for path in documented if str(path) not in given]
    faults = "\n".join(each.faults for each in MANY)
    kinds = {kind.model_fields["kind"].annotation.__args__[0] for kind in get_args(PlannedFault)}
    assert not [kind for kind in kinds if f'"{kind}"' not in faults]
    assert "[random]" in faults


def test_every_field_of_a_trace_is_in_the_lattice() -> None:
    """Each differs from its default in some row."""
    defaults = TraceRequest("", 0.0, 0, 0)
    found = {
        name
        for each in MANY
        for row in each.rows
        for name, value, default in zip(TraceRequest._fields, row, defaults, strict=True)
        if value != default
    }
    assert found == set(TraceRequest._fields)
