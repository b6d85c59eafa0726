"""Totals per replica: sums of a run's rows, and where they are shown."""

import json
from pathlib import Path

import pytest

from sundog.sim.record.run_directory import open_run
from sundog.sim.show.html.page import render
from tests import warm
from tests.sim.test_routers import summary


def test_replicas_add_up_and_imbalance_is_the_busiest_over_the_mean() -> None:
    """One replica has no such figures, as it always had none."""
    whole = summary("session-affinity")
    assert len(whole.replicas) == 4 and sum(each.num_requests for each in whole.replicas) == 104
    assert sum(each.prefix_hit_tokens for each in whole.replicas) == whole.prefix_hit_tokens
    assert sum(each.output_tokens for each in whole.replicas) == whole.output_tokens
    computed = [e.prompt_tokens + e.output_tokens - e.prefix_hit_tokens for e in whole.replicas]
    assert whole.imbalance == pytest.approx(max(computed) * 4 / sum(computed)) and whole.imbalance > 1
    assert "imbalance" not in json.loads(summary("round-robin", replicas=1).to_json())


@pytest.mark.long(reason="runs commands in processes of their own", moderate=True)
def test_a_sweep_of_routers_ranks_them_and_a_report_shows_the_replicas(tmp_path: Path) -> None:
    """Through the command line: parameters after the name are not values of their own."""
    arguments = [
        *(
            "sweep",
            "traces/sessions-diurnal-10min.jsonl.gz",
            "--limit",
            "150",
            "--replicas",
            "3",
            "--jobs",
            "1",
        ),
        *("--vary", "router=round-robin,weighted:prefix=1,load=0.5,session-affinity", "--json"),
        *("--metric", "prefix_hit_rate", "--metric", "imbalance", "--out", str(tmp_path / "kept")),
    ]
    done = warm.run("sundog", *arguments)
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)["cells"]
    assert [row["settings"]["router"] for row in rows][1] == "weighted:prefix=1,load=0.5"
    best = next(row for row in rows if row["rank"] == 1)
    assert best["settings"]["router"] != "round-robin" and best["runs"][0]["imbalance"] >= 1
    (folder,) = {path.parent for path in (tmp_path / "kept").rglob("summary.json") if "affinity" in str(path)}
    page = render([open_run(folder)])
    assert "<h2>Replicas</h2>" in page and "busiest replica" in page
