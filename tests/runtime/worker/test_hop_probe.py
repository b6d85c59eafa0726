"""The latency to another process, measured with one."""

import signal
import subprocess
from typing import Any

import pytest

from sundog.actors.config import ConfigError
from sundog.runtime.worker import hop_probe
from sundog.runtime.worker.hop_probe import LENGTHS, hops_of, measured_hops


def test_a_process_is_asked_and_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some microseconds; less than a second however busy the machine."""
    monkeypatch.setattr(hop_probe, "NUM_ROUNDS", 5)
    hops = measured_hops()
    assert 1e-6 < hops.submit < 1 and hops.output == hops.submit and 0 <= hops.token < 1e-4


def test_prompts_cost_by_their_tokens() -> None:
    """Rounds of 200 us and 20 ns a token, one of them disturbed."""
    usual = [200e-6 + 20e-9 * (length - LENGTHS[0]) for length in LENGTHS]
    hops = hops_of([usual, usual, [each + 0.5 for each in usual]])
    assert (hops.submit, hops.output) == (100e-6, 100e-6)
    assert hops.token == pytest.approx(20e-9)


def test_what_is_shorter_by_chance_costs_nothing() -> None:
    """No cost is below zero."""
    assert hops_of([[300e-6, 200e-6, 100e-6]]).token == 0


@pytest.mark.long(reason="runs commands in processes of their own", moderate=True)
def test_a_process_that_is_stopped_is_one_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the middle of a measurement, which takes no longer than it may."""
    begun: list[subprocess.Popen[bytes]] = []
    usual = subprocess.Popen
    round_trip = hop_probe._round_trip

    def kept(command: list[str], **options: Any) -> "subprocess.Popen[bytes]":
        begun.append(usual(command, **options))
        return begun[0]

    async def stopping(far: Any, name: str, num_tokens: int) -> float:
        if name == "probe-1-1":
            begun[0].send_signal(signal.SIGSTOP)
        return await round_trip(far, name, num_tokens)

    monkeypatch.setattr(hop_probe.subprocess, "Popen", kept)
    monkeypatch.setattr(hop_probe, "_round_trip", stopping)
    monkeypatch.setattr(hop_probe, "LATE_S", 8.0)
    with pytest.raises(ConfigError, match="it was too slow; give --no-http"):
        measured_hops()
    assert begun[0].returncode == -signal.SIGKILL


@pytest.mark.parametrize("ends", ["import sys", "import socket, time, sys; time.sleep(0.5)"])
def test_a_process_that_ends_is_one_clear_error(ends: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was measured before is not lost to a traceback: the error says how to go on."""
    usual = subprocess.Popen

    def other(command: list[str], **options: Any) -> "subprocess.Popen[bytes]":
        return usual([command[0], "-c", ends], **options)

    monkeypatch.setattr(hop_probe.subprocess, "Popen", other)
    with pytest.raises(ConfigError, match="the hop to a process cannot be measured: .*give --no-http"):
        measured_hops()
