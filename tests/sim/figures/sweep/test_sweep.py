"""Experiments: paired by seed, replicated until precise, without the warm-up."""

import json
import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from sundog.cli import cli
from sundog.sim.figures.intervals import Interval, find_warm_up
from sundog.sim.figures.named import Metric
from sundog.sim.figures.sweep.cells import Cell, Job, Measures, Rule, grid, sweep
from sundog.sim.figures.sweep.ranking import ranked

SPEC = """
duration_s = 20
[arrivals]
kind = "poisson"
rate_per_s = 10
[prompt]
kind = "uniform"
smallest = 100
largest = 2000
[output]
kind = "uniform"
smallest = 5
largest = 60
"""


def noisy(jobs: Sequence[Job]) -> list[Measures]:
    """Setting `x` adds x to what the seed gives."""
    return [
        {"m": 100 + 10 * np.random.default_rng(seed).standard_normal() + settings["x"]}
        for settings, seed in jobs
    ]


def test_a_difference_is_that_of_the_settings() -> None:
    """Common random numbers: what the seeds have in common cancels, though each mean is vague."""
    first, second = sweep(grid({"x": [0.0, 0.5]}), Rule("m", 5), noisy)
    assert first.interval("m").half_width > 5
    change = second.change(first, "m")
    assert change.mean == pytest.approx(0.5) and change.half_width == pytest.approx(0, abs=1e-9)
    assert change.excludes_zero


def test_replications_go_on_until_every_cell_is_precise() -> None:
    """And no further; or to the most."""
    for precision in (0.1, 0.05, 0.02):
        cells = sweep(grid({"x": [0.0, 40.0]}), Rule("m", 3, 500, precision), noisy)
        counts = {len(cell.runs) for cell in cells}
        assert len(counts) == 1, "all cells have as many"
        for cell in cells:
            mean, half_width = cell.interval("m")
            assert half_width <= precision * mean
    assert 20 < counts.pop() < 500
    assert len(sweep(grid({"x": [0.0]}), Rule("m", 3, 8, 1e-6), noisy)[0].runs) == 8
    assert len(sweep(grid({"x": [0.0]}), Rule("m", 4), noisy)[0].runs) == 4


def test_confidence_intervals_cover_the_truth_as_often_as_they_say() -> None:
    """Over 400 experiments of five replications each, 95 % of them."""
    covered = 0
    for experiment in range(400):

        def shifted(jobs: Sequence[Job], first: int = 5 * experiment) -> list[Measures]:
            return noisy([(settings, first + seed) for settings, seed in jobs])

        (cell,) = sweep(grid({"x": [0.0]}), Rule("m", 5), shifted)
        covered += cell.interval("m").low <= 100 <= cell.interval("m").high
    assert covered / 400 == pytest.approx(0.95, abs=0.03)


@pytest.mark.parametrize("num_draws", [5, 30])
def test_draws_of_one_recording_do_not_make_it_more_certain(num_draws: int) -> None:
    """Of 300 recordings the intervals hold the truth in nine of ten or more, however many are drawn."""
    rng, covered, rule = np.random.default_rng(3), 0, Rule("m", num_draws, is_one_recording=True)
    for _ in range(300):
        recording = rng.exponential(1.0, 100)

        def drawn(jobs: Sequence[Job], recording: "np.ndarray[Any, Any]" = recording) -> list[Measures]:
            return [{"m": float(rng.choice(recording, 100).mean())} for _ in jobs]

        (cell,) = sweep(grid({"x": [0.0]}), rule, drawn)
        covered += cell.interval("m").low <= 1.0 <= cell.interval("m").high
    assert 0.9 <= covered / 300 <= 0.99


@pytest.mark.long(keep=1, reason="thousands of draws for each case; `make test` has one")
@pytest.mark.parametrize("shared", [0.0, 3.0], ids=["apart", "with-common-seeds"])
@pytest.mark.parametrize("num_settings", [2, 8])
def test_equal_settings_are_seldom_told_apart(num_settings: int, shared: float) -> None:
    """Of 2,000 tables of settings that differ by chance alone, at most one in twenty has a star anywhere.

    Some settings scatter five times as much as others, and a second metric follows the first.
    """
    rng, false_alarms, false_changes = np.random.default_rng(4), 0, 0
    scales = np.where(np.arange(num_settings) % 2, 1.0, 5.0)[:, None]
    for _ in range(2000):
        values = scales * rng.standard_normal((num_settings, 5)) + shared * rng.standard_normal(5)
        others = values + rng.standard_normal((num_settings, 5))
        cells = [
            Cell({"x": x}, [{"m": m, "n": n} for m, n in zip(values[x], others[x], strict=True)])
            for x in range(num_settings)
        ]
        ranking = ranked(cells, Metric("m", "m"), 0.95)
        false_alarms += not all(place.is_tied for place in ranking.places[1:])
        false_changes += any(ranking.change(place.cell, "n")[1] for place in ranking.places[1:])
    assert false_alarms <= 0.05 * 2000 + 20  # Two standard deviations of a count of one in twenty.
    assert false_changes <= 0.05 * 2000 + 20


def test_settings_that_differ_are_told_apart_among_eight() -> None:
    """Two standard deviations, in ten replications."""
    rng = np.random.default_rng(5)
    cells = sweep(
        grid({"x": [0, 2, 2, 2, 2, 2, 2, 2]}),
        Rule("m", 10),
        lambda jobs: [{"m": float(rng.standard_normal() / 2 + settings["x"])} for settings, _ in jobs],
    )
    places = ranked(cells, Metric("m", "m"), 0.95).places
    assert places[0].cell.settings == {"x": 0} and not any(place.is_tied for place in places[1:])


def test_a_setting_differs_if_it_does_from_all_candidates_and_one_tells_that_it_does_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of a thousand settings that hardly differ, each is compared with few."""
    rng, alike = np.random.default_rng(6), 30
    shift = {"m": lambda x: float(x >= alike), "n": lambda x: float(x % 7) if x >= alike else 3.0}
    cells = sweep(
        grid({"x": list(range(2 * alike))}),
        Rule("m", 5),
        lambda jobs: [{n: rng.normal(of(each["x"]), 0.1) for n, of in shift.items()} for each, _ in jobs],
    )
    ranking, found = ranked(cells, Metric("m", "m"), 0.95), list[bool]()
    for cell in cells:
        changes = [cell.change(o, "n", ranking.confidence) for o in ranking.candidates if o is not cell]
        found.append(all(c.low > 0 for c in changes) or all(c.high < 0 for c in changes))
    change, num_changes = Cell.change, Counter[str]()

    def counted(cell: Cell, *args: Any) -> Interval:
        num_changes.update([cell.settings["x"]])
        return change(cell, *args)

    monkeypatch.setattr(Cell, "change", counted)
    assert [ranking.change(cell, "n")[1] for cell in cells] == found and len(set(found)) == 2
    assert len(ranking.candidates) > 20
    assert all(num_changes[x] < 10 for x in range(alike)), num_changes


def test_a_grid_is_every_combination() -> None:
    """The last axis fastest; no axis is one cell."""
    assert grid({"a": [1, 2], "b": ["x", "y"]}) == [
        {"a": 1, "b": "x"},
        {"a": 1, "b": "y"},
        {"a": 2, "b": "x"},
        {"a": 2, "b": "y"},
    ]
    assert grid({}) == [{}]


def test_the_warm_up_ends_where_the_run_has_settled() -> None:
    """A rising start is left out, steady noise is not, and nothing where there is no end of rising."""
    rng = np.random.default_rng(0)
    noise = rng.normal(10, 1, 2000)
    assert find_warm_up(noise).num_values < 200
    rising = np.concatenate((np.linspace(0, 10, 400), noise[:1600]))
    assert find_warm_up(rising).is_settled and 250 <= find_warm_up(rising).num_values <= 500
    assert find_warm_up(np.arange(1000.0)) == (0, False)
    assert find_warm_up(np.arange(1000.0) + noise[:1000] * 20) == (0, False)
    assert find_warm_up(np.ones(10)) == (0, True)


def test_a_settled_run_is_seldom_called_unsettled() -> None:
    """Waiting times of queues that are 50 to 80 % busy: at most one in twenty of 200 runs."""
    rng, num_wrong = np.random.default_rng(1), 0
    for number in range(200):
        load = (0.5, 0.8)[number % 2]
        waits, wait_s = [], 0.0
        for gap_s, service_s in zip(rng.exponential(1, 2000), rng.exponential(load, 2000), strict=True):
            wait_s = max(wait_s + service_s - gap_s, 0.0)
            waits.append(wait_s)
        num_wrong += not find_warm_up(np.array(waits)).is_settled
    assert num_wrong <= 10


@pytest.mark.long(reason="replays many requests, or many random cases", moderate=True)
def test_the_command_shows_and_prints_the_same_every_time(tmp_path: Path) -> None:
    """Figures of every run, with one process or two; mistakes are named."""
    path = tmp_path / "w.toml"
    path.write_text(SPEC)
    command = ["sweep", str(path), "--vary", "max-num-seqs=2,64", "--replications", "2", "--json"]
    one = CliRunner().invoke(cli, [*command, "--jobs", "1"], catch_exceptions=False)
    two = CliRunner().invoke(cli, [*command, "--jobs", "2"], catch_exceptions=False)
    assert one.exit_code == 0 and one.stdout == two.stdout
    narrow, wide = json.loads(one.stdout)["cells"]
    assert narrow["settings"] == {"max_num_seqs": 2}
    assert narrow["runs"][0]["queueing_s.mean"] > wide["runs"][0]["queueing_s.mean"]
    assert wide["changes"]["queueing_s.mean"][0] < 0
    assert not math.isnan(wide["intervals"]["ttft_s.p99"][1])
    for wrong, reason in (
        (["--vary", "polcy=fcfs"], "Did you mean policy"),
        (["--vary", "policy"], "NAME=VALUE"),
        (["--vary", "workload.arrival.x=1"], "no table arrival"),
        (["--metric", "tftt_s.p98"], "Did you mean ttft_s"),
    ):
        with pytest.raises(Exception, match=reason):
            CliRunner().invoke(cli, ["sweep", str(path), *wrong], catch_exceptions=False)
