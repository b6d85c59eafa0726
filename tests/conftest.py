"""Async tests run on the virtual clock and never sleep, except those marked `@pytest.mark.wall_clock`.

Tests that put something of their own in the place of a class, `@pytest.mark.plain`, are skipped
when the simulator is compiled (`make fast`): compiled classes are what they are. What is slow, most of
it while a quicker test states the same law, `@pytest.mark.long(reason="...")`, runs with `--long` (`make
test-all`); with `keep=N` as many of its cases, spread evenly, stay in `make test`; with `rare=True` it is
for releases, with `--rare` besides (`make test-long`), and with `moderate=True` it takes seconds, and only
`make test` leaves it out: other kernels and the compiled simulator (`--moderate`) run it, too;
and what needs Ray, `@pytest.mark.ray`, with `--ray` (`make test-ray`). A slow test that stays in `make test`
says why by `@pytest.mark.slow(reason="...")`; the slowest of a run are printed last, with their reasons.

Python looks for garbage as seldom as in commands (`sundog.__main__`): a quarter of importing torch was that.

Helpers are imported as `tests.…`, so tests run from the repository's root: `python -m pytest`.
"""

import gc
import inspect
import os
import signal
from collections import defaultdict
from collections.abc import Generator
from functools import partial
from importlib.util import find_spec
from itertools import groupby

import pytest
import trio

from sundog import fast
from sundog.__main__ import SELDOM
from sundog.sim.clock import run_virtual
from tests.patience import be_patient

NUM_SLOWEST, FEW = 20, 200
"""How many tests are printed as the slowest; none of a run of fewer tests than the second number."""
SLOW = "slow"
"""The property of a report that holds the reason."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--ray", action="store_true", help="also what is marked `ray`: `make test-ray`")
    parser.addoption("--long", action="store_true", help="also what is marked `long`, but for the rare")
    parser.addoption(
        "--rare", action="store_true", help="also what is marked `long` and rare: `make test-long`"
    )
    parser.addoption("--moderate", action="store_true", help="also what is long, but only by seconds")
    parser.addoption("--backwards", action="store_true", help="each file's tests from the last to the first")
    parser.addoption("--only-long", action="store_true", help="only what is marked `long`: `make test-all`")


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Three for two cores: tests that wait for servers to start, or to end, leave cores to others."""
    return 3 * (os.cpu_count() or 1) // 2


def pytest_configure(config: pytest.Config) -> None:
    gc.set_threshold(SELDOM, 50, 50)
    be_patient()
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # in the background of a shell; commands inherit it
        signal.signal(signal.SIGINT, signal.default_int_handler)
    config.addinivalue_line("markers", "wall_clock: runs under plain Trio, on the wall clock")
    config.addinivalue_line("markers", "plain: replaces a class, which compiled code refuses")
    config.addinivalue_line("markers", "ray: runs on a Ray cluster; `make test-ray` runs it")
    config.addinivalue_line("markers", "looks_inside: of an actor, which must be in the test's own process")
    config.addinivalue_line(
        "markers",
        "long(reason, keep=0, rare=False, moderate=False): slow, for `make test-all`, if rare for"
        " `make test-long`; `keep` of its cases stay in `make test`; if moderate, --moderate runs it, too",
    )
    config.addinivalue_line("markers", "slow(reason): slow, and in `make test` for this reason")
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Slowest(), "slowest")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skip the plain tests of a compiled simulator, and long ones; refuse a build older than its source."""
    if changed := fast.stale():
        raise pytest.UsageError(f"{', '.join(changed)} changed since `make fast`")
    if config.getoption("--ray") and find_spec("ray") is None:
        raise pytest.UsageError("--ray needs Ray: pip install 'sundog[ray]'")
    if not config.getoption("--ray"):
        for item in items:
            if item.get_closest_marker("ray"):
                item.add_marker(pytest.mark.skip(reason="on a Ray cluster: make test-ray"))
    _choose_long(config, items)
    if config.getoption("--backwards"):
        items[:] = backwards(items)
    if fast.built():
        for item in items:
            if item.get_closest_marker("plain"):
                item.add_marker(pytest.mark.skip(reason="the simulator is compiled"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Carry a test's reason to be slow to where the slowest are printed."""
    report = yield
    for name in ("slow", "long"):
        if (marker := item.get_closest_marker(name)) is not None:
            report.user_properties.append((SLOW, str(marker.kwargs.get("reason", f"marked {name}"))))
            break
    return report


class Slowest:
    """Prints the slowest tests of a run, and why each of them is slow."""

    def __init__(self) -> None:
        self._seconds: dict[str, float] = defaultdict(float)
        self._reasons: dict[str, str] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Add the seconds of one phase; a fixture's count for the test that waited for it."""
        self._seconds[report.nodeid] += report.duration
        for name, why in report.user_properties:
            if name == SLOW:
                self._reasons[report.nodeid] = str(why)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if len(self._seconds) < FEW:
            return
        terminalreporter.section("slowest tests, with the reason")
        for name, seconds in sorted(self._seconds.items(), key=lambda each: -each[1])[:NUM_SLOWEST]:
            why = self._reasons.get(name, "no reason given")
            terminalreporter.write_line(f"{seconds:7.2f} s  {name}: {why}")


def _choose_long(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep what is marked `long` and the rest, or one of both, as the options say."""
    if not config.getoption("--rare"):
        for item in items:
            if any(marker.kwargs.get("rare") for marker in item.iter_markers("long")):
                item.add_marker(pytest.mark.skip(reason="rare: make test-long"))
    if config.getoption("--long"):
        return
    long = long_among(items)
    if config.getoption("--only-long"):
        config.hook.pytest_deselected(items=[item for item in items if item.nodeid not in long])
        items[:] = [item for item in items if item.nodeid in long]
        return
    left_out = long_among(items, without_moderate=True) if config.getoption("--moderate") else long
    for item in items:
        if item.nodeid in left_out:
            item.add_marker(pytest.mark.skip(reason="long: make test-all"))


def long_among(items: list[pytest.Item], without_moderate: bool = False) -> set[str]:
    """Return the ids of what is left to `make test-all`, and, unless those are left out, of moderate tests.

    A mark with `keep=N` leaves it all cases but N, unless no more than N were asked for: those run wherever.
    """
    found, cases = set(), defaultdict(list)
    for item in items:
        if (marker := item.get_closest_marker("long")) is None:
            continue
        if without_moderate and marker.kwargs.get("moderate"):
            continue
        if num_kept := marker.kwargs.get("keep", 0):
            cases[item.nodeid.partition("[")[0], num_kept].append(item.nodeid)
        else:
            found.add(item.nodeid)
    for (_, num_kept), names in cases.items():
        found.update(
            name
            for index, name in enumerate(names)
            if len(names) > num_kept
            and index * num_kept // len(names) == (index - 1) * num_kept // len(names)
        )
    return found


def backwards(items: list[pytest.Item]) -> list[pytest.Item]:
    """Return the tests of each file in reverse order, the files as they were.

    Which test runs after which depends on the workers; one that needs an earlier one fails here.
    """
    files = groupby(items, key=lambda item: item.nodeid.partition("::")[0])
    return [item for _, tests in files for item in reversed(list(tests))]


def pytest_unconfigure() -> None:
    """Look once for what was left in cycles, as pytest does five times, which is for other Pythons than this.

    With all that was imported each look takes half a second of every worker.
    """
    gc.collect()
    gc.freeze()


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
