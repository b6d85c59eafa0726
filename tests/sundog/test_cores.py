"""Measurement of the CPU share that other processes used."""

import os
import subprocess
import sys
import time
from collections.abc import Callable

import psutil  # type: ignore[import-untyped]  # ships no types
import pytest

from sundog.builds.measuring import LOADED, NOT_BUSY, Cores, disturbed

BURN_S, TICKS_S = 0.5, 0.15
BURN = f"""
import sys, time
sys.stdin.readline()
while time.process_time() < {BURN_S}: pass
print("done", flush=True)
sys.stdin.read()
"""


def burn_here() -> None:
    begin_s = time.process_time()
    while time.process_time() - begin_s < BURN_S:
        pass


def busy_s() -> float:
    """Processor seconds of everything so far."""
    return float(sum(s for name, s in psutil.cpu_times()._asdict().items() if name not in NOT_BUSY))


def told_beside(work: Callable[[], None]) -> tuple[float, float]:
    """Processor seconds of everything during the work, and those that are told to be others'."""
    begin_s, before_s, cores = time.monotonic(), busy_s(), Cores()
    work()
    others = cores.others()
    return busy_s() - before_s, others * (time.monotonic() - begin_s) * (os.cpu_count() or 1)


@pytest.mark.long(reason="runs commands in processes of their own", moderate=True)
def test_what_this_process_and_what_runs_under_it_compute_is_not_of_others() -> None:
    """What others had is less than everything by at least that."""
    everything_s, others_s = told_beside(burn_here)
    assert 0 <= others_s <= everything_s - BURN_S + TICKS_S
    with subprocess.Popen([sys.executable, "-c", BURN], stdin=-1, stdout=-1) as process:

        def burn_under() -> None:
            assert process.stdin is not None and process.stdout is not None
            process.stdin.write(b"\n")
            process.stdin.flush()
            assert process.stdout.readline() == b"done\n"

        everything_s, others_s = told_beside(burn_under)
    assert 0 <= others_s <= everything_s - BURN_S + TICKS_S


def test_people_are_told_of_others_only_where_they_disturb() -> None:
    """By how much, and what to do."""
    assert disturbed(LOADED) is None
    remark = disturbed(0.7)
    assert remark is not None and "had 70% of the cores" in remark and "when the machine is quiet" in remark
