"""A live server with the embedded model, for clients that run in an environment of their own."""

from collections.abc import Iterator

import pytest

from tests.live import Live, live


@pytest.fixture(scope="session")
def server() -> Iterator[Live]:
    """It writes calls as Qwen does, and must end well."""
    with live("sundog", "serve", "--port", "0", "--tool-call-parser", "hermes", "--debug") as server:
        yield server
        server.assert_sound()
        assert server.stop() == 0
