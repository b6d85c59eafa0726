"""Who had the cores: this process, what runs under it, and all others."""

import subprocess
import sys
import time

import pytest

from sundog.builds.measuring import ENGINE, LOADED, Cores, Shares

BURN_S = 0.3
BURN = """
import ctypes, sys, time
ctypes.CDLL(None).prctl(15, sys.argv[1].encode())
while time.process_time() < {seconds}: pass
print("done", flush=True)
sys.stdin.read()
"""

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="told by Linux's /proc alone")


def under_us(name: str) -> Shares:
    """Shares while a process of this name under this one computes."""
    cores = Cores()
    command = [sys.executable, "-c", BURN.format(seconds=BURN_S), name]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdout.readline() == b"done\n"
        shares = cores.shares()
    assert shares is not None
    return shares


def test_what_runs_under_this_process_is_no_other() -> None:
    """A server is told from its engine by the engine's name."""
    server, engine = under_us("a server"), under_us(f"{ENGINE}0")
    assert server.server > 0 == server.engine
    assert engine.engine > 0
    for shares in (server, engine):
        assert min(shares.client, shares.server, shares.engine, shares.others) >= 0
        assert shares.client + shares.server + shares.engine + shares.others <= 1.3


def test_what_this_process_computes_is_its_own() -> None:
    """Not others'."""
    cores, begin_s = Cores(), time.process_time()
    while time.process_time() - begin_s < BURN_S:
        pass
    shares = cores.shares()
    assert shares is not None and shares.client > 0 == shares.engine


def test_people_are_told_of_others_only_where_they_disturb() -> None:
    """By how much, and what to do."""
    assert Shares(0.5, 0.2, 0.3, LOADED).remark is None
    remark = Shares(0.1, 0.1, 0.1, 0.7).remark
    assert remark is not None and "had 70% of the cores" in remark and "when the machine is quiet" in remark
