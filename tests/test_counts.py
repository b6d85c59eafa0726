"""Calls per request against the budget: an increase of a tenth fails."""

import shutil
from pathlib import Path

import pytest

from sundog.fast import how
from tests.bench.counts import budget, counted, of_request, verdict
from tests.bench.replay_cases import CASES, TIMED
from tests.bench.runs import ROOT

IS_COMPILED = how() == "compiled"
MANY = "replays six cases twice under a profiler"
MUTATED = "many-requests"
MUTANT = Path("sundog/sim/client.py")
"""The module of the mutation: its client submits each request once."""


def plain(folder: Path) -> Path:
    """A copy of the sources, without what was compiled."""
    ignored = shutil.ignore_patterns("*.so", "__pycache__", "assets")
    shutil.copytree(ROOT / "sundog", folder / "sundog", ignore=ignored)
    return folder


def test_two_percent_more_than_the_budget_fails_and_five_less_lowers_it() -> None:
    """Between both a count is neither."""
    assert verdict({"a": 102.0, "b": 96.0}, {"a": 100, "b": 100}) == []
    assert verdict({"a": 102.1}, {"a": 100}) == ["a: 102.1 a request, and 100 are allowed"]
    assert verdict({"a": 94.9}, {"a": 100}) == ["a: 94.9 a request: lower its budget of 100"]


def test_every_case_has_a_budget_plain_and_compiled() -> None:
    """And no budget is of a case that is gone; Dynamo is asked for these, and for two more."""
    assert {kind: set(rows) for kind, rows in budget().items()} == {
        "plain": set(CASES),
        "compiled": set(CASES),
    }
    assert set(CASES) < set(TIMED)


@pytest.mark.long(reason=MANY)
def test_a_request_of_a_plain_replay_keeps_to_its_budget_of_calls(tmp_path: Path) -> None:
    """`tests/bench/budget.toml` says who may raise it."""
    source = plain(tmp_path / "plain")
    assert verdict(counted(source, "plain", tmp_path), budget()["plain"]) == []


@pytest.mark.long(reason=MANY)
@pytest.mark.skipif(not IS_COMPILED, reason="make fast has not compiled this tree")
def test_a_request_of_a_compiled_replay_keeps_to_its_budget_of_frames(tmp_path: Path) -> None:
    """What is interpreted on a step's path would show here."""
    assert verdict(counted(ROOT, "compiled", tmp_path), budget()["compiled"]) == []


@pytest.mark.long(reason="counts a case in two trees")
def test_the_budget_fails_where_a_tenth_is_added_to_the_calls_of_a_request(tmp_path: Path) -> None:
    """Calls that do nothing, once for each request, in a copy of the sources."""
    source, allowed = plain(tmp_path / "plain"), budget()["plain"]
    before = of_request(source, MUTATED, tmp_path)
    assert of_request(source, MUTATED, tmp_path).calls == pytest.approx(before.calls, abs=0.1)
    assert verdict({MUTATED: before.calls}, allowed) == []
    module, a_tenth = source / MUTANT, round(before.calls / 10)
    text = module.read_text(encoding="utf-8")
    line = "    def _ask(self, row: TraceRequest) -> None:\n"
    assert text.count(line) == 1
    calls = f"        for _ in range({a_tenth}):\n            len(())\n"
    module.write_text(text.replace(line, line + calls), encoding="utf-8")
    after = of_request(source, MUTATED, tmp_path)
    assert after.calls == pytest.approx(before.calls + a_tenth, abs=0.1)
    assert verdict({MUTATED: after.calls}, allowed) == [
        f"{MUTATED}: {after.calls:.1f} a request, and {allowed[MUTATED]:g} are allowed"
    ]
