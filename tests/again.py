"""`python -m tests.again OPTION… -- WHAT…`: run pytest, then rerun failed tests of the real clock once,
alone.

Tests with live servers and the real clock share the cores with all others while the suite runs. One that met
a limit only there passes alone; a defect fails again. A test is of the real clock if it is marked
`wall_clock`, or if it connects a socket or sleeps while it runs. A law on the virtual clock is never run
again: to pass the second time would mean that it is not deterministic. If such a law failed, or more than a
few tests did, or pytest ended otherwise than by failed tests, its own status stands.

Every rerun is written to `.pytest_cache/reruns.txt`, with how the test failed at first, for CI to print. The
options hold for both runs, what comes after `--` (files, workers) only for the first.
"""

import inspect
import json
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path

import pytest

MOST = 5
CACHE = Path(".pytest_cache/again")
FAILURES = CACHE / "failures.jsonl"
"""The failures of one run of pytest: a line of JSON for each, written by the hooks below."""
RERUNS = Path(".pytest_cache/reruns.txt")
LINES = 12
"""How many of a failure's last lines are kept there."""
FAILED = 1
"""Pytest's exit status when tests failed, and nothing worse."""
REAL_CLOCK = "real clock"
"""The property of a report whose test met the real clock."""
SIGNS = ("socket.connect", "socket.bind", "time.sleep")
"""Audit events of a test that depends on the real clock."""


def main(options: list[str], what: list[str]) -> int:
    """Run pytest, and its failures again where that may be; returns the status to end with."""
    FAILURES.unlink(missing_ok=True)
    status = _pytest(*options, *what)
    failures = [json.loads(line) for line in FAILURES.read_text().splitlines()] if FAILURES.exists() else []
    names = sorted({failure["name"] for failure in failures})
    if status != FAILED or not 0 < len(names) <= MOST:
        return status
    if lawful := sorted({failure["name"] for failure in failures if not failure["is_real"]}):
        print("\nNot run again, for they do not depend on the real clock:", *lawful, sep="\n  ")
        return status
    print("\nOnce more, alone:", *names, sep="\n  ", flush=True)
    # Of a few cases none is long: see `keep` in conftest.py.
    status = _pytest(*("--long" if option == "--only-long" else option for option in options), *names)
    if status == 0:
        print("Passed alone, failed beside the others:", *names, sep="\n  ")
    RERUNS.parent.mkdir(parents=True, exist_ok=True)
    with RERUNS.open("a") as file:
        for failure in failures:
            outcome = "passed" if status == 0 else "the rerun failed"
            how = "\n".join(failure["how"].splitlines()[-LINES:])
            file.write(f"{failure['name']}: run again, {outcome}; at first:\n{how}\n\n")
    return status


def _pytest(*arguments: str) -> int:
    command = [sys.executable, "-m", "pytest", "-p", "tests.again", "-o", f"cache_dir={CACHE}", *arguments]
    return subprocess.call(command)


# --- the hooks, in the processes of pytest ----------------------------------------------------------


class _Met:
    """Hears whether the test under way met the real clock."""

    def __init__(self) -> None:
        self.is_real = False

    def hear(self, event: str, _arguments: object) -> None:
        if event in SIGNS:
            self.is_real = True


_MET = pytest.StashKey[_Met]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_MET] = met = _Met()
    sys.addaudithook(met.hear)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Begin to hear what one test does, its fixtures included."""
    item.config.stash[_MET].is_real = False
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Say in the report whether the test met the real clock: a coroutine does only where it is marked."""
    report = yield
    is_coroutine = inspect.iscoroutinefunction(getattr(item, "obj", None))
    is_marked = item.get_closest_marker("wall_clock") is not None
    if is_marked or (item.config.stash[_MET].is_real and not is_coroutine):
        report.user_properties.append((REAL_CLOCK, True))
    return report


@pytest.hookimpl(trylast=True)
def pytest_sessionstart(session: pytest.Session) -> None:
    """Write the failures where reports of all workers arrive."""
    if not hasattr(session.config, "workerinput"):
        session.config.pluginmanager.register(_Writer())


class _Writer:
    """Writes each failure as a line of JSON."""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            is_real = (REAL_CLOCK, True) in [tuple(each) for each in report.user_properties]
            failure = {"name": report.nodeid, "is_real": is_real, "how": report.longreprtext}
            FAILURES.parent.mkdir(parents=True, exist_ok=True)
            with FAILURES.open("a") as file:
                file.write(json.dumps(failure) + "\n")


if __name__ == "__main__":
    split = sys.argv.index("--")
    sys.exit(main(sys.argv[1:split], sys.argv[split + 1 :]))
