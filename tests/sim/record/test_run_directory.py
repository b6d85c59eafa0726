"""The run directory: files equal the record, and other files are refused."""

import json
from pathlib import Path

import numpy as np
import pytest

from sundog.actors.config import EngineConfig
from sundog.actors.core.config import SchedulerConfig
from sundog.actors.messages import Capacity
from sundog.sim.cost.roofline import Roofline
from sundog.sim.figures.metrics import summarize
from sundog.sim.files.run_files import RunError
from sundog.sim.hardware.gpu import load_gpu
from sundog.sim.hardware.model import load_model
from sundog.sim.record.recorder import Recorder
from sundog.sim.record.rows import REQUEST_COLUMNS, STEP_COLUMNS
from sundog.sim.record.run_directory import open_run, read_config
from sundog.sim.replay import replay
from sundog.sim.workload.distributions import Poisson, Uniform
from sundog.sim.workload.spec import Workload
from tests.sim.record.runs import write_run

FILES = ("requests.parquet", "steps.parquet", "summary.json", "config.toml")
WORK = Workload(3.0, Poisson(40.0), Uniform(20, 400), Uniform(1, 200))
LIMITS = SchedulerConfig(max_num_seqs=16, max_num_batched_tokens=512, max_model_len=1024)
OPTIONS = {"trace": 'a "quoted" \\ path', "seed": 3, "watermark": 0.5, "debug": True, "limit": None}


def played(*, decode_runs: bool, replicas: int = 2) -> Recorder:
    config = EngineConfig(scheduler=LIMITS, replicas=replicas, decode_runs=decode_runs)
    cost = Roofline(load_model("llama-3.1-8b"), load_gpu("h100"))
    return replay(WORK.requests(3), config, cost, Capacity(130, 16))


@pytest.fixture(scope="module")
def recorder() -> Recorder:
    return played(decode_runs=True)


def test_every_file_is_the_same_with_decode_runs_and_without(tmp_path: Path, recorder: Recorder) -> None:
    """Byte for byte; and the workload preempts, so that there is something to differ in."""
    stepwise = played(decode_runs=False)
    for name, each in (("runs", recorder), ("steps", stepwise)):
        write_run(tmp_path / name, each, summarize(each), OPTIONS)
    assert summarize(recorder).num_preemptions > 10
    assert sum(len(s.groups) for s in recorder.steps) < sum(len(s.groups) for s in stepwise.steps)
    for file in FILES:
        assert (tmp_path / "runs" / file).read_bytes() == (tmp_path / "steps" / file).read_bytes()


def test_what_is_read_is_what_was_recorded(tmp_path: Path, recorder: Recorder) -> None:
    """Requests in order of arrival, steps replica by replica, and the options as they were."""
    summary = summarize(recorder)
    write_run(tmp_path, recorder, summary, OPTIONS)
    run = open_run(tmp_path)
    assert run.summary == json.loads(summary.to_json())
    assert run.config == {name: value for name, value in OPTIONS.items() if value is not None}
    requests, steps = run.requests(), run.steps()
    assert tuple(requests.column_names) == REQUEST_COLUMNS
    assert tuple(steps.column_names) == STEP_COLUMNS
    assert requests["request_id"].to_pylist() == recorder.columns.request_id
    assert requests["arrival_s"].to_pylist() == list(recorder.columns.arrival_s)
    assert steps.num_rows == summary.num_steps
    tokens = np.array(steps["num_decodes"]) + np.array(steps["num_prefill_tokens"])
    assert tokens.sum() == sum(each.num_batched_tokens for each in recorder.steps)
    assert np.array(steps["num_preempted"]).sum() == summary.num_preemptions
    assert np.array(steps["num_finished"]).sum() == summary.num_finished


def test_steps_of_a_replica_follow_each_other(tmp_path: Path, recorder: Recorder) -> None:
    """None begins before the last has ended, and none ends before it begins."""
    write_run(tmp_path, recorder, summarize(recorder), {})
    steps = open_run(tmp_path).steps()
    replica, start, end = (np.array(steps[name]) for name in ("replica", "start_s", "end_s"))
    assert (end >= start).all()
    same = replica[1:] == replica[:-1]
    assert (start[1:] >= end[:-1])[same].all()


def test_what_never_came_is_null(tmp_path: Path) -> None:
    """A refused request has no times, no replica and no latencies."""
    recorder = Recorder(101)
    recorder.arrived("a", 0.5, 4, "tenant")
    recorder.refused("a", "full")
    write_run(tmp_path, recorder, summarize(recorder), {})
    (row,) = open_run(tmp_path).requests().to_pylist()
    assert row["request_id"] == "a" and row["reason"] == "refused" and row["arrival_s"] == 0.5
    for name in ("replica", "first_token_s", "finish_s", "ttft_s", "tpot_s", "e2e_s"):
        assert row[name] is None, name


def test_what_is_no_run_is_refused_with_its_name(tmp_path: Path, recorder: Recorder) -> None:
    """Missing, empty, damaged, or in the way."""
    with pytest.raises(RunError, match="does not exist"):
        open_run(tmp_path / "nowhere")
    with pytest.raises(RunError, match=r"has no summary\.json"):
        open_run(tmp_path)
    write_run(tmp_path, recorder, summarize(recorder), {})
    (tmp_path / "requests.parquet").write_bytes(b"PAR1 nonsense")
    with pytest.raises(RunError, match=r"requests\.parquet"):
        open_run(tmp_path).requests()
    (tmp_path / "config.toml").write_text("seed = = 3")
    with pytest.raises(RunError, match=r"config\.toml"):
        open_run(tmp_path)
    with pytest.raises(RunError, match="other.toml cannot be read"):
        read_config(tmp_path / "other.toml")


def test_a_table_that_is_gone_is_said_in_words(tmp_path: Path, recorder: Recorder) -> None:
    """The folder, and what it lacks."""
    write_run(tmp_path, recorder, summarize(recorder), OPTIONS)
    (tmp_path / "requests.parquet").unlink()
    with pytest.raises(RunError, match=r"has no requests\.parquet: give what"):
        open_run(tmp_path).requests()
