"""The places in which the laws of the kernel hold."""

import pytest

from tests.actors.places import PLACES, Place

WALL_CLOCK = [
    pytest.param(name, marks=() if name == "virtual" else pytest.mark.wall_clock) for name in PLACES
]


@pytest.fixture(params=WALL_CLOCK)
def place(request: pytest.FixtureRequest) -> Place:
    return PLACES[request.param]
