"""Calibration from requests alone, and the file that keeps it."""

import json
from dataclasses import astuple, replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from sundog.actors.core.config import ConfigError
from sundog.actors.messages import Capacity
from sundog.cli import cli
from sundog.sim.cost.calibrated import Calibrated, InRange
from sundog.sim.cost.cost_file import read_cost, write_cost
from sundog.sim.cost.overhead import host_overhead
from sundog.sim.cost.profile import front_costs
from sundog.sim.cost.work import StepWork
from sundog.sim.figures.fit_requests import Observed, fit_requests
from sundog.sim.figures.metrics import request_times
from sundog.sim.record.recorder import Recorder
from sundog.sim.replay import replay
from sundog.sim.workload.distributions import Poisson, Uniform
from sundog.sim.workload.spec import Workload
from tests.actors.fakes import engine_config
from tests.sundog.test_runs import TRACE, refused, sundog

TRUTH = Calibrated(4e-3, 10e-6, 40e-9, 30e-6, 0.0)


def observed(recorder: Recorder) -> Observed:
    columns = recorder.columns
    names = ("first_scheduled_s", "first_token_s", "finish_s", "num_prompt_tokens", "num_output_tokens")
    return Observed(*(np.array(getattr(columns, name), dtype=np.float64) for name in names))


def played(rate_per_s: float, num_blocks: int, cost: Calibrated = TRUTH) -> Recorder:
    work = Workload(60.0, Poisson(rate_per_s), Uniform(50, 900), Uniform(20, 200))
    config = engine_config(
        max_num_seqs=64, max_num_batched_tokens=2048, max_model_len=1200, block_size=16, decode_runs=True
    )
    return replay(work.requests(1), config, cost, Capacity(num_blocks, 16))


@pytest.mark.parametrize("rate_per_s", [4.0, 12.0])
def test_requests_alone_tell_what_steps_cost(rate_per_s: float) -> None:
    """Steps like those that the log was made of, within a few percent of the truth."""
    found = fit_requests(observed(played(rate_per_s, 4000)))
    assert found.median_error < 0.03 and found.num_left_out == 0
    for n in (2, 5, 10):
        work = StepWork(n, n * 550, (), n)
        assert found.model.step_s(work) == pytest.approx(TRUTH.step_s(work), rel=0.06)


@pytest.mark.long(keep=1, reason="more seeds of the law whose first cases `make test` runs")
@pytest.mark.parametrize("is_client", [False, True])
def test_three_loads_of_a_server_predict_a_fourth(is_client: bool) -> None:
    """E2E to 1.5 % and TTFT to 3 %, by what a server knows of its requests and by what clients do."""

    def seen(rate_per_s: float) -> Observed:
        recorder = played(rate_per_s, 4000)
        own = observed(recorder)
        arrival_s = np.array(recorder.columns.arrival_s, dtype=np.float64)
        return replace(own, scheduled_s=arrival_s) if is_client else own

    found = fit_requests(*(seen(rate_per_s) for rate_per_s in (2.0, 6.0, 12.0)))
    assert len(found.errors) == 3 and max(map(abs, found.errors)) < 0.015
    assert found.measured.decodes >= 8 and found.measured.tokens > 800
    predicted, real = (request_times(played(9.0, 4000, cost)) for cost in (found.model, TRUTH))
    assert predicted.e2e_s.mean() == pytest.approx(real.e2e_s.mean(), rel=0.015)
    assert predicted.ttft_s.mean() == pytest.approx(real.ttft_s.mean(), rel=0.03)


@pytest.mark.long(reason="fits a server's times to several loads")
def test_loads_of_a_server_are_calibrated_by_one_command(tmp_path: Path) -> None:
    """An unseen load is predicted, front end included, and the file says how far each of its own is off."""
    folders = [tmp_path / name for name in ("slow", "middle", "fast", "unseen")]
    for folder, rate in zip(folders, (2, 5, 9, 7), strict=True):
        load = ("--limit", 120, "--request-rate", rate, "--num-gpu-blocks", 9000, "--out", folder)
        assert sundog("replay", TRACE, *load).returncode == 0
    file, unseen = tmp_path / "cost.toml", folders.pop()
    done = sundog("calibrate", *folders, "-o", file)
    assert done.returncode == 0, done.stderr
    assert "fast: TTFT mean, ms" in done.stdout and "9 of 9 figures lie in their ranges" in done.stderr
    again = sundog("replay", "--config", unseen / "config.toml", "--cost", file, "--out", tmp_path / "again")
    assert again.returncode == 0, again.stderr
    measured, predicted = (
        json.loads((each / "summary.json").read_text()) for each in (unseen, tmp_path / "again")
    )
    for name, error in (("e2e_s", 0.015), ("ttft_s", 0.03)):
        assert predicted[name]["mean"] == pytest.approx(measured[name]["mean"], rel=error), name
    front, real = front_costs(file), host_overhead(async_scheduling=True).front
    assert front is not None and front.request == pytest.approx(real.request, rel=0.5)
    read = read_cost(file)
    assert isinstance(read, InRange) and read.measured.decodes > 2
    assert f"left_out_error = {read.doubt}" in file.read_text()
    ranged = sundog("replay", TRACE, "--limit", 20, "--cost", file, "--num-gpu-blocks", 9000)
    assert ranged.returncode == 0 and "milliseconds may be" in ranged.stdout
    refused(sundog("calibrate", folders[0], TRACE, "-o", file), TRACE, "loads of one server")
    refused(sundog("calibrate", *folders, "-o", file, "--seconds", 9), "--seconds", "leave it out")
    refused(sundog("calibrate", *folders, "-o", file, "--request-rate", "2,4"), "--request-rate", "at a URL")


def test_prompts_that_met_an_idle_server_tell_what_a_prompt_takes() -> None:
    """What each prompt takes beside its tokens, and a way to the engine, which is no step's."""
    truth = replace(TRUTH, per_token=60e-6, per_prefill_pair=30e-9, per_chunk=5e-3)
    loads = (observed(played(rate_per_s, 4000, truth)) for rate_per_s in (0.5, 3.0))
    found = fit_requests(*(replace(own, scheduled_s=own.scheduled_s - 7e-3) for own in loads))
    for prompt in (200, 400, 800):
        work = StepWork(0, 0, ((prompt, 0),), 1)
        assert found.model.step_s(work) == pytest.approx(truth.step_s(work), rel=0.05), prompt


def test_rounds_of_one_rate_tell_how_much_the_server_itself_drifts() -> None:
    """Rounds that take 4 % longer and shorter, and the error of a fit to the other rates, are told apart."""

    def slower(own: Observed, factor: float) -> Observed:
        return Observed(*(factor * column for column in astuple(own)[:3]), *astuple(own)[3:])

    loads = [observed(played(rate_per_s, 4000)) for rate_per_s in (2.0, 6.0)]
    rounds = [slower(own, factor) for factor in (0.96, 1.0, 1.04) for own in loads]
    found = fit_requests(*rounds, groups=["slow", "fast"] * 3)
    assert found.drift == pytest.approx(0.08, rel=0.1) and len(found.errors) == 2
    assert max(map(abs, found.errors)) < 0.02
    assert all(other.doubt >= found.drift for other in found.others)
    assert fit_requests(*loads).drift == 0


@pytest.mark.long(reason="runs commands in processes of their own", moderate=True)
def test_what_loads_do_not_tell_is_named_and_loads_that_tell_nothing_are_refused(tmp_path: Path) -> None:
    """Requests of one length say nothing of other prompts; one client alone says nothing of batches."""
    work, file = tmp_path / "same.csv", tmp_path / "cost.toml"
    rows = [f"{index * index / 300},200,40" for index in range(80)]
    work.write_text("\n".join(["arrived_at,num_prefill_tokens,num_decode_tokens", *rows, ""]))
    for more, code in (((), 0), (("--max-concurrency", 1), 2)):
        out = tmp_path / f"run{code}"
        assert sundog("replay", work, "--out", out, *more).returncode == 0
        done = sundog("calibrate", out, "-o", file)
        if code == 0:
            assert done.returncode == 0 and "the square of a prompt's length" in done.stderr, done.stderr
            assert "it is set to 0" in done.stderr
    refused(done, "steps of these loads are all alike", "several rates")


def test_those_that_were_preempted_are_left_out() -> None:
    """They waited in between, and no step was as long as that."""
    recorder = played(12.0, 300)
    assert sum(recorder.columns.num_preemptions) > 20
    found = fit_requests(observed(recorder))
    assert found.num_left_out > 0


def test_a_cost_file_reads_back(tmp_path: Path) -> None:
    """Every bit; and mistakes are named."""
    path = tmp_path / "cost.toml"
    write_cost(path, TRUTH, "a test")
    assert read_cost(path) == TRUTH
    for old, new, reason in (
        ("step =", "stop =", "step is None"),
        ("per_token = 1e-05", "per_token = -1", "per_token is -1"),
        ("per_token = 1e-05", "per_token = nan", "per_token is nan"),
        ("[calibrated]", "[other]", r"table \[calibrated\]"),
        ("[calibrated]", "[", "cost.toml"),
        ("context_bends = []", "context_bends = 3", "context_bends is 3"),
        ("context_bends = []", "context_bends = [[8, 1e-9], [8, 2e-9]]", "tokens rising"),
        ("context_bends = []", "context_bends = [[8, -1e-9]]", "context_bends is"),
    ):
        path.write_text(path.read_text().replace(old, new, 1))
        with pytest.raises(ConfigError, match=reason):
            read_cost(path)
        write_cost(path, TRUTH, "a test")


def test_a_run_calibrates_its_own_replay(tmp_path: Path) -> None:
    """From the folder of a replay to a file that `--cost` takes."""
    trace = str(Path(__file__).parents[3] / "traces" / "chat-poisson-2rps-5min.jsonl.gz")
    run, cost = str(tmp_path / "run"), str(tmp_path / "cost.toml")
    for command in (
        ["replay", trace, "--limit", "100", "-o", run, "--json"],
        ["calibrate", run, "-o", cost],
        ["replay", trace, "--limit", "100", "--cost", cost, "--json"],
    ):
        result = CliRunner().invoke(cli, command, catch_exceptions=False)
        assert result.exit_code == 0
    assert '"num_finished": 100' in result.stdout
