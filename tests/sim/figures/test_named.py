"""Names of metrics and objectives, and their meanings."""

import json

import numpy as np
import pytest
from click.testing import CliRunner

from sundog.actors.core.config import ConfigError
from sundog.cli import cli
from sundog.sim.figures.named import OF_TENANTS, Metric, Objective

TRACE = "traces/chat-poisson-2rps-5min.jsonl.gz"


def test_every_percentile_has_a_name() -> None:
    """Of everybody and of a tenant, whose name may have dots."""
    assert Metric.parse("ttft_s.p99.9").percent == 99.9
    assert Metric.parse("ttft_s.mean").percent is None
    metric = Metric.parse("tenant.a.b.tpot_s.p95")
    assert (metric.tenant, metric.figure, metric.part) == ("a.b", "tpot_s", "p95")
    assert metric.title == "a.b TPOT p95 ms"
    assert Metric.parse("tenant.a.b.ttft_p99_s").part is None
    for name in OF_TENANTS:
        assert Metric.parse(f"tenant.a.b.{name}")[1:] == (name, None, "a.b")


@pytest.mark.parametrize("name", ["ttft_s.p100", "ttft_s.p0", "ttft_s.q95", "ttft_s", "tenant.a.p95"])
def test_a_name_that_is_none_is_refused(name: str) -> None:
    """The error names it."""
    with pytest.raises(ConfigError, match=name.rpartition(".")[2]):
        Metric.parse(name)
    with pytest.raises(ConfigError, match="a percentile below 100, as p99.9"):
        Metric.parse("ttft_s.p101")


def test_an_objective_is_a_metric_and_a_limit() -> None:
    """Spaces do not matter."""
    of_all, of_one = Objective.parse(" p95(ttft)<1"), Objective.parse("tenant rag : mean( e2e ) < 20")
    assert (of_all.metric.name, of_all.below_s) == ("ttft_s.p95", 1.0)
    assert (of_one.metric.name, of_one.below_s) == ("tenant.rag.e2e_s.mean", 20.0)


@pytest.mark.parametrize("text", ["p95(ttft)", "p95(ttft)<0", "p95(foo)<1", "p100(ttft)<1", "x: p95(ttft)<1"])
def test_an_objective_that_is_none_is_refused(text: str) -> None:
    """Nothing of it is guessed."""
    with pytest.raises(ConfigError, match="objective|limit"):
        Objective.parse(text)


def test_a_replay_says_which_objectives_it_held() -> None:
    """The value is the percentile of its own requests, and one limit lies above, one below it."""
    common = ["replay", TRACE, "--limit", "100", "--json"]
    slo = "ttft=0.5,p90(ttft)<0.001,p90(ttft)<1000"
    done = CliRunner().invoke(cli, [*common, "--slo", slo], catch_exceptions=False)
    found = json.loads(done.stdout)
    missed, held = found["objectives"]
    assert (missed["is_held"], held["is_held"]) == (False, True)
    assert np.isclose(missed["value_s"], found["ttft_s"]["p90"], rtol=1e-12)
    assert found["slo_attainment"] is not None
    plain = json.loads(CliRunner().invoke(cli, common, catch_exceptions=False).stdout)
    assert "objectives" not in plain
