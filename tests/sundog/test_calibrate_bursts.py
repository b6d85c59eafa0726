"""The front end that `sundog calibrate URL` finds from bursts: known queues are found again."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from sundog.actors.config.front_costs import FrontCosts
from sundog.actors.config.hop_costs import HopCosts
from sundog.builds.measuring import ClientLoad, find
from sundog.builds.replayed import play
from sundog.builds.simulated import deploy
from sundog.calibration.front import STAGES, Burst, BurstOnce, Floats, bursts_of, fit_services, services
from sundog.calibration.live import one_burst
from sundog.calibration.loads import MeasuredLoad, Trials, from_loads, means_of
from sundog.options.clients import parse_bursts
from sundog.options.engine import EngineOptions
from sundog.options.simulation import LoadOptions, TargetOptions
from sundog.sim.cost.calibrated import Calibrated, InRange, ObservedRange
from sundog.sim.cost.overhead import NO_OVERHEAD, WithOverhead
from sundog.sim.cost.profile import front_costs, hop_costs
from sundog.sim.deployment.record import Simulated
from sundog.sim.figures.fit_requests import Observed
from sundog.sim.figures.metrics import summarize
from sundog.sim.figures.totals import RunTerms
from sundog.sim.trace.record import TraceRequest
from sundog.sim.workload.distributions import Poisson, Uniform
from sundog.sim.workload.spec import Workload
from tests import warm
from tests.live import EMULATED, live
from tests.sundog.test_runs import TRACE, refused, sundog

TRUTH = InRange(Calibrated(6e-3, 14e-6, 40e-9, 15e-6, 0.0), ObservedRange(4e3, 1e5, 1e2, 1e6))
SIZES = (8, 16, 24)


def once(first_s: Sequence[float], client_s: float = 0.0) -> BurstOnce:
    return BurstOnce(32, [0.0] * len(first_s), list(first_s), client_s)


@pytest.mark.parametrize("seed", range(10))
def test_a_queue_alone_is_found_again(seed: int) -> None:
    """By the closed form of a burst, without an engine: the stages, and the service to a millionth."""
    rng = np.random.default_rng(seed)
    stages, request_s, latency_s = int(rng.choice(STAGES)), rng.uniform(0.001, 0.1), rng.uniform(0, 0.1)

    def first_s(size: int, costs: FrontCosts) -> Floats:
        return latency_s + costs.request * services(size, costs.stages)

    truth = FrontCosts(request=request_s, stages=stages)
    bursts = bursts_of([once(first_s(size, truth).tolist()) for size in SIZES])
    found = fit_services(bursts, lambda costs: [costs.request * services(n, costs.stages) for n in SIZES])
    assert found.costs.stages == stages
    assert found.costs.request == pytest.approx(request_s, rel=1e-6)
    assert found.errors[stages] < 1e-6 and found.alike == []


def test_one_slow_repetition_changes_nothing() -> None:
    """Medians of the kth requests, whichever requests these were; and the scatter is reported."""
    usual, slow = [0.01, 0.02, 0.03], [0.5, 0.7, 0.6]
    burst = Burst.of([once(usual, 0.003), once(slow, 0.3), once(usual[::-1], 0.003)])
    assert burst.first_token_s.tolist() == usual
    assert burst.client_s == pytest.approx(0.001) and burst.scatter > 1
    assert Burst.of([once(usual)]).scatter == 0


def server(front: FrontCosts, latency_s: float) -> Simulated:
    """A simulated server with these API processes and known steps."""
    made = deploy(
        EngineOptions(num_gpu_blocks=20_000), TargetOptions(gpu="h100", model="qwen3-8b", host_overhead=False)
    )
    cost = WithOverhead(TRUTH, NO_OVERHEAD)
    config = replace(made.config, front=front, hops=HopCosts(submit=latency_s))
    return replace(made, config=config, cost=cost, kernels=(cost,))


def load_on(simulated: Simulated, rate_per_s: float, seed: int) -> MeasuredLoad:
    """A load as its clients see it."""
    work = Workload(20.0, Poisson(rate_per_s), Uniform(32, 384), Uniform(16, 128))
    rows = [row._replace(request_id=str(index)) for index, row in enumerate(work.requests(seed))]
    recorder = play(simulated, rows, LoadOptions(), seed=0)
    names = ("arrival_s", "first_token_s", "finish_s", "num_prompt_tokens", "num_output_tokens")
    columns = (np.array(getattr(recorder.columns, name), dtype=np.float64) for name in names)
    means_s = means_of(summarize(recorder, simulated.terms(RunTerms())))
    return MeasuredLoad(f"{rate_per_s:g}/s", Observed(*columns), rows, means_s)


def burst_on(simulated: Simulated, size: int) -> BurstOnce:
    """A burst as its client sees it, written within 2 ms."""
    sent_s = np.linspace(0.0, 0.002, size).tolist()
    rows = [TraceRequest(str(index), at_s, 32, 1) for index, at_s in enumerate(sent_s)]
    columns = play(simulated, rows, LoadOptions(), seed=0).columns
    return BurstOnce(32, sent_s, list(columns.first_token_s))


@pytest.mark.long(keep=2, reason="more seeds of the law whose first cases `make test` runs")
@pytest.mark.parametrize("seed", range(6))
def test_a_front_end_before_known_steps_is_found_again(seed: int) -> None:
    """A service of 5 to 30 ms, with the tokens of the bursts' prompts, to 1 %; the stages; the latency."""
    rng = np.random.default_rng(100 + seed)
    stages, request_s = int(rng.choice(STAGES[:4])), rng.uniform(0.005, 0.03)
    latency_s, token_s = float(rng.choice([0.0, 0.003, 0.04])), float(rng.choice([0.0, 2e-6, 2e-5]))
    real = server(FrontCosts(request=request_s, prompt_token=token_s, stages=stages), latency_s)
    loads = tuple(load_on(real, rate_per_s, 1) for rate_per_s in (1.0, 4.0))
    trials = Trials(loads, real, bursts_of([burst_on(real, size) for size in SIZES]))
    front = trials.front(TRUTH, {load.name for load in loads}, trials.bursts)
    assert front.costs.stages == stages
    service_s = request_s + 32 * token_s
    assert front.costs.request == pytest.approx(service_s, rel=0.01 + 25 * token_s / request_s)
    # The tokens that prompts of the loads have beyond those of the bursts count as latency.
    assert front.latency_s == pytest.approx(latency_s + 176 * token_s, abs=0.0005 + 30 * token_s)


@pytest.mark.long(reason="fits a front end for each load and each size of bursts")
def test_loads_and_bursts_give_a_file_that_predicts_both(tmp_path: Path) -> None:
    """Steps are fitted, too; each size of bursts is predicted by the others, and replays use the file."""
    real = server(FrontCosts(request=0.012, stages=3), 0.004)
    loads = [load_on(real, rate_per_s, seed) for seed in (1, 2) for rate_per_s in (2.0, 8.0)]
    bursts = bursts_of([burst_on(real, size) for size in SIZES])
    file = tmp_path / "server.toml"
    found = from_loads(loads, "a simulated server", file, EngineOptions(), bursts=bursts)
    front = front_costs(file)
    assert front is not None and front.stages == 3
    assert front.request == pytest.approx(0.012, rel=0.05)
    assert hop_costs(file).submit == pytest.approx(0.004, abs=0.001)
    for size in SIZES:
        for figure in found.left_out[f"{size} at once"].values():
            assert figure.error == pytest.approx(0.0, abs=0.05), figure
    assert "left_out_burst_first = [" in file.read_text()
    assert any("in 3 stages" in text for text in found.remarks)
    burst = tmp_path / "burst.csv"
    burst.write_text("\n".join(["arrived_at,num_prefill_tokens,num_decode_tokens", *["0,32,1"] * 20]))
    done = sundog("replay", burst, "--cost", file, "--num-gpu-blocks", 9000, "--json", "--no-ranges")
    assert done.returncode == 0, done.stderr
    measured = np.mean(burst_on(real, 20).first_token_s)
    assert json.loads(done.stdout)["ttft_s"]["mean"] == pytest.approx(measured, rel=0.05)


def test_a_latency_in_a_cost_file_delays_each_request_alike(tmp_path: Path) -> None:
    """`[hops]` of a file without an engine: 50 ms more of TTFT, none with --no-host-overhead."""
    plain, late, wrong = (tmp_path / f"{name}.toml" for name in ("plain", "late", "wrong"))
    text = (
        "[calibrated]\nstep = 0.01\nper_token = 1e-5\nper_context_token = 1e-8\nper_decode = 1e-5\n"
        "per_prefill_pair = 1e-10\n[host]\nrequest_s = 0.01\n"
    )
    plain.write_text(text)
    late.write_text(f"{text}[hops]\nsubmit = 0.05\n")
    wrong.write_text(f"{text}[hops]\nsubmit = 2.0\n")

    def ttft_s(file: Path, *words: str) -> float:
        done = warm.run(
            "sundog", "replay", TRACE, "--limit", 9, "--json", "--no-ranges", "--cost", file, *words
        )
        assert done.returncode == 0, done.stderr
        found: float = json.loads(done.stdout)["ttft_s"]["p50"]
        return found

    assert ttft_s(late) == pytest.approx(ttft_s(plain) + 0.05, abs=0.011)
    assert ttft_s(late, "--no-host-overhead") == ttft_s(plain, "--no-host-overhead")
    refused(warm.run("sundog", "replay", TRACE, "--cost", wrong), str(wrong), "hops")


@pytest.mark.parametrize("text", ["8", "8,8", "8,x", "1,8", "8,2000", "", "8,,16", "0,4", "none,8"])
def test_sizes_of_bursts_are_checked(text: str) -> None:
    with pytest.raises(ValueError, match="as in 8,16,24, or none"):
        parse_bursts(text)
    assert parse_bursts("4,12") == (4, 12) and parse_bursts("none") == ()


@pytest.mark.long(reason="loads a server for many seconds")
def test_bursts_are_sent_between_the_loads_of_a_server(tmp_path: Path) -> None:
    """Their errors and the stages are in the output and in the file; none are sent if none are wanted."""
    file, without = tmp_path / "server.toml", tmp_path / "without.toml"
    with live(*EMULATED, "--front-cost", "request=0.02,stages=3") as found:
        words = ("calibrate", found.url, "--request-rate", "4,12", "--load-seconds", 5)
        done = sundog(*words, "--bursts", "4,9", "-o", file)
        assert done.returncode == 0, done.stderr
        plain = sundog(*words, "--bursts", "none", "-o", without)
        assert plain.returncode == 0, plain.stderr
        burst = one_burst(load := ClientLoad(found.url), find(load), 5)
        assert isinstance(burst, BurstOnce) and burst.size == 5
        assert all(
            0 <= sent_s < first_s for sent_s, first_s in zip(burst.sent_s, burst.first_token_s, strict=True)
        )
        assert burst.client_s > 0
    for name in ("4 at once: TTFT mean, ms", "9 at once: TTFT first, ms", "9 at once: TTFT last, ms"):
        assert name in done.stdout and name not in plain.stdout
    for words_of in ("10 bursts of up to 9 requests add up to", "errors of the bursts by stages"):
        assert words_of in done.stderr and words_of not in plain.stderr
    assert "api_stages" in file.read_text() and "left_out_burst_last" in file.read_text()
    assert "api_stages" not in without.read_text() and "[hops]" not in without.read_text()
    front = front_costs(file)
    assert front is not None and front.request > 0


@pytest.mark.long(reason="loads a server", moderate=True)
def test_a_server_that_refuses_a_burst_says_so_before_the_loads(tmp_path: Path) -> None:
    """An overloaded queue answers 429: one line names the option, and nothing is written."""
    file = tmp_path / "server.toml"
    with live(*EMULATED, "--max-waiting", "12") as found:
        words = ("calibrate", found.url, "--request-rate", "2,3", "--load-seconds", 6, "-o", file)
        refused(sundog(*words, "--bursts", "4,24"), "a burst of 24 requests fails", "--bursts none")
    assert not file.exists()
