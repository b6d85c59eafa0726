"""The way to an engine in a process of its own, as a cost of the simulated graph."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from actors.config import ConfigError
from actors.hop_costs import parse_hop_costs
from sim.trace.record import TraceRequest
from sim.trace.write import write_trace
from tests.test_layers import ROOT


def replayed(folder: Path, *options: str) -> Any:
    """The figures of three requests, far apart, on two replicas."""
    trace = folder / "trace.jsonl"
    rows = [TraceRequest(f"r{n}", 10.0 * n, 100 * (n + 1), 3) for n in range(3)]
    write_trace(str(trace), rows, provenance="test")
    command = [sys.executable, "-m", "sundog", "replay", str(trace), "--replicas", "2", "--json", *options]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_hop_is_added_to_what_clients_see_and_nothing_is_nothing(tmp_path: Path) -> None:
    """A request and each token of its prompt one way, the answer the other; the rest is as it was."""
    plain = replayed(tmp_path)
    assert replayed(tmp_path, "--hop-cost", "submit=0,token=0,output=0") == plain
    with_hops = replayed(tmp_path, "--hop-cost", "submit=0.25,token=0.001,output=0.125")
    late_s = with_hops["ttft_s"]["mean"] - plain["ttft_s"]["mean"]
    assert late_s == pytest.approx(0.25 + 0.001 * 200 + 0.125)
    assert with_hops["queueing_s"]["mean"] - plain["queueing_s"]["mean"] == pytest.approx(0.45)
    assert with_hops["tpot_s"] == pytest.approx(plain["tpot_s"])


def test_what_is_given_up_on_the_way_ends_once(tmp_path: Path) -> None:
    """An abort takes the same way, and does not overtake its request."""
    found = replayed(tmp_path, "--hop-cost", "submit=0.5,token=0.01", "--client-timeout", "0.2")
    assert (found["num_aborted"], found["num_finished"]) == (3, 0)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("sumbit=1", "it has 'sumbit', which is none of submit, token, output"),
        ("submit=0,submit=1", "it has 'submit', twice"),
        ("submit=soon", "submit is 'soon': give seconds from 0 to 1"),
        ("output=nan", "output is nan: give seconds from 0 to 1"),
        ("token=2", "token is 2.0: give seconds"),
    ],
)
def test_a_wrong_cost_is_refused_by_name(text: str, reason: str) -> None:
    with pytest.raises((ValueError, ConfigError), match=reason):
        parse_hop_costs(text)
