"""The places in which the laws of the kernel hold."""

import pytest

from tests.actors.places import PLACES, InProcess


@pytest.fixture(params=["virtual", pytest.param("wall", marks=pytest.mark.wall_clock)])
def place(request: pytest.FixtureRequest) -> InProcess:
    return PLACES[request.param]
