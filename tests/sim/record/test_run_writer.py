"""Results written during a run equal those kept in memory."""

from pathlib import Path

import numpy as np
import pytest

import sundog.sim.figures.distribution
import sundog.sim.record.recorder
import sundog.sim.record.run_writer
from sundog.actors.config import EngineConfig
from sundog.actors.core.config import ConfigError
from sundog.actors.messages import Capacity
from sundog.sim.cost.roofline import Roofline
from sundog.sim.figures.distribution import distribution, distribution_of
from sundog.sim.figures.metrics import summarize
from sundog.sim.figures.totals import RunTerms
from sundog.sim.hardware.gpu import load_gpu
from sundog.sim.hardware.model import load_model
from sundog.sim.record.run_directory import write_facts
from sundog.sim.record.run_writer import RunWriter
from sundog.sim.replay import replay
from tests.sim.record.runs import write_run
from tests.sim.record.test_run_directory import FILES, LIMITS, WORK

TERMS = RunTerms(slo_ttft_s=0.5, gpu_power_w=700.0, max_num_running=16)


@pytest.mark.long(keep=1, reason="more cases of the law whose first `make test` runs", moderate=True)
@pytest.mark.plain
@pytest.mark.parametrize("replicas", [1, 2])
def test_streamed_files_and_figures_are_those_of_a_run_kept_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, replicas: int
) -> None:
    """Byte for byte, with parts so small that there are many, and whether steps come in runs."""
    monkeypatch.setattr(sundog.sim.record.run_writer, "ROWS", 50)
    rows = [row._replace(tenant="ab"[i % 2]) for i, row in enumerate(WORK.requests(3))]
    cost = Roofline(load_model("llama-3.1-8b"), load_gpu("h100"))
    for name, runs, spill in (("kept", True, None), ("runs", True, 20), ("steps", False, 7)):
        config = EngineConfig(scheduler=LIMITS, replicas=replicas, decode_runs=runs)
        writer = None
        if spill is not None:
            monkeypatch.setattr(sundog.sim.record.recorder, "SPILL", spill)
            monkeypatch.setattr(sundog.sim.figures.distribution, "AT_ONCE", 10)
            writer = RunWriter(tmp_path / name, replicas)
        recorder = replay(rows, config, cost, Capacity(130, 16), sink=writer)
        summary = summarize(recorder, TERMS, writer and writer.close())
        if writer is None:
            write_run(tmp_path / name, recorder, summary, {"seed": 3})
        else:
            write_facts(tmp_path / name, None, summary.to_json(), {"seed": 3}, None)
        if spill is not None:
            assert not len(recorder.columns)
            assert not any(len(steps.end_s) for steps in recorder.steps)
        assert summary.num_preemptions > 10 and summary.num_finished == len(rows)
        assert sorted(path.name for path in (tmp_path / name).iterdir()) == sorted(FILES)
    for file in FILES:
        assert (tmp_path / "kept" / file).read_bytes() == (tmp_path / "runs" / file).read_bytes()
        assert (tmp_path / "kept" / file).read_bytes() == (tmp_path / "steps" / file).read_bytes()


@pytest.mark.parametrize("seed", range(20))
def test_figures_do_not_depend_on_how_values_are_cut(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """Sorted at once or selected bit by bit: the same bits, and numpy's percentiles."""
    rng = np.random.default_rng(seed)
    values = rng.exponential(10.0 ** rng.integers(-9, 9), int(rng.integers(1, 3000)))
    values[rng.random(len(values)) < 0.3] = values[0]
    values[rng.random(len(values)) < 0.1] = 0.0
    whole = distribution(values)
    assert whole is not None
    cuts = np.sort(rng.integers(0, len(values), 5))
    shuffled = rng.permutation(values)
    monkeypatch.setattr(sundog.sim.figures.distribution, "AT_ONCE", 0)
    parts = distribution_of(lambda: iter([(part, None) for part in np.split(shuffled, cuts)]))
    assert parts == whole
    p50, p90, p99 = np.percentile(values, (50, 90, 99))
    assert (whole.p50, whole.p90, whole.p99) == pytest.approx((p50, p90, p99), rel=1e-12)


def test_a_place_that_cannot_be_written_is_one_clear_error(tmp_path: Path) -> None:
    """Before the run begins."""
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot write results"):
        RunWriter(tmp_path / "file", 1)
