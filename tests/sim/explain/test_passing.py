"""Waits caused by the policy rather than capacity: `explain` names the preferred requests and their ranks."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.core.policies.world import DOCS
from tests.sundog.test_runs import sundog

UNITS = {"arrival_s": "seconds", "prompt_tokens": "tokens", "output_tokens": "tokens"}


def explained(folder: Path, policy: str, *rows: dict[str, object]) -> tuple[Any, str, str]:
    """What explain says of the request `late`, as JSON and for people, and of the run."""
    trace, out = folder / "trace.jsonl", folder / "run"
    header = {"format": "sundog-trace", "version": 1, "units": UNITS}
    sizes = {"prompt_tokens": 16, "output_tokens": 40}
    lines = [header, *({"arrival_s": 0.01 * n, **sizes, **row} for n, row in enumerate(rows))]
    trace.write_text("".join(json.dumps(line) + "\n" for line in lines))
    done = sundog("replay", trace, "--policy", policy, "--max-num-seqs", 1, "--out", out, "--json")
    assert done.returncode == 0, done.stderr
    data = json.loads(sundog("explain", out, "--request", "late", "--json").stdout)
    pages = [sundog("explain", out, *options).stdout for options in ((), ("--request", "late"))]
    return data, " ".join(pages[0].split()), " ".join(pages[1].split())


@pytest.mark.long(keep=1, reason="more cases of the law whose first `make test` runs", moderate=True)
@pytest.mark.parametrize(
    ("policy", "field", "ranks"),
    [
        ("priority", "priority", "of rank (1, 0.02, first) where it had (7, 0.01, late)"),
        ("shortest-prompt", "prompt_tokens", "of rank 1 where it had 7"),
        ("earliest-deadline", "slo_ttft_s", "of rank 1.02 where it had 7.01"),
    ],
)
def test_a_later_request_of_lower_rank_is_named(tmp_path: Path, policy: str, field: str, ranks: str) -> None:
    """The two that came later and went first, and not the one that came later and went later."""
    rows = [{"id": "runs"}, {"id": "late", field: 7}]
    rows += [{"id": "first", field: 1}, {"id": "second", field: 2}, {"id": "last", field: 9}]
    data, run, page = explained(tmp_path, policy, *rows)
    assert [passing["request_id"] for passing in data["passed_by"]] == ["first", "second"]
    assert f"the policy let 2 later requests pass: first, {ranks}, and 1 other" in page
    assert "while late waited, the policy let 2 later requests pass" in run


def test_ranks_that_change_are_those_of_the_moment(tmp_path: Path) -> None:
    """Least slack first: what is late already goes last, by a rank that it had not when it came."""
    rows = [{"id": "runs"}, {"id": "late", "slo_ttft_s": 0.05}, {"id": "free", "slo_ttft_s": 60}]
    data, _, page = explained(tmp_path, f"{DOCS}/least_slack.py:LeastSlack", *rows)
    assert [passing["request_id"] for passing in data["passed_by"]] == ["free"]
    assert "of rank (0, " in page and "where it had (2, " in page


@pytest.mark.long(keep=1, reason="more cases of the law whose first `make test` runs", moderate=True)
@pytest.mark.parametrize("policy", ["fcfs", "prefill-first"])
def test_no_policy_is_blamed_where_all_ranks_are_the_same(tmp_path: Path, policy: str) -> None:
    """What waited lacked a running slot."""
    data, run, page = explained(tmp_path, policy, {"id": "runs"}, {"id": "late"}, {"id": "later"})
    assert data["passed_by"] == [] and "policy" not in run + page
