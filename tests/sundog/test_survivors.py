"""Verdicts in commands include requests without an answer, and the time that they took."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.sundog.test_options import sundog

HEAD = "arrived_at,num_prefill_tokens,num_decode_tokens"
QUEUE = f"{HEAD}\n" + "0.0,512,300\n" * 100
"""A hundred at once, of which ten at once take 2.2 s."""
TEN = ("--gpu", "h100", "--max-num-seqs", "10")
SLO = ("--slo", "p95(ttft)<4,p95(e2e)<4")
CANCELLED = '[[fault]]\nkind = "cancellations"\nat_s = 1\nrate = 0.9\n'


def written(path: Path, text: str) -> str:
    path.write_text(text)
    return str(path)


def replay(trace: str, *options: str) -> dict[str, Any]:
    ended = sundog("replay", trace, *options, "--json")
    assert ended.returncode == 0, ended.stderr
    found: dict[str, Any] = json.loads(ended.stdout)
    return found


@pytest.mark.parametrize(
    ("options", "num_unanswered"),
    [(("--client-timeout", "4"), 90), (("--max-waiting", "20"), 80), (("--faults", "cancelled.toml"), 93)],
    ids=["given up", "refused", "cancelled"],
)
def test_what_got_no_answer_misses_every_objective(
    options: tuple[str, str], num_unanswered: int, tmp_path: Path
) -> None:
    """More than 5 in 100 have no first token in time, so that no 95th percentile is below the limit."""
    trace = written(tmp_path / "q.csv", QUEUE)
    if options[0] == "--faults":
        options = options[0], written(tmp_path / options[1], CANCELLED)
    found = replay(trace, *TEN, *SLO, *options)
    assert found["num_finished"] == 100 - num_unanswered
    for each in found["objectives"]:
        assert each["is_held"] is False and each["value_s"] is None
        assert each["num_unanswered"] == num_unanswered
    shown = sundog("replay", trace, *TEN, *SLO, *options, "--no-ranges").stdout
    assert f"missed p95(ttft)<4: infinite; {num_unanswered} requests without an answer" in " ".join(
        shown.split()
    )
    assert "held" not in shown and "below the knee" not in shown
    left_out = (
        f"Latencies are those of the {100 - num_unanswered} finished requests;"
        f" {num_unanswered} that got no answer"
    )
    assert left_out in " ".join(shown.split())


MIX = (
    'duration_s = 40\n[arrivals]\nkind = "poisson"\nrate_per_s = 6\n[prompt]\nkind = "fixed"\ntokens = 512\n'
)
MIX += '[output]\nkind = "fixed"\ntokens = 300\n'


def test_a_run_that_its_clients_give_up_is_not_below_the_knee_nor_better(tmp_path: Path) -> None:
    """Six a second come, and ten slots of 2.15 s serve 4.65. `compare` counts no life that was given up."""
    spec, trace = written(tmp_path / "mix.toml", MIX), str(tmp_path / "mix.jsonl")
    assert sundog("workload", spec, "-o", trace).returncode == 0
    patient, hasty = str(tmp_path / "k1"), str(tmp_path / "k2")
    assert replay(trace, *TEN, *SLO, "--out", patient)["saturation"] == pytest.approx(6.3 / 4.65, rel=0.1)
    found = replay(trace, *TEN, *SLO, "--client-timeout", "4", "--out", hasty)
    assert found["saturation"] == pytest.approx(6.3 / 4.65, rel=0.1)
    assert not any(each["is_held"] for each in found["objectives"])
    finished, count = found["num_finished"], found["num_requests"]
    shown = sundog("compare", patient, hasty)
    assert f"{finished} of {count} finished in k2" in " ".join(shown.stdout.split()), shown
    figures = {
        each["name"]: each
        for each in json.loads(sundog("compare", patient, hasty, "--json").stdout)["figures"]
    }
    assert figures["TTFT mean"]["second"] == pytest.approx(found["ttft_s"]["mean"])
    assert figures["E2E mean"]["second"] == pytest.approx(found["e2e_s"]["mean"])


def test_the_time_of_requests_that_nobody_answers_is_paid_for(tmp_path: Path) -> None:
    """60 s of a GPU at 0.001 a second are 0.06 for 10 tokens: 6,000 per million."""
    trace = written(tmp_path / "late.csv", f"{HEAD}\n0.0,512,10\n" + "0.0,512,50000\n" * 40)
    found = replay(trace, "--gpu", "h100", "--client-timeout", "60", "--gpu-price-per-h", "3.6")
    assert (found["num_finished"], found["output_tokens"]) == (1, 10)
    assert found["duration_s"] == pytest.approx(60, rel=0.01)
    assert found["cost_per_million_output_tokens"] == pytest.approx(6000, rel=0.01)
    assert found["output_tokens_per_s"] == pytest.approx(10 / 60, rel=0.01)
    assert found["lost_output_tokens"] > 100_000


@pytest.mark.parametrize("count", [100, 1000])
def test_the_load_does_not_grow_with_the_length_of_the_trace(count: int, tmp_path: Path) -> None:
    """Requests come every 0.15 s to a slot that serves one in 0.2233 s: 1.49 times what it can serve."""
    rows = "".join(f"{0.15 * number:.2f},64,32\n" for number in range(count))
    trace = written(tmp_path / "over.csv", f"{HEAD}\n{rows}")
    found = replay(trace, "--max-num-seqs", "1")
    service_s = found["e2e_s"]["mean"] - found["queueing_s"]["mean"]
    assert found["saturation"] == pytest.approx(service_s / 0.15, rel=0.05)
    assert 1.3 < found["saturation"] < 1.6
    remarks = sundog("replay", trace, "--max-num-seqs", "1", "--no-ranges")
    assert f"{found['saturation']:.1f} times what can be served" in remarks.stderr
