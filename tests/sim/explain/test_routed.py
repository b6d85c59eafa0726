"""Reasons of routing decisions in `sundog explain`."""

import json
from pathlib import Path

import pytest

from sundog.sim.explain.data import request_data
from sundog.sim.explain.load import load
from tests import warm


def sundog(*arguments: str) -> str:
    done = warm.run("sundog", *arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sessions on three replicas, routed by prefix."""
    folder = tmp_path_factory.mktemp("routed") / "run"
    replicas = ("--replicas", "3", "--router", "prefix-aware:index=events", "--limit", "120")
    sundog("replay", "traces/sessions-diurnal-10min.jsonl.gz", *replicas, "--json", "--out", str(folder))
    return folder


def test_explain_says_which_replica_was_chosen_and_by_what(run: Path) -> None:
    """The facts agree with where requests were admitted; a later turn goes where its blocks are."""
    history = load(run)
    found = [request_data(history, request) for request in history.requests.values()]
    for each in found:
        chosen = each["routed"]
        assert chosen["replica"] == each["replica"] and chosen["num_up"] == 3
        assert chosen["fewest_requests"] <= chosen["num_requests"] <= chosen["most_requests"]
    hits = [
        each for each in found if each["routed"]["num_hit_blocks"] > each["routed"]["most_other_hit_blocks"]
    ]
    assert len(hits) > len(found) / 3
    late = hits[-1]["request_id"]
    page = " ".join(sundog("explain", str(run), "--request", late).split())
    assert "PrefixAware chose replica" in page and "of the prompt cached there" in page
    assert (
        json.loads(sundog("explain", str(run), "--request", late, "--json"))["routed"] == hits[-1]["routed"]
    )
