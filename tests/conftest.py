"""Async tests run on the virtual clock and never sleep; `@pytest.mark.wall_clock` excepts one.

Helpers are imported as `tests.…`, so tests run from the repository's root: `python -m pytest`.
"""

import inspect
from functools import partial

import pytest
import trio

from sim.clock import run_virtual


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "wall_clock: runs under plain Trio, on the wall clock")


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test that is a coroutine function to its end."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = inspect.signature(pyfuncitem.obj).parameters
    test = partial(pyfuncitem.obj, **{name: pyfuncitem.funcargs[name] for name in names})
    run = trio.run if pyfuncitem.get_closest_marker("wall_clock") else run_virtual
    run(test)
    return True
