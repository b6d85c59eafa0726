"""Timeouts of tests; only a hanging test reaches them, on busy machines too."""

import inspect

HANGS_S = 120.0
START_S = 240.0
"""A server that imports torch, beside others that do."""
STOP_S = 120.0


def be_patient() -> None:
    """Clients of httpx that are given no limit wait so long, too, and not five seconds."""
    try:
        import httpx
    except ModuleNotFoundError:  # an installation that only simulates
        return
    usual = inspect.signature(httpx.get).parameters["timeout"].default
    usual.connect = usual.read = usual.write = usual.pool = HANGS_S
