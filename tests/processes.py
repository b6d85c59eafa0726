"""Check whether processes of others still run; any may end between two calls."""

import re
import time
from collections.abc import Iterable
from contextlib import suppress

import psutil  # type: ignore[import-untyped]  # ships no types

from tests.patience import START_S


def is_there(process: psutil.Process) -> bool:
    """Whether the process still runs: a zombie does not."""
    with suppress(psutil.NoSuchProcess):
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    return False


def gone(processes: Iterable[psutil.Process]) -> None:
    """Wait until none of these runs."""
    deadline_s = time.monotonic() + START_S
    while left := [process for process in processes if is_there(process)]:
        assert time.monotonic() < deadline_s, f"{left} outlived their server"
        time.sleep(0.01)


def below(pid: int, pattern: str) -> list[psutil.Process]:
    """What runs below a process under a name that begins so, in order of the names."""
    found: list[tuple[str, int, psutil.Process]] = []
    for each in psutil.Process(pid).children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            if re.match(pattern, name := each.name()) and is_there(each):
                found.append((name, each.pid, each))
    return [each for _, _, each in sorted(found)]
