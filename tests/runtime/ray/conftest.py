"""Ray's token is set before Ray is imported, as Ray reads it then."""

import os
from collections.abc import Iterator
from typing import Any

import pytest

os.environ.setdefault("RAY_AUTH_MODE", "token")
os.environ.setdefault("RAY_AUTH_TOKEN", "0123456789abcdef" * 4)


@pytest.fixture(scope="module", autouse=True)
def starts_slowly() -> Iterator[None]:
    """A cluster begins before its server does."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tests.live.START_S", 300)
        yield


@pytest.fixture(scope="module")
def host() -> Iterator[Any]:
    """A process of a local Ray cluster, for clerks."""
    from sundog.runtime.ray.cluster import joined

    with joined(None, 2):
        from tests.runtime.ray.far import new_host

        yield new_host()
