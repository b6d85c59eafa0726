"""Known violations of HTTP rules in Hypercorn, as listed in docs/api.md; a test fails once one is fixed."""

import pytest

SOON_S = 3.0
"""The time after which a test of such a law gives up: it is expected to."""


def hypercorns(why: str) -> pytest.MarkDecorator:
    """Mark a test that fails because of Hypercorn 0.18; one that passes is an error."""
    return pytest.mark.xfail(strict=True, reason=f"Hypercorn's: {why}")
