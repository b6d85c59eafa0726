"""`sundog validate --self`: the engine at hand under load, and its simulation beside it."""

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from actors.config import ConfigError
from runtime.serve import RealModel
from sim.cost.calibrated import Calibrated, ObservedRange
from sim.cost.profile import ENGINE, MeasuredEngine, write_cost
from sundog.builds.simulated import Simulated
from sundog.child import serving
from sundog.commands.validate.own import _workload, same_batches
from sundog.options.engine import EngineOptions
from sundog.options.simulation import TargetOptions
from tests.sundog.test_runs import refused, sundog


@pytest.fixture(scope="module")
def profile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An engine of the embedded model; its steps take what somebody made up."""
    path = tmp_path_factory.mktemp("profile") / "tiny.toml"
    cost = Calibrated(
        step=8e-4, per_token=2e-5, per_context_token=1e-7, per_decode=1e-5, per_prefill_pair=1e-9
    )
    known = MeasuredEngine("sundog-tiny", 512, 16, 512, 64, 8, False)
    write_cost(path, cost, "a test", ObservedRange(1e4, 1e6, 1e3, 1e6), {ENGINE: asdict(known)})
    return path


def test_torch_forms_the_batches_that_are_predicted(profile: Path) -> None:
    """Chunks of prompts and waiting requests among them."""
    simulated = Simulated.of(EngineOptions(), TargetOptions(cost=str(profile)))
    rows = [row._replace(arrival_s=row.arrival_s / 50) for row in _workload(simulated, 10.0, 1.5)]
    assert len(rows) > 8
    assert same_batches(RealModel.open(None), simulated, rows) > 60


def test_a_server_that_does_not_start_says_why(tmp_path: Path) -> None:
    """With its last words, at once."""
    words = "did not start; it said: model folder .*nowhere"
    with pytest.raises(ConfigError, match=words), serving(str(tmp_path / "nowhere"), tmp_path):
        pass


@pytest.mark.parametrize("option", [("--page", "x.md"), ("--no-host-overhead",), ("--cost", "tables")])
def test_options_of_records_are_refused(option: tuple[str, ...]) -> None:
    """By their names, before anything is measured."""
    refused(sundog("validate", "--self", *option), option[0], "leave it out with --self")


@pytest.mark.long
def test_predicted_stands_beside_measured(profile: Path) -> None:
    """Both loads are served to their end, by a server of its own."""
    done = sundog("validate", "--self", "--cost", profile, "--seconds", 3, "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["same_batches"] > 100
    assert [load["share"] for load in found["loads"]] == [0.5, 0.9]
    for load in found["loads"]:
        measured, predicted = load["measured"], load["predicted"]
        assert measured["num_finished"] == measured["num_requests"] == predicted["num_finished"]
        assert measured["output_tokens"] == predicted["output_tokens"]
        assert load["steps"]["num_steps"] > 100 and 0 < load["steps"]["in_server_s"] <= load["steps"]["e2e_s"]
        assert sum(load["shares"].values()) == pytest.approx(1) and min(load["shares"].values()) >= 0
        low, high = (each["e2e_s"]["mean"] for each in load["predicted_from_to"])
        assert low < predicted["e2e_s"]["mean"] < high
