"""Worker processes of sweeps and plans keep no finished runs in memory."""

import gc
from pathlib import Path

import pytest

from sundog.options.engine import EngineOptions
from sundog.options.simulation import LoadOptions, ReadingOptions, TargetOptions, TermsOptions
from sundog.planning.planner import planned
from sundog.planning.trial import FleetTrial, TrialRunner
from sundog.sim.client import Client

WORKLOAD = """duration_s = 5
[[populations]]
name = "chat"
arrivals = {kind = "poisson", rate_per_s = 5}
prompt = {kind = "fixed", tokens = 100}
output = {kind = "fixed", tokens = 10}
"""


@pytest.mark.long(reason="replays many requests, or many random cases", moderate=True)
def test_no_graph_outlives_its_run(tmp_path: Path) -> None:
    """Its actors refer to each other: they go when Python looks for cycles, and that is at once."""
    spec = tmp_path / "mix.toml"
    spec.write_text(WORKLOAD)
    options = (ReadingOptions(), EngineOptions(), TargetOptions(), LoadOptions())
    terms = TermsOptions(slo="p95(ttft)<1")
    problem = planned(str(spec), *options, terms, ["h100"], {}, None, 8, False)
    runner = TrialRunner(problem.plan)
    gc.collect()
    for seed in range(2):
        result = runner.trial(FleetTrial(problem.cells[0], 1, seed, to_the_end=True))
        assert result.is_held and result.num_requests > 10, result
        assert not [each for each in gc.get_objects() if type(each) is Client]
