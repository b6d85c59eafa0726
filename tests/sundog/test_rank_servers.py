"""Data-parallel ranks at ports of their own, and what says whether all are ready."""

import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import httpx
import psutil  # type: ignore[import-untyped]  # ships no types
import pytest

from tests.live import EMULATED, START_S, live
from tests.ports import free_ports
from tests.sundog.test_runs import refused, sundog

MULTI = "--data-parallel-multi-port-external-lb"


@pytest.fixture(scope="module")
def ranks() -> Iterator[tuple["subprocess.Popen[str]", int]]:
    """Two ranks, and the supervisor at the port behind them."""
    with two_ranks(31_000) as started:
        yield started


@contextmanager
def two_ranks(
    lowest: int, log: IO[str] | int = subprocess.DEVNULL
) -> Iterator[tuple["subprocess.Popen[str]", int]]:
    """Two ranks from a free port at or above `lowest` on."""
    first = free_ports(3, lowest)
    ports = ("--port", str(first), "--data-parallel-supervisor-port", str(first + 2))
    options = ("--gpu", "h100", "--model", "qwen3-8b", "--data-parallel-size", "2", "--seed", "5")
    command = [sys.executable, "-m", "sundog", "emulate", *options, *ports, MULTI, "--time-scale", "10"]
    process = subprocess.Popen(command, stderr=log, text=True)
    try:
        until(first + 2, 200)
        yield process, first
    finally:
        process.kill()
        process.wait()


def until(port: int, status: int) -> None:
    start_s = time.monotonic()
    while time.monotonic() - start_s < START_S:
        try:
            if httpx.get(f"http://127.0.0.1:{port}/ready").status_code == status:
                return
        except httpx.HTTPError:
            pass
        time.sleep(0.1)
    raise AssertionError(f"/ready at {port} was never {status}")


def test_each_rank_is_a_server_of_its_own(ranks: tuple["subprocess.Popen[str]", int]) -> None:
    """With its own number in the metrics, and what the others were given."""
    _, first = ranks
    for rank in range(2):
        url = f"http://127.0.0.1:{first + rank}"
        body = {"prompt": "Hello", "max_tokens": 2}
        assert httpx.post(f"{url}/v1/completions", json=body, timeout=START_S).status_code == 200
        metrics = httpx.get(f"{url}/metrics").text
        assert set(re.findall(r'engine="(\d+)"', metrics)) == {str(rank)}
        assert httpx.get(f"{url}/load").json()["emulation"]["time_scale"] == 10
    for path in ("health", "ready", "readyz"):
        answer = httpx.get(f"http://127.0.0.1:{first + 2}/{path}")
        assert answer.status_code == 200 and answer.json() == {"ready": [True, True]}


def test_a_signal_ends_all_ranks(ranks: tuple["subprocess.Popen[str]", int]) -> None:
    process, first = ranks
    process.send_signal(signal.SIGTERM)
    assert process.wait(START_S) == 0
    for port in range(first, first + 3):
        with pytest.raises(httpx.ConnectError):
            httpx.get(f"http://127.0.0.1:{port}/health")


def test_a_rank_that_is_killed_ends_the_others(tmp_path: Path) -> None:
    """One line says which it was, and none is left."""
    log = tmp_path / "log"
    with log.open("w") as file, two_ranks(31_500, file) as (process, first):
        killed, other = psutil.Process(process.pid).children()
        assert f"--port {first}" in " ".join(killed.cmdline())
        killed.kill()
        assert process.wait(START_S) == 2
        assert not other.is_running()
    assert "rank 0 has ended, and the others with it" in log.read_text()


def test_ports_that_cannot_be_are_refused() -> None:
    """No port to count from, the supervisor's among the ranks', a real model."""
    common = ("emulate", "--gpu", "h100", MULTI, "--data-parallel-size", 3)
    refused(sundog(*common, "--port", 0), "--port is 0", "3 ranks need")
    refused(sundog(*common, "--port", 9255), "--data-parallel-supervisor-port (9256)")
    refused(sundog("serve", MULTI), f"{MULTI} is an option of `sundog emulate`")


def test_a_server_says_when_it_is_ready() -> None:
    with live(*EMULATED) as server:
        for path in ("ready", "readyz"):
            assert httpx.get(f"{server.url}/{path}").json() == {"status": "ready"}
        assert server.stop() == 0
