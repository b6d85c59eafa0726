"""What the way to another process takes is measured with a process."""

import pytest

from runtime.worker import hop_probe
from runtime.worker.hop_probe import LENGTHS, hops_of, measured_hops


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
