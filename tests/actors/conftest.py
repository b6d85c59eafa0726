"""Fixtures for the places in which the laws of the kernel are tested."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.actors.places import PLACES, Place

RAY = pytest.param("ray", marks=(pytest.mark.wall_clock, pytest.mark.ray))


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Every place; but for Ray where a test looks inside the actor's process."""
    if "place" not in metafunc.fixturenames:
        return
    here = [pytest.param(name, marks=() if name == "virtual" else pytest.mark.wall_clock) for name in PLACES]
    looks_inside = metafunc.definition.get_closest_marker("looks_inside") is not None
    metafunc.parametrize("place", here if looks_inside else [*here, RAY], indirect=True)


@pytest.fixture
def place(request: pytest.FixtureRequest) -> Place:
    if request.param != "ray":
        return PLACES[request.param]
    from tests.runtime.ray.far import OverRay

    return OverRay(request.getfixturevalue("host"))


@pytest.fixture(scope="module")
def host() -> Iterator[Any]:
    """A process of a local Ray cluster."""
    from sundog.runtime.ray.cluster import joined

    with joined(None, 2):
        from tests.runtime.ray.far import new_host

        yield new_host()
