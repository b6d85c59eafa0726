"""Latency to an engine process, as a cost of the simulated graph."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sundog.actors.config import ConfigError
from sundog.sim.cost.profile import read_profile
from sundog.sim.trace.jsonl_rows import write_trace
from sundog.sim.trace.record import TraceRequest
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


@pytest.mark.long(reason="replays many requests, or many random cases", moderate=True)
def test_a_hop_is_added_to_what_clients_see_and_nothing_is_nothing(tmp_path: Path) -> None:
    """A request and each token of its prompt one way, the answer the other; the rest is as it was."""
    plain = replayed(tmp_path)
    assert replayed(tmp_path, "--hop-cost", "submit=0,token=0,output=0") == plain
    with_hops = replayed(tmp_path, "--hop-cost", "submit=0.25,token=0.001,output=0.125")
    late_s = with_hops["ttft_s"]["mean"] - plain["ttft_s"]["mean"]
    assert late_s == pytest.approx(0.25 + 0.001 * 200 + 0.125)
    assert with_hops["queueing_s"]["mean"] - plain["queueing_s"]["mean"] == pytest.approx(0.45)
    assert with_hops["tpot_s"] == pytest.approx(plain["tpot_s"])


@pytest.mark.long(reason="replays many requests, or many random cases", moderate=True)
def test_what_is_given_up_on_the_way_ends_once(tmp_path: Path) -> None:
    """An abort takes the same way, and does not overtake its request."""
    found = replayed(tmp_path, "--hop-cost", "submit=0.5,token=0.01", "--client-timeout", "0.2")
    assert (found["num_aborted"], found["num_finished"]) == (3, 0)


PROFILE = """
[calibrated]
step = 0.01
per_token = 1e-5
per_context_token = 1e-8
per_decode = 1e-5
per_prefill_pair = 1e-10

[range]
tokens = 2048.0
context_tokens = 65536.0
decodes = 64.0
prefill_pairs = 2000000.0

[engine]
model = "one"
num_gpu_blocks = 4096
block_size = 16
max_model_len = 2048
max_num_batched_tokens = 2048
max_num_seqs = 64
async_scheduling = false

[host]
request_s = 0.002
"""
HOPS = "\n[hops]\nsubmit = 0.25\ntoken = 0.001\noutput = 0.125\n"


@pytest.mark.long(reason="measures an engine of processes")
def test_a_measured_engine_has_the_hops_that_were_measured(tmp_path: Path) -> None:
    """They can be switched off, alone or with the rest of the host, and given otherwise."""
    file, alone = tmp_path / "with.toml", tmp_path / "without.toml"
    file.write_text(PROFILE + HOPS)
    alone.write_text(PROFILE)

    def ttft_s(path: Path, *options: str) -> float:
        found: float = replayed(tmp_path, "--cost", str(path), *options)["ttft_s"]["mean"]
        return found

    plain_s = ttft_s(alone)
    assert ttft_s(file) - plain_s == pytest.approx(0.25 + 0.001 * 200 + 0.125)
    assert ttft_s(file, "--hop-cost", "submit=0") == plain_s
    assert ttft_s(file, "--hop-cost", "submit=0.5") - plain_s == pytest.approx(0.5)
    assert ttft_s(file, "--no-host-overhead") == ttft_s(alone, "--no-host-overhead")


@pytest.mark.parametrize(
    ("line", "reason"), [("submit = 2.0", "submit is 2.0"), ("back = 0.1", "no such key")]
)
def test_a_profile_with_wrong_hops_is_refused(line: str, reason: str, tmp_path: Path) -> None:
    """The file and the key are named."""
    file = tmp_path / "profile.toml"
    file.write_text(PROFILE + f"\n[hops]\n{line}\n")
    with pytest.raises(ConfigError, match=f"profile.toml: hops.*{reason}"):
        read_profile(file)


@pytest.mark.parametrize(
    ("table", "line", "nearest"),
    [("host", "requests_s = 0.1", "request_s"), ("engine", "max_num_sequences = 3", None)],
)
def test_a_misspelt_key_of_a_profile_is_refused(
    table: str, line: str, nearest: str | None, tmp_path: Path
) -> None:
    """It would be left out in silence, and the prediction be another's."""
    file = tmp_path / "profile.toml"
    written = PROFILE.replace("request_s = 0.002\n", "") if nearest else PROFILE
    file.write_text(written.replace(f"[{table}]", f"[{table}]\n{line}"))
    with pytest.raises(
        ConfigError, match=f"{table}.{line.split()[0]}: there is no such key.*{nearest or ''}"
    ):
        read_profile(file)
